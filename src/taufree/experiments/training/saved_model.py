"""Trained networks on the disk: one safetensors file with the weights, the settings and what the recipe needs
to use it on new data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from taufree.experiments.recipe import Recipe
from taufree.experiments.registry import find_recipe
from taufree.experiments.training.run import Run
from taufree.util.errors import BadInputError
from taufree.util.files import atomic_write, check_file
from taufree.version import __version__

SAVED = "saved."
"""How the names of tensors begin that are not the network's own."""

ABOUT = ("recipe", "link", "seed", "settings", "metrics", "taufree")
"""What a file says of its network."""


@dataclass(frozen=True)
class SavedModel:
    """A network that was trained, in evaluation mode, with its recipe.

    Attributes:
        saved: what the recipe saved beside the network, see :meth:`.Recipe.saved_tensors`.
        about: ``recipe``, ``link``, ``seed``, ``settings`` and ``metrics`` of the run, and the version of
            ``taufree``.
    """

    recipe: Recipe
    model: nn.Module
    saved: dict[str, Tensor]
    about: dict[str, Any]


class _Whole(nn.Module):
    """The network and the tensors beside it, which safetensors writes as one module: it knows how to write
    weights that a network has twice."""

    def __init__(self, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self.saved = nn.Module()
        for name, tensor in saved.items():
            self.saved.register_buffer(name, tensor.clone())  # a part of a larger one cannot be written


def model_file(out: Path, run: Run) -> Path:
    """Where a run's network is in the folder of the results."""
    return out / "models" / f"{run.slug}.safetensors"


def write_model(path: Path, model: nn.Module, saved: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a network, whole or not at all, with what :class:`SavedModel` has as ``about``."""
    texts = {name: json.dumps(value) for name, value in {**about, "taufree": __version__}.items()}
    try:
        with atomic_write(path) as draft:
            draft.touch()
            usual = draft.stat().st_mode  # safetensors makes a file that nobody else can read
            save_model(_Whole(model, saved), str(draft), metadata=texts)
            draft.chmod(usual)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"the model {path} could not be written: {reason}") from error


def read_model(path: Path, device: str = "cpu") -> SavedModel:
    """The network of a file that ``taufree run --save-model`` has written.

    Raises ValueError with one sentence where it is none, or its recipe is not to be had.

    >>> read_model(Path("absent.safetensors"))
    Traceback (most recent call last):
    ValueError: No such file: absent.safetensors, which must hold a model that taufree run --save-model wrote.
    """
    check_file(path, "a model that taufree run --save-model wrote")
    try:
        with safe_open(path, "pt") as file:
            texts = file.metadata() or {}
            about = {name: json.loads(texts[name]) for name in ABOUT}
            beside = [name for name in file.keys() if name.startswith(SAVED)]  # noqa: SIM118  no dictionary
            saved = {name.removeprefix(SAVED): file.get_tensor(name) for name in beside}
    except (KeyError, OSError, SafetensorError, json.JSONDecodeError) as error:
        raise BadInputError(f"{path} must be a model that taufree run --save-model wrote.") from error
    recipe_type, settings = find_recipe(about["recipe"]), about["settings"]
    known = {one.name for one in fields(recipe_type.settings_type)} & settings.keys()
    try:
        recipe = recipe_type(recipe_type.settings_type(**{name: settings[name] for name in known}))
        whole = _Whole(recipe.network(), saved)
        load_model(whole, str(path))
    except (RuntimeError, TypeError) as error:  # a version of the recipe with other layers or settings
        reason = str(error).splitlines()[0]
        raise BadInputError(
            f"{path}, which taufree {about['taufree']} wrote, does not fit the recipe {recipe_type.name} of "
            f"taufree {__version__}: {reason}"
        ) from error
    whole.to(torch.device(device)).eval().requires_grad_(False)
    return SavedModel(recipe, whole.model, dict(whole.saved.named_buffers()), about)
