"""DySTreSS: each pair's temperature by its own cosine."""

from __future__ import annotations

import math

from torch import Tensor

from taufree.links import Link
from taufree.links.base import check_number


class DySTreSS(Link):
    """A temperature for each pair, by its cosine s, which gets no gradient through it.

        l(s) = s / tau(sg[s]),  tau(s) = low + (high - low) (1 + cos(pi (1 + s))) / 2

    so that tau is ``low`` at s = 0 and ``high`` at s = -1 and 1, and the slope of a pair is 1/tau(s), not the
    derivative of its logit. Manna et al., arXiv 2308.01140; for ImageNet 0.1 and 0.2.

    Args:
        low, high: the range of the temperature, as published for CIFAR.

    Examples:
        >>> import torch
        >>> [round(x, 2) for x in DySTreSS()(torch.tensor([0.0, 0.5, 1.0])).tolist()]
        [0.0, 3.7, 5.0]
    """

    def __init__(self, low: float = 0.07, high: float = 0.2) -> None:
        super().__init__()
        self.low = check_number("low", low, "a positive number", lambda x: x > 0)
        self.high = check_number("high", high, f"a number of at least low = {low:g}", lambda x: x >= low)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine * self.slope(cosine, gap, rise)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        swing = (1 + (math.pi * rise.detach()).cos()) / 2
        return (self.low + (self.high - self.low) * swing).reciprocal()

    def extra_repr(self) -> str:
        return f"low={self.low}, high={self.high}"
