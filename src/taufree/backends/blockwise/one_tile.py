"""A matrix of one tile, as small batches have it: the same arithmetic in a third of the calls.

All rows are normalised together, and there are no strips, no parts and no second visit. What is rare goes to
:class:`.engine.BlockwiseEngine`: labels, hardness, negatives of one anchor each, rows that are zero, very
short or very long, and negatives that nearly agree with their anchor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends.blockwise.tiles import LeftOut, Side, link_gradient, near, omitted, tile_kind
from taufree.backends.numerics import shortest
from taufree.contrast import Contrast
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Link
from taufree.stats import Tally, add_tile

LENGTHS = (1e-150, 1e150)  # of rows whose squares are in float64's range


def fits(contrast: Contrast, pairs: int) -> bool:
    """Whether it is a matrix of at most so many pairs, of a kind that :func:`run` has.

    Some rows it still leaves to the engine.
    """
    if contrast.own_negatives is not None or contrast.labels is not None or contrast.hardness:
        return False
    if contrast.decoupled and (
        contrast.ids is not None or contrast.n <= 2
    ):  # where there may be no negatives
        return False
    if contrast.queue is not None and (contrast.symmetric or contrast.ids is not None):
        return False
    return 0 < contrast.n * contrast.candidate_count <= pairs


@torch.no_grad()
def run(
    contrast: Contrast, link: Link, inputs: Sequence[Tensor | None], params: Sequence[Tensor],
    weights: Tensor | None,
) -> tuple[Tensor, list[Tensor | None]] | None:  # fmt: skip
    """Losses and gradients as :meth:`.engine.BlockwiseEngine.run` gives them; None where it must be asked."""
    n, views = contrast.n, contrast.keys is None
    given = [x for x in inputs[:3] if x is not None]
    dtype, wide = result_dtype(*given), wide_dtype(given[0].device)
    exact = (given[0] if len(given) == 1 else torch.cat(given)).to(wide, copy=True)
    length = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    low, high = length.aminmax()
    if not (max(LENGTHS[0], *(shortest(x.dtype) for x in given)) <= low.item() and high.item() <= LENGTHS[1]):
        return None
    inverse = length.reciprocal_()
    unit = exact.mul_(inverse).to(dtype)

    first = 0 if views else n if contrast.in_batch else 2 * n
    u, candidates, kind = unit[:n], unit[first:], tile_kind(link)
    offset = kind.offset(link)
    gap = torch.addmm(unit.new_full((1,), 1 + offset), u, candidates.T, alpha=-1)
    left_out = LeftOut.of(contrast, range(n), range(n)) if contrast.in_batch else None
    if left_out is not None:
        left_out.fill(gap, 1)
    if near(gap, offset):
        return None
    if contrast.tracker is not None:
        tallies = [Tally.empty(u, wide) for _ in range(2 if contrast.symmetric else 1)]
        places = [(tally, slice(None), 1 - dim) for dim, tally in enumerate(tallies)]
        add_tile(gap, 1 + offset, omitted(left_out, gap), None, places)
    tile = kind(link, gap, None, left_out, None, bool(params))

    # The pairs of each row with its positive; of two views the second half has those of the first.
    pairs = contrast.shift if views else n
    a, b = exact[:pairs], exact[pairs : 2 * pairs]
    minus, plus = a - b, a + b
    gap, rise = torch.linalg.vecdot(minus, minus).div_(2), torch.linalg.vecdot(plus, plus).div_(2)
    positive = ((rise - gap).div_(2), gap, rise)
    logit = link.logit(*positive)
    if views:
        logit = logit.repeat(2)
    if contrast.tracker is not None:
        for tally in tallies:
            tally.add_positives(positive[0].repeat(2) if views else positive[0])
        sums = [tally.sums(contrast.positive_count()) for tally in tallies]
        contrast.tracker.sums = torch.stack(sums).sum(0)

    nothing = logit.new_full((), kind.empty_sum)
    sums = [tile.add(nothing, dim) for dim in ((1, 0) if contrast.symmetric else (1,))]
    log_s = kind.log(torch.stack(sums).to(wide))
    if contrast.decoupled:
        log_z, losses = log_s, (log_s - logit).mean(0)
    else:
        log_z = torch.logaddexp(log_s, logit)
        losses = softplus(log_s - logit, threshold=700).mean(0)  # exact below, and exp overflows at 709
    if weights is None:
        return losses, []

    grad = weights.to(wide) / len(sums)
    sides = [
        Side(grad.unsqueeze(1 - i), z.unsqueeze(1 - i), grad, grad) for i, z in enumerate(log_z.unbind())
    ]
    slopes, learned = tile.coefficients(sides, params)
    back = slopes.T @ u
    out = back.addmm_(slopes, unit) if views else torch.cat([slopes @ candidates, back])
    if not views and not contrast.in_batch:  # the keys are positives alone
        out = torch.cat([out[:n], out.new_zeros(n, out.shape[1]), out[n:]])

    missed = ((log_s - log_z).exp_() * grad).sum(0).neg_()  # dL/dlogit of the positives
    if views:
        missed = missed[:pairs] + missed[pairs:]
    found = [torch.zeros_like(p, dtype=wide) for p in params]
    for parts in (learned, link_gradient(link, positive, missed, params) if params else ()):
        for total, part in zip(found, parts, strict=False):
            if part is not None:
                total += part
    pull = (missed * link.slope(*positive))[:, None]
    sign = torch.ones_like(pull).copysign_(positive[0][:, None])  # never 0, also at right angles
    # b - a for b (b + a if they are opposite): the same but for the part along a, and exact where they agree.
    apart = torch.addcmul(b, a, sign, value=-1)
    out[:pairs] += apart * pull
    out[pairs : 2 * pairs] -= apart.mul_(sign * pull)
    radial = torch.linalg.vecdot(out, unit).unsqueeze(-1)
    out.addcmul_(unit, radial, value=-1).mul_(inverse.to(dtype))
    split = iter(torch.split(out, [len(x) for x in given]))
    return losses, [*(None if x is None else next(split) for x in inputs[:4]), *found]
