"""Checkpoints that are whole or not there.

A checkpoint is a folder ``epoch-<n>`` with the model's weights (safetensors) and everything else a run needs
to go on (a dictionary of numbers, lists and tensors). A process killed at any moment leaves the older
checkpoint, or both, but never half of one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write


class Checkpoint:
    """The newest state of one run, in the folder ``path`` of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, epoch: int, model: nn.Module, state: dict[str, Any]) -> None:
        """Make this the newest checkpoint, and remove the older ones."""
        final = self.path / f"epoch-{epoch}"
        try:
            with atomic_write(final, sync=True) as draft:
                draft.mkdir()
                save_model(model, str(draft / "weights.safetensors"))
                torch.save(state, draft / "state.pt")
        except (OSError, RuntimeError, SafetensorError) as error:  # safetensors and torch have their own
            reason = str(error).splitlines()[0]
            raise BadInputError(f"the checkpoint {final} could not be written: {reason}") from error
        for entry in self.path.iterdir():
            if entry != final and entry.is_dir():  # file managers leave files of their own everywhere
                shutil.rmtree(entry)

    def load(self, model: nn.Module) -> dict[str, Any] | None:
        """Put the newest weights into ``model`` and return the state; None where nothing was saved."""
        found = sorted(
            self.path.glob("epoch-[0-9]*"), key=lambda entry: int(entry.name.removeprefix("epoch-"))
        )
        if not found:
            return None
        load_model(model, str(found[-1] / "weights.safetensors"))
        state: dict[str, Any] = torch.load(found[-1] / "state.pt", map_location="cpu", weights_only=True)
        return state

    def remove(self) -> None:
        """Forget the run; its result is safe elsewhere."""
        shutil.rmtree(self.path, ignore_errors=True)
