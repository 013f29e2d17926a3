"""A temperature that follows a cosine while training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype
from taufree.links import Formula, Link
from taufree.links.base import check_number


class TemperatureSchedule(Link):
    """A temperature that swings between two values over the training.

        tau(p) = low + (high - low) (1 + cos(2 pi periods p)) / 2,  p the part of the training that is done

    Call ``step(p)`` before each epoch, as ``taufree run`` does, or before each step. Kukleva et al., ICLR
    2023: from 0.1 to 1.0, five periods (of 400 epochs each), a new temperature each epoch. A port to CLIP has
    0.01 to 0.05, five periods, a new one each step.

    Args:
        low, high: the range of the temperature; it begins at ``high``.
        periods: how many there are in a training.

    Examples:
        >>> link = TemperatureSchedule()
        >>> link.step(0.1)
        >>> round(link.tau.item(), 3)
        0.1
    """

    tau: Tensor

    def __init__(self, low: float = 0.1, high: float = 1.0, periods: float = 5.0) -> None:
        super().__init__()
        self.low = check_number("low", low, "a positive number", lambda x: x > 0)
        self.high = check_number("high", high, f"a number of at least low = {low:g}", lambda x: x >= low)
        self.periods = check_number("periods", periods, "a positive number", lambda x: x > 0)
        self.register_buffer("tau", torch.tensor(float(high)))

    @torch.no_grad()
    def step(self, progress: float) -> None:
        swing = (1 + math.cos(2 * math.pi * self.periods * progress)) / 2
        self.tau.fill_(self.low + (self.high - self.low) * swing)  # in place, where recorded steps read it

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine * self.formula_scale().to(cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self.formula_scale().to(cosine).expand_as(cosine)

    @property
    def formula(self) -> Formula:
        return Formula("linear")

    def formula_scale(self) -> Tensor:
        return self.tau.to(wide_dtype(self.tau.device)).reciprocal()

    def extra_repr(self) -> str:
        return f"tau={self.tau.item():.3g}, low={self.low}, high={self.high}, periods={self.periods:g}"
