"""How the loss changes with the scale of all logits, on some of the anchors: what a fitted gain follows.

With l_ij the logits of anchor i's candidates, p_ij their softmax and t_i its target, the derivative of the
loss with respect to the logarithm of the logits' scale is sum_j p_ij l_ij - t_i, and the second derivative is
that plus the variance of l_ij under p_ij. Both are means over anchors: 128 of them, spread evenly over the
batch, say as much as a step needs to know, at a cost that is linear in the number of candidates.

Plain products suffice, in whatever precision torch is set to: 1 - c is half the squared distance of the unit
rows, and the same after one vector has been subtracted from all of them. With the anchors' mean subtracted,
rows that nearly agree are small, and so are their rounding errors. Neither derivative changes when all logits
of an anchor are shifted: relative to one of them, their variance keeps its digits where they nearly agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.moments import parts_of, unit_rows
from taufree.backends.numerics import no_autocast
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Likelihood, Link

MAX_ANCHORS = 128
MAX_NUMBERS = 2**22  # of logits in memory at a time


def summary(sums: Tensor) -> Likelihood:
    """From :meth:`Totals.sums`, of one process or added up over ranks."""
    count, gradient, variance = sums
    return Likelihood(gradient / count, variance / count)


def of_matrix(contrast: Contrast, scale: float | Tensor, logits: Tensor, positive: Tensor) -> Likelihood:
    """What :class:`AnchorSample` gives for a plain contrast whose pairs are known, in a third of the calls.

    ``logits`` [N, M] are those of all candidates divided by ``scale``, whatever they are for an anchor with
    itself, and ``positive`` [N] those of the positives.
    """
    n = contrast.n
    index = _sample(n, logits.device) if n > MAX_ANCHORS else None
    if index is not None:
        logits, positive = logits.index_select(0, index), positive.index_select(0, index)
    return _of_anchors(contrast, index, scale, logits, positive)


def of_rows(contrast: Contrast, link: Link) -> Likelihood:
    """What :class:`AnchorSample` gives for a contrast that is :func:`plain`, in half of the calls."""
    n, anchors, keys = contrast.n, contrast.anchors, contrast.keys
    dtype, index = result_dtype(*contrast.inputs), _sample(n, anchors.device)
    place = (index + contrast.shift) % n if contrast.shift else index
    rows = [anchors] if keys is None else [keys, anchors.index_select(0, index)]
    if len({x.dtype for x in rows}) == 1:  # else each has its own shortest length
        rows = [torch.cat(rows)]
    unit = torch.cat([unit_rows(x, wide_dtype(anchors.device)) for x in rows])
    origin = (unit.index_select(0, index) if keys is None else unit[n:]).mean(0)
    moved, square = _around(origin, unit, dtype)
    half = square.div_(2)
    v, half_v = moved[:n], half[:n]
    if keys is None:
        u, half_u = moved.index_select(0, index), half.index_select(0, index)
    else:
        u, half_u = moved[n:], half[n:]
    own = half_u + half_v.index_select(0, place) - torch.linalg.vecdot(u, v.index_select(0, place))
    gap = (half_u.unsqueeze(1) + half_v).addmm_(u, v.T, alpha=-1)
    # By another product than that of all pairs, which need not be in full precision.
    gap.scatter_(1, place.unsqueeze(1), own.unsqueeze(1)).clamp_(0, 2)
    logits = link.logit(1 - gap, gap, 2 - gap)
    positive = logits.gather(1, place.unsqueeze(1)).squeeze(1)
    return _of_anchors(contrast, index, 1.0, logits, positive)


def plain(contrast: Contrast) -> bool:
    """Whether every anchor has one positive, all other rows are its negatives, and they fit in memory."""
    if not contrast.in_batch or contrast.groups is not None or contrast.queue is not None:
        return False
    if contrast.own_negatives is not None or contrast.bias is not None or contrast.candidate_count < 3:
        return False
    n, d = contrast.anchors.shape
    return n * max(d, min(n, MAX_ANCHORS)) <= MAX_NUMBERS


def _of_anchors(
    contrast: Contrast, index: Tensor | None, scale: float | Tensor, logits: Tensor, positive: Tensor
) -> Likelihood:
    """Of the anchors at ``index``, or of all: from all candidates' logits / ``scale``, whatever they are for
    an anchor with itself, and from the positives'."""
    n, views = contrast.n, contrast.keys is None
    logits = logits - positive.unsqueeze(1)
    scaled = logits * scale
    if views and index is None:
        logits.diagonal().zero_()
        scaled.diagonal().fill_(-torch.inf)
    elif views and index is not None:
        logits.scatter_(1, index[:, None], 0)
        scaled.scatter_(1, index[:, None], -torch.inf)
    share = scaled.softmax(1)
    mean = torch.linalg.vecdot(share, logits)
    # A target is 1 - s of the positive's logit, which is 0, and s of the negatives' mean: sums over all
    # anchors will do.
    negatives, smoothing = logits.shape[1] - (2 if views else 1), 1 / (n + 2)
    wide = wide_dtype(logits.device)
    gradient = torch.sub(mean.sum(dtype=wide), logits.sum(dtype=wide), alpha=smoothing / negatives)
    logits.sub_(mean.unsqueeze(1))
    variance = torch.linalg.vecdot(share.mul_(logits), logits)
    return Likelihood(gradient.mul_(scale / len(mean)), variance.mean(dtype=wide).mul_(scale**2))


def _sample(n: int, device: torch.device) -> Tensor:
    """Up to 128 of n anchors, spread evenly."""
    count = min(n, MAX_ANCHORS)
    return torch.arange(count, device=device) * n // count


class Totals:
    """Sums over the logits of ``count`` anchors, candidates block by block."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.wide = wide_dtype(device)
        zeros = torch.zeros(4, count, dtype=self.wide, device=device)
        self.of_negatives, self.negatives, self.of_positives, self.positives = zeros
        self.origin: Tensor | None = None  # [m], what all logits are relative to
        # By block: the logarithm of the sum of exp(l), and mean and variance of l under exp(l).
        self.blocks: list[tuple[Tensor, Tensor, Tensor]] = []

    def add_positives(self, logits: Tensor) -> None:
        """One positive for each anchor, [m]."""
        if self.origin is None:
            self.origin = logits
        logits = (logits - self.origin).to(self.wide)
        self.blocks.append((logits, logits, torch.zeros_like(logits)))
        self.of_positives, self.positives = self.of_positives + logits, self.positives + 1

    def add(self, logits: Tensor, left_out: Tensor | None, same: Tensor | None) -> None:
        """Candidates' logits [m, k]; those ``left_out`` do not count, those ``same`` are positives."""
        if self.origin is None:
            counted = logits if left_out is None else logits.masked_fill(left_out, 0)
            among = logits.shape[1] if left_out is None else (~left_out).sum(1).clamp(min=1)
            self.origin = counted.sum(1) / among
        logits = logits - self.origin[:, None]
        lowered, counted = logits, logits
        count: Tensor | int = logits.shape[1]
        if left_out is not None:
            lowered, counted = logits.masked_fill(left_out, -torch.inf), logits.masked_fill(left_out, 0)
            count = count - left_out.sum(1)
        total = counted.sum(1).to(self.wide)
        if same is not None:
            same = same if left_out is None else same & ~left_out
            positives = counted.masked_fill(~same, 0).sum(1).to(self.wide)
            self.of_positives, self.positives = self.of_positives + positives, self.positives + same.sum(1)
            total, count = total - positives, count - same.sum(1)
        self.of_negatives, self.negatives = self.of_negatives + total, self.negatives + count
        top = lowered.amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
        weight = (lowered - top).exp()
        z = weight.sum(1)
        some = z != 0  # and NaN
        share = weight / z.where(some, 1)[:, None]
        mean = (share * counted).sum(1)
        variance = (share * (counted - mean[:, None]).square()).sum(1)
        log_z = (z.log() + top.squeeze(1)).where(some, -torch.inf)
        self.blocks.append((log_z.to(self.wide), mean.to(self.wide), variance.to(self.wide)))

    def sums(self, anchors: int) -> Tensor:
        """[3]: how many anchors have positives and negatives; the sums of their derivatives and variances.

        ``anchors`` says how many the loss has in all, for Laplace's rule.
        """
        log_z, means, variances = (torch.stack(parts) for parts in zip(*self.blocks, strict=True))
        share = log_z.softmax(0)
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)
        some = (self.negatives > 0) & (self.positives > 0)
        gradient = (mean - self._targets(anchors)).where(some, 0)
        return torch.stack([some.sum().to(mean), gradient.sum(), variance.where(some, 0).sum()])

    def _targets(self, anchors: int) -> Tensor:
        smoothing = 1 / (anchors + 2)
        target = (1 - smoothing) * (self.of_positives / self.positives)
        found: Tensor = target + smoothing * (self.of_negatives / self.negatives)
        return found


class SigmoidTotals(Totals):
    """The same of the sigmoid loss: with p the sigmoid of logit and bias, the expectation of l is the sum of
    p l over an anchor's candidates, and the variance that of p (1 - p) l^2."""

    def __init__(self, count: int, device: torch.device, bias: Tensor | float) -> None:
        super().__init__(count, device)
        self.bias = bias
        self.mean, self.variance = torch.zeros(2, count, dtype=self.wide, device=device)

    def add_positives(self, logits: Tensor) -> None:
        self.of_positives, self.positives = self.of_positives + logits, self.positives + 1
        self._add(logits[:, None].to(self.wide))

    def add(self, logits: Tensor, left_out: Tensor | None, same: Tensor | None) -> None:
        if left_out is not None:  # whose logit, 0, adds nothing to the sums
            logits = logits.masked_fill(left_out, 0)
            self.negatives = self.negatives - left_out.sum(1)
        self.of_negatives = self.of_negatives + logits.sum(1).to(self.wide)
        self.negatives = self.negatives + logits.shape[1]
        self._add(logits)

    def _add(self, logits: Tensor) -> None:
        share = torch.sigmoid(logits + self.bias)
        weighted = share * logits
        self.mean = self.mean + weighted.sum(1).to(self.wide)
        self.variance = self.variance + (weighted * (1 - share) * logits).sum(1).to(self.wide)

    def sums(self, anchors: int) -> Tensor:
        some = (self.negatives > 0) & (self.positives > 0)
        gradient = (self.mean - self._targets(anchors)).where(some, 0)
        return torch.stack([some.sum().to(gradient), gradient.sum(), self.variance.where(some, 0).sum()])


class AnchorSample:
    """Some anchors of a contrast, and the totals of their logits while candidates are added."""

    def __init__(self, contrast: Contrast, link: Link) -> None:
        self.contrast, self.link, n = contrast, link, contrast.n
        device = contrast.anchors.device
        self.dtype = result_dtype(*contrast.inputs)
        self.index = _sample(n, device)
        count = len(self.index)
        unit = self._unit(contrast.anchors[self.index])
        self.origin = unit.mean(0)
        self.u, self.square = self._around_origin(unit)
        self.groups = None if contrast.groups is None else contrast.groups[self.index]
        self.totals = Totals(count, device)
        if contrast.bias is not None:
            number, learned, _ = contrast.bias.among(n)
            bias = number if learned is None else number + learned.detach().to(device)
            self.totals = SigmoidTotals(count, device, bias)

    def add_own(self) -> None:
        """All candidates that the contrast itself holds."""
        contrast = self.contrast
        keys = contrast.anchors if contrast.keys is None else contrast.keys
        if contrast.labels is None:
            positives = keys[(self.index + contrast.shift) % contrast.n]
            self.totals.add_positives(self._row_by_row(positives[:, None]).squeeze(1))
        if contrast.in_batch:
            self._add(keys, contrast.key_groups, own=True)
        if contrast.queue is not None:
            self.add(contrast.queue, contrast.queue_ids)
        if contrast.own_negatives is not None and contrast.own_negatives.shape[1]:
            self.totals.add(self._row_by_row(contrast.own_negatives[self.index]), None, None)

    def add(self, rows: Tensor, groups: Tensor | None) -> None:
        """Candidates [M, D] from elsewhere, none of them an anchor of this contrast or its key."""
        if len(rows):
            self._add(rows, groups, own=False)

    def sums(self, anchors: int) -> Tensor:
        """See :meth:`Totals.sums`."""
        return self.totals.sums(anchors)

    def _add(self, rows: Tensor, groups: Tensor | None, own: bool) -> None:
        contrast = self.contrast
        for part in parts_of(len(rows), len(self.index), MAX_NUMBERS):
            v, square = self._around_origin(self._unit(rows[part]))
            with no_autocast(v.device):
                squares = (self.square / 2)[:, None] + square / 2
                gap = squares.addmm_(self.u, v.T, alpha=-1).clamp_(0, 2)
            masks, same = [], None
            if own:
                place = torch.arange(part.start, part.stop, device=rows.device)
                if contrast.keys is None:
                    masks.append(self.index[:, None] == place)
                if contrast.labels is None:
                    masks.append(((self.index + contrast.shift) % contrast.n)[:, None] == place)
            if groups is not None and self.groups is not None:
                same = self.groups[:, None] == groups[part]
                if contrast.labels is None:  # equal ids are left out
                    masks, same = [*masks, same], None
            left_out = masks[0] if len(masks) == 1 else torch.stack(masks).any(0) if masks else None
            self.totals.add(self.link.logit(1 - gap, gap, 2 - gap), left_out, same)

    def _row_by_row(self, x: Tensor) -> Tensor:
        """The logits of each anchor with rows [m, K, D] of its own."""
        v, square = self._around_origin(self._unit(x))
        gap = ((self.square[:, None] + square) / 2 - (self.u[:, None] * v).sum(-1)).clamp(0, 2)
        return self.link.logit(1 - gap, gap, 2 - gap)

    def _around_origin(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Rows u' = u - origin, and the squares s with which 1 - u.v = (s_u + s_v)/2 - u'.v'.

        A square is |u'|^2, plus 1 - |u|^2 for a row too short to be normalised.
        """
        return _around(self.origin, unit, self.dtype)

    def _unit(self, x: Tensor) -> Tensor:
        return unit_rows(x, wide_dtype(x.device))


def _around(origin: Tensor, unit: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See :meth:`AnchorSample._around_origin`."""
    rows = (unit - origin).to(dtype)
    return rows, rows.square().sum(-1) + (1 - unit.square().sum(-1)).to(dtype)
