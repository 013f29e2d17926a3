"""One direction of a contrast: its sums over the tiles, then its losses and what the gradient needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from taufree.stats import Tally

if TYPE_CHECKING:
    from taufree.backends.blockwise.tiles import Tile


@dataclass
class Side:
    """One direction of the contrast: the matrix's rows are the anchors, or its columns; fields [anchors].

    The derivative of the loss with respect to a negative's logit is ``grad * exp(logit - log_z)``,
    and to a labelled positive's ``keep * grad * exp(logit - log_z) - target``: an anchor with a single
    positive has keep 0 and target = grad * (1 - p), so that nothing cancels. With a ``scale`` for each anchor
    these logits are it times those of the tile. ``grad`` is one number where it is the same for all anchors.
    """

    grad: Any
    log_z: Tensor
    keep: Tensor
    target: Tensor
    scale: Tensor | None = None

    @classmethod
    def of_negatives(cls, grad: Tensor | float, log_z: Tensor, dim: int) -> Side:
        """Of anchors whose positives are not in the tile: ``keep`` and ``target`` are not used."""
        log_z = log_z.unsqueeze(1 - dim)
        return cls(grad.unsqueeze(1 - dim) if isinstance(grad, Tensor) else grad, log_z, log_z, log_z)

    def at(self, span: range, dim: int) -> Side:
        """The anchors of a span, laid along dimension ``dim`` of a tile."""
        fields = (self.grad, self.log_z, self.keep, self.target, self.scale)
        cut = (x[span.start : span.stop].unsqueeze(1 - dim) if isinstance(x, Tensor) else x for x in fields)
        return Side(*cut)  # type: ignore[arg-type]


class Closed(NamedTuple):
    """What the complete sums of some anchors give, see :class:`Side`; ``target`` is ``share`` times grad."""

    losses: Tensor
    log_z: Tensor
    keep: Tensor
    share: Tensor

    def side(self, grad: Tensor | float) -> Side:
        return Side(grad, self.log_z, self.keep, grad * self.share)


class Single(NamedTuple):
    """What the complete sums of anchors with one positive each give, [n], or [2, n] both ways.

    Attributes:
        losses: of the anchors.
        z: the sum of their denominators, as the tile's kind has sums.
        missed: 1 - p of the positives; None if they are left out of the denominators.
    """

    losses: Tensor
    z: Tensor
    missed: Tensor | None


def close(count: Tensor, log_s: Tensor, log_w: Tensor, logits: Tensor | None, decoupled: bool) -> Closed:
    """With S and W the summed weights of negatives and positives, the loss is
    log(1 + S/W) + log W - (mean logit of the positives): exact when S/W is tiny. Decoupled it is
    log S - (mean logit of the positives).

    ``logits`` are the summed logits of ``count`` positives each; None where there is one, and W its weight.
    """
    if decoupled:
        some = (count > 0) & (log_s != -torch.inf)
        losses = log_s - (log_w if logits is None else logits / count)
        share = (1 / count).where(some, 0)
        return Closed(losses.where(some, 0), log_s.where(some, torch.inf), torch.zeros_like(log_s), share)
    some, single = count > 0, count == 1
    log_z = torch.logaddexp(log_s, log_w)
    losses = torch.logaddexp(torch.zeros_like(log_s), log_s - log_w)
    if logits is not None:  # one positive: log W is its logit, but for rounding
        losses += (log_w - logits / count).masked_fill_(single, 0)
    share = torch.where(single, (log_s - log_z).exp(), 1 / count).where(some, 0)
    log_z = log_z.where(some, torch.inf)  # or exp(logit) times its grad, 0, is NaN
    return Closed(losses.where(some, 0), log_z, (~single).to(log_z.dtype), share)


def added(terms: Sequence[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


class Direction:
    """One direction's sums while they grow, then its losses and its side; all in ``dtype``, [N].

    ``positive`` holds the positives' logits, or None when they are found by label in the tiles. ``offset`` is
    what the negatives' logits are lowered by, see :class:`Contrast`: once the sums are complete, and in the
    side by a larger ``log_z``, which ``keep`` takes back for the labelled positives. ``scale`` is what each
    anchor's logits are multiplied by, or None.
    """

    offset: Tensor | None = None
    tally: Tally | None = None  # of the statistics, if they are wanted

    def __init__(
        self,
        kind: type[Tile],
        count: Tensor,
        positive: Tensor | None,
        weights: Tensor | None,
        dtype: torch.dtype,
        decoupled: bool = False,
        scale: Tensor | None = None,
    ) -> None:
        self.decoupled, self.scale = decoupled, scale
        self.scale_gradient: Tensor | None = None  # of anchors that another rank holds
        self.kind, self.count = kind, count.to(dtype)
        self.positive = positive if positive is None or scale is None else positive * scale
        zeros = torch.zeros(count.shape, dtype=dtype, device=count.device)
        self.negatives = torch.full_like(zeros, kind.empty_sum)
        self.labelled = torch.full_like(zeros, kind.empty_sum)
        self.logits, self.losses = zeros.clone(), zeros.clone()
        grad = zeros.clone() if weights is None else weights.to(dtype) * (count > 0)
        self.side = Side(grad, zeros.clone(), zeros.clone(), zeros.clone(), scale)

    def add(self, tile: Tile, part: slice, dim: int) -> None:
        among = None if tile.same is None else ~tile.same
        scale = None if self.scale is None else self.scale[part]
        self.negatives[part] = tile.add(self.negatives[part], dim, among, scale)
        if tile.same is not None:
            self.labelled[part] = tile.add(self.labelled[part], dim, tile.same, scale)
            logits = tile.logits(tile.same).sum(dim)
            self.logits[part] += logits if scale is None else logits * scale

    def close(self, part: slice) -> None:
        """Losses and side of the anchors whose sums are complete."""
        log_s, logits = self.kind.log(self.negatives[part]), None
        offset = None if self.offset is None else self.offset[part]
        log_s = log_s if offset is None else log_s - offset
        if self.positive is None:
            log_w, logits = self.kind.log(self.labelled[part]), self.logits[part]
        else:
            log_w = self.positive[part]
        found = close(self.count[part], log_s, log_w, logits, self.decoupled)
        side = self.side
        self.losses[part], side.log_z[part], side.keep[part] = found.losses, found.log_z, found.keep
        side.target[part] = side.grad[part] * found.share
        if offset is not None:
            side.log_z[part] += offset
            side.keep[part] *= offset.exp()
