"""Links that measure their gain on the embeddings."""

from __future__ import annotations

import copy
import math
from typing import Any

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
            try:
                with torch.no_grad():
                    self._measure(measure)
            except RuntimeError as error:
                if not any(word in str(error) for word in ("captured Tensor", "functorch", "vmap")):
                    raise
                raise RuntimeError(
                    f"{type(self).__name__} cannot keep what it measures under torch.func; call eval() on "
                    "the link, which then stays as it is."
                ) from error
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


ROUNDING = 1e-6  # of sums in float32
FIRST_STEPS = 8  # of Newton's, each a factor of two at most, on the first batch


class FittedLogOdds(_MeasuredLogOdds):
    """The log-odds link with the gain that makes the batches most likely: for vectors that are compared.

        l(c) = g log((1 + c + delta) / (1 - c + delta)),  g = argmin of the loss, at least 1

    Where the vectors themselves are used (search, image and text, ranking), the loss is the goal, and its own
    best scale is a right one. Where the network behind a head is wanted, take ``LogOdds``: see
    docs/guide/choosing-a-link.md.

    Nothing is tuned: the loss is convex in g. The first loss that has anything to compare finds the minimum
    for its batch, so that a network that is trained already is not harmed. Then, before each loss, one Newton
    step follows the minimum for all batches so far. Its gradient is that of this batch, found on up to 128 of
    the anchors with all their candidates, and its curvature the sum over all batches. (A gain that is best
    for each single batch trains worse: docs/studies/matching.md.) Laplace's rule smooths the targets, which
    keeps g finite where every positive is ahead.

    ``log_gain`` remembers log g from loss to loss, ``curvature`` the sum; both are in the ``state_dict``. The
    gain starts at 1, the paper's link, and never goes below: a flatter link teaches an untrained network
    little. In evaluation mode and under ``torch.no_grad()`` it stays. A link that has served one training
    should not serve the next: make a new one.

    Args:
        resolution: delta, see ``LogOdds``.

    Examples:
        >>> from taufree import info_nce
        >>> link, generator = FittedLogOdds(), torch.Generator().manual_seed(0)
        >>> for _ in range(10):
        ...     query = torch.randn(1000, 64, generator=generator)
        ...     loss = info_nce(query, query + torch.randn(1000, 64, generator=generator), link=link)
        >>> 5 < link.gain < 15
        True
    """

    log_gain: Tensor
    curvature: Tensor

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__(resolution)
        self.register_buffer("log_gain", torch.zeros(()))
        self.register_buffer("curvature", torch.zeros(()))
        self.begins = True

    def _measure(self, measure: Measure) -> None:
        if not self.begins:
            self._step(measure)
            return
        for _ in range(FIRST_STEPS):
            self._step(measure)
            self.curvature.zero_()
        self._step(measure)
        self.begins = self._untold()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.begins = self._untold()

    def _untold(self) -> bool:
        """Whether no batch has said anything so far; False where the value cannot be read."""
        if torch.compiler.is_compiling() or self.curvature.is_meta:
            return False
        return type(self.curvature.data) is Tensor and not self.curvature.item()

    def _step(self, measure: Measure) -> None:
        gain = self.formula_scale()
        gradient, variance = measure.likelihood(with_gain(gain, self.resolution))
        if self.log_gain.device != gradient.device:
            self.log_gain, self.curvature = (
                self.log_gain.to(gradient.device),
                self.curvature.to(gradient.device),
            )
        # The second derivative is variance + gradient. Where the gradient is positive, that shrinks towards
        # the minimum: there the gradient counts twice, and else not at all.
        curvature = self.curvature + variance + 2 * gradient.clamp(min=0)
        step = (gradient / curvature).clamp(-math.log(2), math.log(2))  # at most a factor of two
        untold = step.isnan()  # the batch has NaN, or nothing to compare
        # Of rows that all agree both derivatives are rounding errors of logits as large as that of c = 1.
        largest = gain.to(gradient.device) * math.log(2 / max(self.resolution, 1e-7))
        untold = untold | ((gradient.abs() <= ROUNDING * largest) & (variance <= ROUNDING * largest**2))
        self.log_gain.copy_(torch.where(untold, self.log_gain, (self.log_gain - step).clamp(min=0)))
        self.curvature.copy_(torch.where(untold, self.curvature, curvature))

    def formula_scale(self) -> Tensor:
        return self.log_gain.detach().to(wide_dtype(self.log_gain.device)).exp()
