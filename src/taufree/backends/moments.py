"""How alike the negatives are: the mean squared cosine of anchors and negatives, and its sampling error.

For anchor i the sum over candidates v_j is sum_j (u_i . v_j)^2 = u_i' B u_i with B = sum_j v_j v_j', a matrix
of D x D: exact, in O(N D^2) instead of O(N^2 D), without any pass over the pairs. Where there are fewer
candidates than dimensions the pairs themselves are cheaper, and fit. With ids or labels the pairs that are no
negatives are anywhere in the matrix and leave pair by pair, some rows at a time, by one product of all pairs.

Everything is in float32 (float64 for float64 inputs), but for the product of all pairs on a GPU, which is of
unit rows in float16. That rounds to 11 bits at random, as TF32 does where it is allowed, which a mean over
all pairs averages out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.numerics import no_autocast, normalize, shortest
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype

MAX_PAIRS = {"cuda": 2**24, "cpu": 2**18}  # computed at a time; on a CPU they stay in its cache
MAX_NUMBERS = 2**22  # of unit rows in memory at a time


@torch.no_grad()
def measure(contrast: Contrast) -> tuple[Tensor, Tensor]:
    """The mean over anchors of the mean squared cosine of their negatives, and its standard error; scalars.

    NaN if there are no negatives. See :func:`summary`.
    """
    squares = Squares(contrast)
    squares.add_own()
    return summary(squares.sums(), contrast.anchors.shape[1])


def of_matrix(contrast: Contrast, cosine: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a plain contrast of several anchors, whose cosines [N, M] are known, 0 for those that are
    no negatives."""
    n, views = contrast.n, contrast.keys is None
    negatives = cosine.shape[1] - (2 if views else 1)
    variance, mean = torch.var_mean(torch.linalg.vecdot(cosine, cosine).double() / negatives, correction=0)
    return mean.clamp(min=1 / contrast.anchors.shape[1]), variance.mul_(4 / n).sqrt_()


def sums(total: Tensor, count: Tensor) -> Tensor:
    """[3]: how many anchors have negatives; the sums of their means, and of these means' squares.

    ``total`` [N] are the anchors' sums of squared cosines over their negatives, ``count`` [N] how many.
    """
    wide = wide_dtype(total.device)
    some = count > 0
    mean = (total.to(wide).clamp(min=0) / count).where(some, 0)
    return torch.stack([some.sum().to(wide), mean.sum(), mean.square().sum()])


def summary(sums: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """Mean and standard error from :func:`sums`, of one process or added up over ranks.

    The mean is a U-statistic of degree two, since each row is in many pairs, so that its standard error is
    twice that of a mean of independent values: 2 std(x_i) / sqrt(N) with x_i the anchors' means. That takes
    the rows for independent: the two views of nt_xent, where they agree, make the error sqrt(2) larger, and
    keys that are independent of the anchors make it sqrt(2) smaller. Many directions in D dimensions have a
    mean of at least 1/D. A few, or orthogonal ones, can have less, which does not mean more dimensions: the
    mean is then taken as 1/D. The error of a single anchor is infinite.
    """
    count, total, squares = sums
    mean = total / count
    error = 2 * ((squares / count - mean.square()).clamp(min=0) / count).sqrt()
    return mean.clamp(min=1 / dimensions), error.masked_fill(count == 1, torch.inf)


class Squares:
    """The anchors' sums of squared cosines over their negatives, [N], while candidates are added."""

    def __init__(self, contrast: Contrast) -> None:
        self.contrast = contrast
        self.dtype = result_dtype(*contrast.inputs)
        self.groups = contrast.groups
        self.u = unit_rows(contrast.anchors, self.dtype)
        self.total, self.count = self.u.new_zeros(2, len(self.u))

    def add_own(self) -> None:
        """All candidates that the contrast itself holds."""
        contrast, n = self.contrast, len(self.u)
        if contrast.in_batch:
            keys = self.u if contrast.keys is None else unit_rows(contrast.keys, self.dtype)
            self._add(keys, contrast.key_groups)
            if self.groups is None:  # no negatives: the positive, and the anchor itself
                shifts = [0, contrast.shift] if contrast.keys is None else [contrast.shift]
                for part in parts_of(n, self.u.shape[1], MAX_NUMBERS):
                    for shift in shifts:
                        others = keys[part]
                        if shift:
                            place = torch.arange(part.start, part.stop, device=keys.device)
                            others = keys[(place + shift) % n]
                        self.total[part] -= (self.u[part] * others).sum(1).square()
                self.count -= len(shifts)
        if contrast.queue is not None:
            self.add(contrast.queue, contrast.queue_ids)
        if contrast.own_negatives is not None:
            own = contrast.own_negatives
            for part in parts_of(n, own.shape[1] * own.shape[2], MAX_NUMBERS):
                cosines = (unit_rows(own[part], self.dtype) * self.u[part, None]).sum(-1)
                self.total[part] += cosines.square().sum(1)
            self.count += own.shape[1]

    def add(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Candidates [M, D]; with their groups [M], those of the anchor's own group do not count."""
        if len(rows):
            self._add(unit_rows(rows, self.dtype), groups)

    def _add(self, v: Tensor, groups: Tensor | None) -> None:
        """Unit rows [M, D]."""
        u, (m, d) = self.u, v.shape
        with no_autocast(v.device):
            if groups is not None and self.groups is not None:
                if v.is_cuda and self.dtype == torch.float32:
                    u, v = u.half(), v.half()
                for part in parts_of(len(u), m, MAX_PAIRS.get(v.device.type, 2**24)):
                    same = self.groups[part, None] == groups
                    cosines = (u[part] @ v.T).masked_fill_(same, 0)
                    self.total[part] += torch.linalg.vector_norm(cosines, dim=1, dtype=self.dtype).square()
                    self.count[part] += m - same.sum(1)
                return
            v = v.T if m < d else v.T @ v
            for part in parts_of(len(u), d, MAX_NUMBERS):
                product = u[part] @ v
                self.total[part] += (product * (product if m < d else u[part])).sum(1)
            self.count += m

    def sums(self) -> Tensor:
        """What :func:`sums` gives for all that was added."""
        return sums(self.total, self.count)


def unit_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Unit rows of that dtype, some at a time: they come from float64, where no square overflows."""
    x = x.detach()
    parts = parts_of(len(x), x[:1].numel(), MAX_NUMBERS)
    if len(parts) == 1:
        return _unit_part(x, dtype)
    unit = x.new_empty(x.shape, dtype=dtype)
    for part in parts:
        unit[part] = _unit_part(x[part], dtype)
    return unit


def _unit_part(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As :func:`normalize` has them, with a third of its kernels where float64 is wide enough."""
    if x.dtype == torch.float64:
        return normalize(x)[0]
    wide = x.to(wide_dtype(x.device))
    return torch.nn.functional.normalize(wide, dim=-1, eps=shortest(x.dtype)).to(dtype)


def parts_of(rows: int, width: int, room: int) -> list[slice]:
    """So many rows of this width at a time that they fit."""
    height = max(1, room // max(1, width))
    if rows <= height:  # without a range, which would make torch.compile compile again for each N
        return [slice(0, rows)]
    return [slice(top, min(top + height, rows)) for top in range(0, rows, height)]
