"""The logit of a link with a formula, in the arithmetic of the tiles."""

from __future__ import annotations

from torch import Tensor

from taufree.links import Link


def offset_of(link: Link) -> float:
    """What is added to 1 - c by the matrix product that makes it: the resolution of a formula."""
    return 0.0 if link.formula is None else link.formula.resolution


def base_and_slope(link: Link, gap: Tensor, rise: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """logit / scale of a link with a formula, and its derivative by c.

    ``gap`` comes with :func:`offset_of` added to it and is overwritten; ``rise`` is 1 + c where c is near.
    """
    formula = link.formula
    assert formula is not None
    if formula.kind == "linear":
        return (gap.neg_().add_(1) if rise is None else rise.sub_(gap).div_(2)), 1.0
    twice = 2 * (1 + formula.resolution)
    r = gap.reciprocal_()
    ratio = r.mul(twice).sub_(1) if rise is None else rise.add_(formula.resolution).mul_(r)
    slope = r.square_().div_(ratio).mul_(twice)
    return ratio.log_(), slope


def at_gain_one(link: Link) -> bool:
    """Whether it is the log-odds at a gain that is known to be 1, without a look at a tensor."""
    scale = None if link.formula is None or link.formula.kind != "log-odds" else link.formula_scale()
    return not isinstance(scale, Tensor) and scale == 1
