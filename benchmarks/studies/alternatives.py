"""Other ways to a scale, tried beside CalibratedLogOdds (docs/studies/calibration.md) and FittedLogOdds
(docs/studies/matching.md), and other losses of the free link, beside NT-Xent (docs/studies/long-training.md).

Links for a study, trained as ``alternatives:Centred`` and so on. Those of calibration look at all pairs at
once and wait for the device. :class:`Full` and :class:`WithCount` take mean(c^2) as CalibratedLogOdds does,
smoothed by its error; :class:`Centred` and :class:`Median`, whose errors are others, follow each batch. As
there, no nu is larger than the columns, and none smaller than 3, the free link.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import betaincinv, betaln
from torch import Tensor
from torch.nn.functional import softplus

from taufree import CalibratedLogOdds, FittedLogOdds, Link, LogOdds, info_nce
from taufree.backends.measure import ContrastMeasure
from taufree.backends.numerics import normalize
from taufree.baselines import Scheme
from taufree.contrast import Contrast
from taufree.diagnostics.theory.closed_forms import null_log_odds
from taufree.links import Measure
from taufree.links.log_odds import with_gain

CELLS = 1024
"""Intervals of the table of log-odds; the cubics between are good to 1e-7 for nu up to 128."""


def negatives(contrast: Contrast) -> Tensor:
    """The cosines of all anchors with their negatives in the batch, one after the other."""
    if contrast.queue is not None or contrast.own_negatives is not None or contrast.labels is not None:
        raise ValueError("negative_keys and labels are not for the links of this study.")
    u = normalize(contrast.anchors.detach())[0]
    v = u if contrast.keys is None else normalize(contrast.keys.detach())[0]
    everyone = range(contrast.n)
    left_out = contrast.left_out(everyone, everyone)
    return (u @ v.T)[~left_out]


class Centred(CalibratedLogOdds):
    r"""The gain of CalibratedLogOdds with :math:`\nu = 1 / (\overline{c^2} - \bar c^2)`.

    A part of the cosine that all pairs share moves all logits much alike, which a softmax does not see; how
    far the cosines spread about it distinguishes the negatives.
    """

    def _measure(self, measure: ContrastMeasure) -> None:
        moment = self.moment_of(negatives(measure.contrast))
        self.moment.copy_(moment.clamp(min=1 / measure.contrast.anchors.shape[1]))

    def moment_of(self, cosines: Tensor) -> Tensor:
        """What stands for 1/nu."""
        return cosines.var(correction=0)


class Median(Centred):
    r"""The gain of CalibratedLogOdds with the nu whose random directions have the batch's median of |c|.

    That median m solves :math:`I(m^2; 1/2, (\nu-1)/2) = 1/2`. It does not depend on how large the larger half
    is: the few negatives far out, of the anchor's own class perhaps, do not count by their squares.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nu = np.geomspace(3, 1e5, 1024)
        self.median = np.sqrt(betaincinv(0.5, (self.nu - 1) / 2, 0.5))

    def moment_of(self, cosines: Tensor) -> Tensor:
        median = max(cosines.abs().median().item(), self.median[-1])
        return cosines.new_tensor(1 / np.interp(1 / median, 1 / self.median, self.nu))


class WithCount(CalibratedLogOdds):
    r"""A gain from the number N of negatives too: :math:`g = \max(1, \sqrt{2 \ln N} / (2\sigma))` with
    :math:`\sigma^2 = \overline{c^2}`, that is :math:`\tau = \sigma / \sqrt{2 \ln N}` at c = 0.

    Take the logits for N independent Gaussian ones, s x with s = sigma/tau. About N exp(-x^2/2) of them are
    near x, with the weight exp(s x), and the product is largest at x = s. For s < sqrt(2 ln N) there are many
    such; beyond, none is expected, and the sum consists of its few largest terms. The gain is this threshold.
    """

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(()))

    def prepare(self, measure: ContrastMeasure) -> LogOdds:
        if self.training:
            self.count.fill_(negatives(measure.contrast).numel() / measure.contrast.n)
        return super().prepare(measure)

    def _current(self) -> LogOdds:
        gain = (2 * self.count.double().clamp(min=1).log() / self.moment).sqrt() / 2
        return with_gain(gain.clamp(min=1), self.resolution)


class Full(CalibratedLogOdds):
    """The whole log-odds in nu dimensions, of which CalibratedLogOdds takes the slope at c = 0 alone."""

    def _current(self) -> Link:
        return NullLogOdds(max(3.0, self.dimension), self.resolution)


class NullLogOdds(Link):
    r"""The log-odds that the cosine of two random directions in nu dimensions is below c/(1+delta).

    Tabulated over t = atanh(c/(1+delta)), half the logit of LogOdds, where they are 2t for nu = 3 and else a
    smooth curve that ends with the slope nu - 1; with the derivative f/(F(1-F)) dc/dt, and cubics in between.
    """

    def __init__(self, nu: float, resolution: float) -> None:
        super().__init__()
        self.atanh = LogOdds(0.5, resolution)
        self.end = math.atanh(1 / (1 + resolution))
        self.width = 2 * self.end / CELLS
        t = np.linspace(-self.end, self.end, CELLS + 1)
        a, log_odds = (nu - 1) / 2, null_log_odds(np.tanh(t), nu)
        size = np.abs(log_odds)  # 1/(F(1-F)) = exp(size) (1 + exp(-size))^2; f dc/dt = (1-c^2)^a / B(1/2, a)
        slope = np.exp(size + 2 * np.log1p(np.exp(-size)) - 2 * a * np.log(np.cosh(t)) - betaln(0.5, a))
        self.values, self.steps = torch.as_tensor(log_odds), torch.as_tensor(slope * self.width)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        place = (self.atanh.logit(cosine.double(), gap.double(), rise.double()) + self.end) / self.width
        cell = place.detach().floor().clamp(0, CELLS - 1).nan_to_num().long()
        values, steps = self.values.to(cosine.device), self.steps.to(cosine.device)
        x, begin, d_begin, d_end = place - cell, values[cell], steps[cell], steps[cell + 1]
        rise_of_cell = values[cell + 1] - begin
        curve = 3 * rise_of_cell - 2 * d_begin - d_end + x * (d_begin + d_end - 2 * rise_of_cell)
        return (begin + x * (d_begin + x * curve)).to(cosine.dtype)


class Coarse(LogOdds):
    """The free link with a hundredfold resolution, whose gradient is smaller for close positives."""

    def __init__(self) -> None:
        super().__init__(resolution=1e-2)


class EachBatch(FittedLogOdds):
    """FittedLogOdds whose gain follows each batch by itself, as if there had been none before."""

    def _measure(self, measure: Measure) -> None:
        self.curvature.zero_()
        super()._measure(measure)


class Coarser(LogOdds):
    """The free link with a thousandfold resolution."""

    def __init__(self) -> None:
        super().__init__(resolution=1e-1)


class Decoupled(Scheme):
    """NT-Xent of the free link without the positive in the denominator: its gradient never vanishes."""

    def __init__(self) -> None:
        super().__init__(LogOdds())

    def forward(self, view_a: Tensor, view_b: Tensor) -> Tensor:
        return self._decoupled(view_a, view_b, None, self.link).mean()


class WithPrior(Scheme):
    """NT-Xent of the free link whose positive is weighted by the number of negatives: nothing to choose.

    The softmax asks which of all candidates is the positive, and says 1/2 once the positive weighs as much as
    all N negatives together. With the prior log N it says so once the positive weighs as much as an average
    one, however many there are.
    """

    def __init__(self) -> None:
        super().__init__(LogOdds())

    def forward(self, view_a: Tensor, view_b: Tensor) -> Tensor:
        against = self._decoupled(view_a, view_b, None, self.link)
        return softplus(against - math.log(max(1, len(against) - 2))).mean()


class FewCandidates(Scheme):
    """NT-Xent of the free link in which 64 rows of the batch, drawn anew for each step, are the negatives of
    all anchors."""

    def __init__(self) -> None:
        super().__init__(LogOdds())

    def forward(self, view_a: Tensor, view_b: Tensor) -> Tensor:
        n, rows = len(view_a), torch.cat([view_a, view_b])
        drawn = torch.rand(2 * n, device=rows.device).topk(min(64, 2 * n)).indices
        own = torch.arange(2 * n, device=rows.device) % n  # neither view of a sample is its own negative
        return info_nce(rows, rows.roll(-n, 0), rows[drawn], link=self.link, ids=own, negative_ids=own[drawn])
