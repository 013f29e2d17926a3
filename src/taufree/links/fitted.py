"""Links whose scale makes the batches most likely: for vectors that are compared with each other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from taufree.links import scalars
from taufree.links.base import Formula, Gain, Link, Measure
from taufree.links.measured import Measured, MeasuredLogOdds
from taufree.links.temperature import LINEAR, Scaled

ROUNDING = 1e-6  # of sums in float32
LARGEST_LOGIT = 690.0  # whose exp float64 holds
FIRST_STEPS = 8  # of Newton's, each a factor of two at most, on the first batch
FAR_IN_A_ROW = 8  # batches that want another gain, all on the same side, after which older ones are forgotten


class Fitted(Measured):
    """What the two share: how the gain is found, by which a link is steeper than the paper's at c = 0."""

    log_gain: Tensor
    curvature: Tensor
    far_in_a_row: Tensor
    largest: float
    """The logit of c = 1 at scale 1."""
    unit = 1.0
    """The scale of gain 1."""

    @property
    def most(self) -> float:
        """The largest ``log_gain``: in a cone that wants more, weights would leave float64."""
        return math.log(LARGEST_LOGIT / (self.unit * self.largest))

    def _begin(self) -> None:
        self.register_buffer("log_gain", torch.zeros(()))
        self.register_buffer("curvature", torch.zeros(()))
        self.register_buffer("far_in_a_row", torch.zeros(()))  # negative where they want more gain
        self.begins = True

    def _measure(self, measure: Measure) -> None:
        if not self.begins:
            self._step(measure)
            return
        for _ in range(FIRST_STEPS):
            self._step(measure)
            self.curvature.zero_()
            self.far_in_a_row.zero_()
        self._step(measure)
        self.begins = self._unmeasured()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}log_gain" in state_dict:  # of a checkpoint from before batches were forgotten
            state_dict.setdefault(f"{prefix}far_in_a_row", torch.zeros(()))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.begins = self._unmeasured()

    def _unmeasured(self) -> bool:
        """Whether no batch has been measured yet; False where the value cannot be read."""
        if torch.compiler.is_compiling() or self.curvature.is_meta:
            return False
        return type(self.curvature.data) is Tensor and not self.curvature.item()

    def _step(self, measure: Measure) -> None:
        link = self._current()
        gain = Gain(self.log_gain, self.curvature, self.far_in_a_row, self.largest, self.most)
        if measure.fit_gain(link, gain):
            return
        found = measure.likelihood(link)
        device = found.gradient.device
        if self.log_gain.device != device:
            for name in ("log_gain", "curvature", "far_in_a_row"):
                setattr(self, name, getattr(self, name).to(device))
        state = self.log_gain, self.curvature, self.far_in_a_row
        gradient, variance, log_gain, curvature, far = scalars.numbers(*found, *state)
        # The second derivative is variance + gradient. Where the gradient is positive, that shrinks towards
        # the minimum: there the gradient counts twice, and else not at all.
        too_steep = scalars.clamp(gradient, 0.0, math.inf)
        # A batch is far where a Newton step of its own, by its true curvature, would change the gain by more
        # than a factor of two. Several in a row on one side: the vectors are no longer those of the older
        # batches, which are forgotten.
        size = abs(gradient)
        side = ((gradient > 0) * 2.0 - 1.0) * (size > math.log(2) * (variance + too_steep))
        far_now = side + far * (far * side > 0)
        remembered = curvature * (abs(far_now) < FAR_IN_A_ROW)
        curvature_now = remembered + variance + 2 * too_steep
        step = scalars.divide(gradient, curvature_now)
        step = scalars.clamp(step, -math.log(2), math.log(2))  # at most a factor of two
        # The batch has infinities, NaN or nothing to compare.
        ignored = (step != step) | (curvature_now == math.inf)
        # Of rows that all agree both derivatives are rounding errors of logits as large as that of c = 1.
        largest = link.formula_scale() * self.largest
        least = ROUNDING * largest
        ignored = ignored | ((size <= least) & (variance <= least * largest))
        moved = scalars.clamp(log_gain - step, 0.0, self.most)
        for buffer, old, new in zip(
            state, (log_gain, curvature, far), (moved, curvature_now, far_now), strict=True
        ):
            scalars.keep(buffer, scalars.where(ignored, old, new))

    def _gain(self) -> float | Tensor:
        found: float | Tensor = scalars.exp(scalars.number(self.log_gain))
        return found


class FittedLogOdds(Fitted, MeasuredLogOdds):
    """The log-odds link with the gain that makes the batches most likely: for vectors that are compared.

        l(c) = g log((1 + c + delta) / (1 - c + delta)),  g = argmin of the loss, at least 1

    Where the vectors themselves are used (search, image and text, ranking), the loss is the goal, and its own
    best scale is a right one. Where the network behind a head is wanted, take ``LogOdds``: see
    docs/guide/choosing-a-link.md.

    Nothing is tuned: the loss is convex in g. The first loss that has anything to compare finds the minimum
    for its batch, so that a network that is trained already is not harmed. Then, before each loss, one Newton
    step follows the minimum for all batches so far. Its gradient is that of this batch, found on up to 128 of
    the anchors with all their candidates, and its curvature the sum over all batches. (A gain that is best
    for each single batch trains worse: docs/studies/matching.md.) Eight batches in a row that all want more
    than twice the gain, or less than half of it, begin a new sum: vectors that lay in a cone before training
    has spread them say nothing of the gain they need then. Laplace's rule smooths the targets, which keeps g
    finite where every positive is ahead.

    ``log_gain`` remembers log g from loss to loss, ``curvature`` the sum, and ``far_in_a_row`` how many
    batches have wanted another gain; all are in the ``state_dict``. The gain starts at 1, the paper's link,
    and never goes below: a flatter link teaches an untrained network little. Nor does the logit of c = 1 go
    above 690, whose weight float64 still holds. In evaluation mode and under
    ``torch.no_grad()`` it stays. A link that has served one training should not serve the next: make a new
    one.

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

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__(resolution)
        self._begin()

    @property
    def largest(self) -> float:  # type: ignore[override]
        return math.log(2 / max(self.resolution, 1e-7))

    def formula_scale(self) -> float | Tensor:
        return self._gain()


class FittedTemperature(Fitted):
    """A temperature that is not set, but makes the batches most likely.

        l(c) = c / tau,  tau = argmin of the loss, from 1/690 to 0.5

    For a network whose cosines are good already, as in the fine-tuning of sentence vectors: there the steep
    end of the log-odds pulls at pairs that are near enough, and near-copies among the negatives weigh more.
    Elsewhere ``FittedLogOdds`` is level or ahead: see docs/studies/matching.md. Fitted as that one is, with
    as little to choose; 0.5 is the temperature that is as steep at c = 0 as the paper's link.

    Examples:
        >>> from taufree import info_nce
        >>> link, generator = FittedTemperature(), torch.Generator().manual_seed(0)
        >>> query = torch.randn(1000, 64, generator=generator)
        >>> loss = info_nce(query, query + torch.randn(1000, 64, generator=generator), link=link)
        >>> 0.03 < link.tau < 0.1
        True
    """

    largest = 1.0
    unit = 2.0

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    @property
    def tau(self) -> float:
        """The temperature the link has now."""
        return 1 / float(self.formula_scale())

    def _current(self) -> Link:
        return Scaled(self.formula_scale())

    @property
    def formula(self) -> Formula:
        return LINEAR

    def formula_scale(self) -> float | Tensor:
        return self.unit * self._gain()

    def extra_repr(self) -> str:
        return f"tau={scalars.text(1 / self.formula_scale())}"
