"""Links that measure their gain on the embeddings."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype
from taufree.links.base import Formula, Link, Measure, check_number
from taufree.links.log_odds import LogOdds, with_gain


class CalibratedLogOdds(Link):
    """The log-odds link with a gain that is measured, not set.

        l(c) = g log((1 + c + delta) / (1 - c + delta))
        g = 2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)),  nu = 1 / mean(c^2)

    The cosines of random directions in nu dimensions have a mean square of 1/nu. Taking the negatives for
    such, nu is their effective dimension, and g gives the link at c = 0 the slope of the log-odds that a
    random pair is less similar than this one. On the ordinary sphere, nu = 3, g is 1, the paper's link; fewer
    dimensions leave it at 1. See docs/studies/calibration.md.

    While training, each loss first measures the mean of c^2 over its own negatives, without gradient.
    ``moment`` remembers it from loss to loss: it stays where it is as long as that is within the batch's own
    standard error of the batch's mean, and else moves just so far. There is no rate to choose: a large batch
    is followed at once, a small one is smoothed as much as it is noisy. So a loss is a function of its batch
    and of ``moment`` before it, which is in the ``state_dict``. In evaluation mode, by ``eval()`` of the link
    or of the loss, and under ``torch.no_grad()``, nothing is measured and ``moment`` stays. It begins at 1:
    all alike, gain 1.

    Args:
        resolution: delta, see ``LogOdds``.

    Examples:
        >>> from taufree import nt_xent
        >>> link = CalibratedLogOdds()
        >>> link.gain
        1.0
        >>> view = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
        >>> loss = nt_xent(view, view, link=link)
        >>> round(link.dimension), round(link.gain, 1)
        (64, 6.3)
    """

    moment: Tensor

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__()
        self.resolution = check_number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)
        self.register_buffer("moment", torch.ones(()))

    @property
    def dimension(self) -> float:
        """The effective dimension of the negatives, 1 / mean(c^2)."""
        return 1 / self.moment.item()

    @property
    def gain(self) -> float:
        """The gain the link has now."""
        return _calibrated_gain(self.moment).item()

    @property
    def measures(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def prepare(self, measure: Measure) -> Link:
        if self.measures:
            with torch.no_grad():
                mean, error = measure()
                if self.moment.device != mean.device:
                    self.moment = self.moment.to(mean.device)
                low, high = mean - error, mean + error
                held = self.moment.clamp(low, high)
                self.moment.copy_(held.where(high < torch.inf, self.moment))  # unless the batch has NaN
        # The backward must find the gain of its forward, and ``moment`` may change before that.
        if type(self).logit is CalibratedLogOdds.logit:
            return self._current()
        snapshot = copy.copy(self)
        snapshot._buffers = {**self._buffers, "moment": self.moment.clone()}
        return snapshot

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().logit(cosine, gap, rise)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().slope(cosine, gap, rise)

    def _current(self) -> LogOdds:
        return with_gain(_calibrated_gain(self.moment), self.resolution)

    @property
    def formula(self) -> Formula:
        return Formula("log-odds", self.resolution)

    def formula_scale(self) -> Tensor:
        return _calibrated_gain(self.moment)

    def extra_repr(self) -> str:
        return f"resolution={self.resolution}"


@torch.no_grad()
def _calibrated_gain(moment: Tensor) -> Tensor:
    """2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)) with nu = 1/moment, and exactly 1 for nu <= 3."""
    nu = moment.to(wide_dtype(moment.device)).reciprocal().clamp(min=3)
    gain = 2 / math.sqrt(math.pi) * (torch.lgamma(nu / 2) - torch.lgamma((nu - 1) / 2)).exp()
    return torch.where(nu > 3, gain, 1.0)
