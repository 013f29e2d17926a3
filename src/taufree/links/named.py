"""Links made from something else: from the argument ``link`` of losses and drop-ins, or from a formula."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import TypeAlias

from torch import Tensor

from taufree.links.base import Formula, Link
from taufree.links.fitted import FittedLogOdds, FittedTemperature
from taufree.links.log_odds import LogOdds, with_gain
from taufree.links.measured import CalibratedLogOdds
from taufree.links.temperature import LearnableTemperature, Scaled, Temperature

LinkLike: TypeAlias = Link | float | Tensor | str | None

NAMED_LINKS: dict[str, Callable[[], Link]] = {
    "free": LogOdds,
    "fitted": FittedLogOdds,
    "fitted-temperature": FittedTemperature,
    "calibrated": CalibratedLogOdds,
    "learnable": LearnableTemperature,
}


def as_link(link: LinkLike, default: Callable[[], Link] = LogOdds, *, kept: bool = True) -> Link:
    """The link that an argument means; None means the default.

    Args:
        link: a link, a positive number or a tensor for that temperature, or a name.
        kept: whether the caller keeps the link for the next loss, as modules do. A link that learns or
            measures can only be named then: made anew for each loss, it would know nothing of the one before.
    """
    if isinstance(link, Link):
        return link
    if link is None:
        return default()
    if isinstance(link, Tensor) or (isinstance(link, Real) and not isinstance(link, bool)):
        return Temperature(link)
    if isinstance(link, str):
        if link not in NAMED_LINKS:
            names = ", ".join(map(repr, NAMED_LINKS))
            raise ValueError(f"link must be one of the names {names}, a temperature or a Link, got {link!r}.")
        made = NAMED_LINKS[link]()
        if not kept and made.state_dict():
            raise ValueError(
                "link must be a Link that you keep from loss to loss, such as "
                f"{type(made).__name__}(), or the loss a module; "
                f"got the name {link!r}, with which a function would begin anew each time."
            )
        return made
    got = f"the class {link.__name__}" if isinstance(link, type) else type(link).__name__
    raise TypeError(
        "link must be a taufree.Link such as LogOdds() or Temperature(0.5), a temperature or a name, "
        f"got {got}."
    )


def by_direction(link: Link, n: int) -> tuple[Link, Link]:
    """The link of the n anchors that are rows of the matrix of similarities, and of the n that are columns;
    they differ only where a link has a scale for each anchor."""
    if not link.per_anchor:
        return link, link
    formula, scale = link.formula, link.formula_scale()
    assert formula is not None
    assert isinstance(scale, Tensor)
    return from_formula(formula, scale[:n]), from_formula(formula, scale[-n:])


def from_formula(formula: Formula, scale: Tensor) -> Link:
    """The link of this formula with this scale, which its logit is differentiable with respect to."""
    return with_gain(scale, formula.resolution) if formula.kind == "log-odds" else Scaled(scale)
