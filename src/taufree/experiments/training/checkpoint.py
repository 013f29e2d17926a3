"""Checkpoints that are whole or not there.

A checkpoint is a folder ``epoch-<n>`` with the model's weights (safetensors) and everything else a run needs
to go on (a dictionary of numbers, lists and tensors). It is written beside its final name and renamed when
complete, which is one step for the file system: a process killed at any moment leaves the older checkpoint,
or both, but never half of one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from taufree.util.errors import BadInputError


class Checkpoint:
    """The newest state of one run, in the folder ``path`` of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, epoch: int, model: nn.Module, state: dict[str, Any]) -> None:
        """Make this the newest checkpoint, and remove the older ones."""
        draft, final = self.path / f"draft-{epoch}", self.path / f"epoch-{epoch}"
        try:
            for leftover in (draft, final):
                shutil.rmtree(leftover, ignore_errors=True)
            draft.mkdir(parents=True)
            save_model(model, str(draft / "weights.safetensors"))
            torch.save(state, draft / "state.pt")
            for file in draft.iterdir():
                _flush(file)
            os.replace(draft, final)
        except (OSError, RuntimeError, SafetensorError) as error:  # safetensors and torch have their own
            shutil.rmtree(draft, ignore_errors=True)
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


def _flush(file: Path) -> None:
    # Without this a power failure could keep the rename and lose the contents.
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())
