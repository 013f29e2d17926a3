"""What a link learns, and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from taufree.links import Link, from_formula


def parameters(link: Link) -> list[Tensor]:
    """A link's parameters; a copy by nn.DataParallel has plain tensors in their place."""
    copies = [x for part in link.modules() for x in getattr(part, "_former_parameters", {}).values()]
    return [*link.parameters(), *copies]


class Learned(NamedTuple):
    """The link that tiles are computed with, what it is differentiated with respect to, and the tensors of
    torch's graph that get these derivatives.

    A link with a formula learns by its scale alone, of which the tiles have a copy.
    """

    link: Link
    params: list[Tensor]
    connected: list[Tensor]


def learned(link: Link, like: Tensor) -> Learned:
    """For embeddings on the device of ``like``. Raises if a link without a formula has no parameter and yet
    its logit requires a gradient, which a plain tensor would silently not get."""
    formula = link.formula
    if formula is not None:
        scale = link.formula_scale()
        if not isinstance(scale, Tensor):
            return Learned(link, [], [])
        copied = scale.detach().clone()
        if not (scale.requires_grad and torch.is_grad_enabled()):
            return Learned(from_formula(formula, copied), [], [])
        return Learned(from_formula(formula, copied.requires_grad_()), [copied], [scale])
    found = [p for p in parameters(link) if p.requires_grad]
    if not found and torch.is_grad_enabled():
        zero, one = torch.arange(2.0, dtype=torch.float32, device=like.device)
        if link.logit(zero, one, one).requires_grad:
            raise ValueError(
                f"link must have all that it learns as its parameters, got a {type(link).__name__} with "
                'another tensor that requires a gradient; make that a parameter, or use backend="reference".'
            )
    return Learned(link, found, found)


def link_gradient(
    link: Link, similarity: tuple[Tensor, Tensor, Tensor], outer: Tensor, params: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The derivatives of sum(outer * logit) with respect to the link's parameters or its formula's scale."""
    if link.formula is not None:  # also within an operator, where torch records no graph
        base = from_formula(link.formula, outer.new_ones(())).logit(*similarity)
        return [(outer * base).sum()]
    with torch.enable_grad():
        logit = link.logit(*similarity)
        if not logit.requires_grad:  # no parameter has a part in it
            return [None] * len(params)
        return torch.autograd.grad(logit, list(params), outer.to(logit.dtype), allow_unused=True)


def values_of(params: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().clone() for p in params]


def check_unchanged(link: Link, params: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Raises unless the link, which the backward calls again, has the parameters of the forward."""
    if link.formula is not None:  # whose scale is a copy
        return
    now = {id(p) for p in parameters(link)}
    for p, value in zip(params, values, strict=True):
        alike = (p.dtype, p.device, p.shape) == (value.dtype, value.device, value.shape)
        if id(p) not in now or not alike or not torch.allclose(p, value, rtol=0, atol=0, equal_nan=True):
            raise RuntimeError(
                "The link's parameters must be those of the forward until the backward, got changed ones; "
                'call backward before the optimizer steps, or use backend="reference".'
            )
