"""How a recipe is made faster on a GPU, apart from what it is; results differ by rounding alone.

A recipe needs none of this. One that has it derives from :class:`Accelerated`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from taufree.experiments.recipe import Recipe


@dataclass(frozen=True)
class Acceleration:
    """What a CUDA device may do with a recipe; other devices ignore it.

    Attributes:
        precision: the precision, if the user names none.
        tf32: whether the factors of the network's float32 matrix products may be rounded to TF32, which is
            many times faster. The losses of this package never are.
        recorded_steps: whether one step is recorded as a CUDA graph and replayed, see
            :class:`.training.recorded.Replayed`. All batches must then be tuples of tensors of the same
            shapes, and steps may differ in nothing else but the learning rate, which an optimizer with a
            schedule must read from the device, as fused ones do.
    """

    precision: str = "32-true"
    tf32: bool = False
    recorded_steps: bool = False


class Accelerated(Recipe):
    """A recipe that knows its device."""

    acceleration: ClassVar[Acceleration] = Acceleration()

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        """Prepare for training on the device, where the model is, and say what may be done there.

        Called once, after :meth:`optimizer` and before :meth:`begin`: the place to move data to the device
        and to compile parts of the model.
        """
        return self.acceleration


def acceleration_of(recipe: type[Recipe]) -> Acceleration:
    """That of the recipe; none at all if it is not :class:`Accelerated`."""
    return recipe.acceleration if issubclass(recipe, Accelerated) else Acceleration()
