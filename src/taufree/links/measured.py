"""Links that measure their gain on the embeddings."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype
from taufree.links.base import Formula, Link, Measure, check_number
from taufree.links.log_odds import LogOdds, with_gain


class _MeasuredLogOdds(Link):
    """What the two share: before each loss in training the batch is measured, and a buffer remembers it."""

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__()
        self.resolution = check_number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)

    @property
    def gain(self) -> float:
        """The gain the link has now."""
        return self.formula_scale().item()

    @property
    def measures(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def prepare(self, measure: Measure) -> Link:
        if self.measures:
            with torch.no_grad():
                self._measure(measure)
        # The backward must find the gain of its forward, and the buffer may change before that.
        if type(self).logit is _MeasuredLogOdds.logit:
            return self._current()
        snapshot = copy.copy(self)
        snapshot._buffers = {name: None if x is None else x.clone() for name, x in self._buffers.items()}
        return snapshot

    def _measure(self, measure: Measure) -> None:
        raise NotImplementedError

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().logit(cosine, gap, rise)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().slope(cosine, gap, rise)

    def _current(self) -> LogOdds:
        return with_gain(self.formula_scale(), self.resolution)

    @property
    def formula(self) -> Formula:
        return Formula("log-odds", self.resolution)

    def formula_scale(self) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"gain={self.gain:.3g}, resolution={self.resolution}"


class CalibratedLogOdds(_MeasuredLogOdds):
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
        super().__init__(resolution)
        self.register_buffer("moment", torch.ones(()))

    @property
    def dimension(self) -> float:
        """The effective dimension of the negatives, 1 / mean(c^2)."""
        return 1 / self.moment.item()

    def _measure(self, measure: Measure) -> None:
        mean, error = measure.squared_cosine()
        if self.moment.device != mean.device:
            self.moment = self.moment.to(mean.device)
        low, high = mean - error, mean + error
        held = self.moment.clamp(low, high)
        self.moment.copy_(held.where(high < torch.inf, self.moment))  # unless the batch has NaN

    @torch.no_grad()
    def formula_scale(self) -> Tensor:
        """2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)) with nu = 1/moment, and exactly 1 for nu <= 3."""
        nu = self.moment.to(wide_dtype(self.moment.device)).reciprocal().clamp(min=3)
        gain = 2 / math.sqrt(math.pi) * (torch.lgamma(nu / 2) - torch.lgamma((nu - 1) / 2)).exp()
        return torch.where(nu > 3, gain, 1.0)

    def extra_repr(self) -> str:
        return f"dimension={self.dimension:.3g}, {super().extra_repr()}"


class FittedLogOdds(_MeasuredLogOdds):
    """The log-odds link with the gain that makes the batch most likely: for vectors that are compared.

        l(c) = g log((1 + c + delta) / (1 - c + delta)),  g = argmin of the mean loss, at least 1

    Where the vectors themselves are used (search, image and text, ranking), the loss is the goal, and its own
    best scale is the right one. Where the network behind a head is wanted, take ``LogOdds``: see
    docs/guide/choosing-a-link.md.

    Nothing is tuned: the loss is convex in g, and before each loss one Newton step follows its minimum, found
    on up to 128 of the anchors with all their candidates. A step moves only as far as the derivative exceeds
    its own standard error, so that a small batch is smoothed as much as it is noisy, and by at most a factor
    of two. Targets are smoothed by Laplace's rule, which keeps g finite where every positive is ahead.

    ``log_gain`` remembers log g from loss to loss and is in the ``state_dict``. It starts at 0, the paper's
    link, and never goes below: a flatter link teaches an untrained network little. In evaluation mode and
    under ``torch.no_grad()`` it stays.

    Args:
        resolution: delta, see ``LogOdds``.

    Examples:
        >>> from taufree import info_nce
        >>> link, generator = FittedLogOdds(), torch.Generator().manual_seed(0)
        >>> for _ in range(10):
        ...     query = torch.randn(1000, 64, generator=generator)
        ...     loss = info_nce(query, query + torch.randn(1000, 64, generator=generator), link=link)
        >>> 9 < link.gain < 13
        True
    """

    log_gain: Tensor

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__(resolution)
        self.register_buffer("log_gain", torch.zeros(()))

    def _measure(self, measure: Measure) -> None:
        found = measure.likelihood(self._current())
        if self.log_gain.device != found.gradient.device:
            self.log_gain = self.log_gain.to(found.gradient.device)
        self.log_gain.copy_((self.log_gain + _newton_step(*found)).clamp(min=0))

    def formula_scale(self) -> Tensor:
        return self.log_gain.detach().to(wide_dtype(self.log_gain.device)).exp()


def _newton_step(gradient: Tensor, error: Tensor, variance: Tensor) -> Tensor:
    """The step of log g; 0 if the batch has NaN or says nothing of it.

    The second derivative is variance + gradient. Where that gradient is negative the curvature still grows
    towards the minimum, and where it is positive it shrinks: there the denominator counts it twice.
    """
    sure = _shrunk(gradient, error)
    step = -sure / (variance + sure + sure.abs())
    return step.clamp(-math.log(2), math.log(2)).nan_to_num(0.0)


def _shrunk(gradient: Tensor, error: Tensor) -> Tensor:
    """What of the gradient exceeds its standard error."""
    return gradient.sign() * (gradient.abs() - error).clamp(min=0)
