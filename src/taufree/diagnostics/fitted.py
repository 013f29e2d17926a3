"""The gain that makes given embeddings most likely, which ``FittedLogOdds`` follows while training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from taufree import LogOdds
from taufree.diagnostics.anchors import AnchorBlock

_STEPS = 100
_TOLERANCE = 1e-9
_ROUNDING = 5e-3
"""Log-odds that spread by less are equal: near cosine 1 float32 rounds them at 1e-3."""


@torch.no_grad()
def fitted_gain(read: Callable[[], Iterable[AnchorBlock]], anchors: int) -> float:
    """The gain g >= 0 at which the mean loss of the blocks is smallest, to convergence in float64.

    With a the log-odds of an anchor's candidates, s the softmax of g a and y the targets, the loss is convex:

        dL/dg = mean(E_s[a] - E_y[a]),    d2L/dg2 = mean(Var_s[a])

    The positives share the target (n + 1) / (n + 2) evenly and the negatives the rest, with n anchors:
    Laplace's rule, as in Platt's scaling. It keeps g finite where every positive is ahead. The gain is 0
    where the positives are no more similar than all candidates on average. ``FittedLogOdds`` takes no less
    than 1.

    Args:
        read: gives the blocks anew each time it is called.
        anchors: n, the anchors of the batch; the blocks may hold a sample of them.
    """
    unscaled = LogOdds()
    slope, curvature = _derivatives(0.0, read(), anchors, unscaled)
    if not slope < 0 or curvature < _ROUNDING**2:
        return 0.0
    # In log g, where one step can reach any size of g; the first value is Newton's step from g = 0.
    low, x, high = -math.inf, math.log(-slope / curvature), math.inf
    for _ in range(_STEPS):
        gain = math.exp(x)
        slope, curvature = _derivatives(gain, read(), anchors, unscaled)
        slope, curvature = gain * slope, gain * gain * curvature
        low, high = (x, high) if slope < 0 else (low, x)
        # The second derivative in log g is curvature + slope, which may be negative far from the minimum.
        step = -slope / (curvature + abs(slope)) if slope else 0.0
        if abs(step) < _TOLERANCE:
            break
        x = x + step if low < x + step < high else (low + high) / 2
    return math.exp(x)


def _derivatives(
    gain: float, blocks: Iterable[AnchorBlock], anchors: int, link: LogOdds
) -> tuple[float, float]:
    """dL/dg and d2L/dg2 at this gain."""
    slope, curvature, seen = 0.0, 0.0, 0
    smoothing = 1 / (anchors + 2)
    for block in blocks:
        cosine = torch.cat([block.positive, block.negative], dim=1).double()
        width = block.positive.shape[1]
        target = torch.empty_like(cosine)
        target[:, :width] = (1 - smoothing) * block.counts.double() / block.positives.double().unsqueeze(1)
        target[:, width:] = smoothing / block.negatives.double().unsqueeze(1)
        target.scatter_(1, width + block.group, 0.0)
        odds = link(cosine)
        share = (gain * odds).masked_fill_(target == 0, -torch.inf).softmax(dim=1)
        mean = (share * odds).sum(1)
        slope += (mean - (target * odds).sum(1)).sum().item()
        curvature += (share * (odds - mean.unsqueeze(1)).square_()).sum().item()
        seen += len(cosine)
    return slope / seen, curvature / seen
