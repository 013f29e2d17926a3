"""The sigmoid loss tile by tile: each tile gives its losses and its part of the gradient in one visit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.backends import sigmoid
from taufree.backends.autograd import transforms_named, uncompiled
from taufree.backends.blockwise import engine
from taufree.backends.blockwise.directions import Direction, Side
from taufree.backends.blockwise.engine import BlockwiseEngine, Place
from taufree.backends.blockwise.formulas import at_gain_one
from taufree.backends.blockwise.learned import check_unchanged, learned, link_gradient, values_of
from taufree.backends.blockwise.left_out import LeftOut
from taufree.backends.blockwise.odds_tile import OddsTile
from taufree.backends.blockwise.rows import UnitRows, cut, spans
from taufree.backends.blockwise.softmax_tile import SoftmaxTile
from taufree.backends.blockwise.tiles import keep_freed_memory
from taufree.backends.numerics import full_precision
from taufree.contrast import Contrast, Shard
from taufree.links import Link


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    if torch.compiler.is_compiling() and link.formula is not None:
        return sigmoid.compiled_loss("blockwise", contrast, link, weights)
    return _plain_loss(contrast, link, weights)


@uncompiled
def _plain_loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    assert contrast.bias is not None
    number = contrast.bias.among(contrast.n).number
    with transforms_named("blockwise"):  # in which no scale can be copied
        make, connected, second = engine_of(contrast, link, number)
    return sigmoid.loss(sigmoid.Visit("blockwise", make, second), contrast, connected, weights)


def engine_of(
    contrast: Contrast, link: Link, number: float
) -> tuple[sigmoid.Make, list[Tensor], tuple[Callable[..., Tensor], int]]:
    """What makes an engine for :mod:`taufree.backends.sigmoid`, what its last inputs are, and the loss for
    second derivatives."""
    link, params, connected = learned(link, contrast.anchors)
    values = values_of(params)
    make = partial(BlockwiseSigmoid, link, params, number, values=values)
    return make, connected, sigmoid.by_reference(link, params, number)


class SigmoidTile(SoftmaxTile):
    """Any link, by its logits."""

    def losses(self, bias: float | Tensor) -> Tensor:
        """The sum of the rows' losses."""
        self.logit.add_(bias)
        return softplus(self.logit, threshold=40).sum(1)

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        outer = torch.sigmoid(self.logit).mul_(sides[0].grad.to(self.logit.dtype))
        found: Sequence[Tensor | None] = ()
        if params and self.similarity is not None:
            found = link_gradient(self.link, self.similarity, outer, params)
        elif params and self.base is not None:
            found = [(outer * self.base).sum()]
        self.of_bias = outer.sum()
        return outer.mul_(self.slope), found


class SigmoidOddsTile(OddsTile):
    """LogOdds at gain 1 with a bias that is known: with w the weight and k = exp(bias) the loss is
    log(1 + k w), and its derivative k 2(1+delta) r^2 / (1 + k w), without exponentials."""

    of_bias = None

    def __init__(
        self, link: Link, gap: Tensor, rise: Tensor | None, left_out: LeftOut | None, same: Tensor | None,
        learns: bool,
    ) -> None:  # fmt: skip
        super().__init__(link, gap, rise, left_out, same, learns)
        if self.weight is None:
            self.weight = (self.r * self.twice).sub_(1)
            if left_out is not None:
                left_out.fill(self.weight, 0)

    def losses(self, bias: float | Tensor) -> Tensor:
        assert self.weight is not None
        assert not isinstance(bias, Tensor)
        self.times = math.exp(bias)
        return self.weight.mul_(self.times).log1p().sum(1)

    def coefficients(
        self, sides: Sequence[Side], params: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        assert self.weight is not None
        scale = (self.times * self.twice * sides[0].grad).to(self.r.dtype)
        return self.r.square_().div_(self.weight.add_(1)).mul_(scale), ()


class BlockwiseSigmoid(BlockwiseEngine):
    """See :class:`taufree.backends.sigmoid.SigmoidEngine`."""

    def __init__(
        self, link: Link, params: Sequence[Tensor], number: float, inputs: Sequence[Tensor | None],
        ids: Tensor | None, wanted: Sequence[bool], weights: Tensor | None,
        values: Sequence[Tensor] | None = None,
    ) -> None:  # fmt: skip
        check_unchanged(link, params, values or ())
        anchors, keys, bias = inputs[:3]
        assert anchors is not None
        assert keys is not None
        self.weights = weights
        some = [want and weights is not None for want in wanted]
        super().__init__(
            Contrast(anchors, keys, ids=ids), link, (anchors, keys, None, None),
            params if any(some[3:]) else [], [*some[:2], False, False],
        )  # fmt: skip
        self.bias: float | Tensor = (
            number if bias is None else number + bias.detach().to(anchors.device, self.wide)
        )
        self.bias_grad = torch.zeros((), dtype=self.wide, device=anchors.device) if some[2] else None
        plain = at_gain_one(link) and bias is None and abs(number) <= sigmoid.MAX_PLAIN_BIAS
        self.kind = SigmoidOddsTile if plain else SigmoidTile

    @torch.no_grad()
    def add_own(self) -> None:
        keep_freed_memory()
        with full_precision(self.u.x.device):
            self.positive = self._positive()
            logit = self.link.logit(*self.positive) + self.bias
            count = self.contrast.positive_count()
            self.rows = Direction(self.kind, count, logit, self.weights, self.wide)
            self.rows.losses = softplus(-logit, threshold=40).to(self.wide)
            self.rows.side.target = self.rows.side.grad * torch.sigmoid(-logit)
            self._visit_block(self.v, None)

    @torch.no_grad()
    def add(self, shard: Shard, wanted: bool) -> Tensor | None:
        with full_precision(self.u.x.device):
            block = UnitRows(shard.x, self.dtype, wanted)
            self._visit_block(block, shard.groups)
            return block.grad

    @torch.no_grad()
    def finish(self, of_keys: Tensor | None = None) -> tuple[Tensor, sigmoid.Gradients]:
        if self.weights is None:
            return self.rows.losses, []
        if self.v.grad is not None and of_keys is not None:
            self.v.grad += of_keys
        with full_precision(self.u.x.device):
            anchors, keys, _, _, *params = self._gradients(self.positive, self.rows, None)
        if self.bias_grad is not None:
            self.bias_grad -= self.rows.side.target.sum()
        return self.rows.losses, [anchors, keys, self.bias_grad, *params]

    def _visit_block(self, block: UnitRows, groups: Tensor | None) -> None:
        for rows in spans(self.n, engine.TILE_SIZE):
            side = self.rows.side.at(rows, 0)
            for cols in spans(len(block.x), engine.TILE_SIZE):
                place = Place(rows, cols, block, None, groups)
                tile = self._tile(place)
                assert isinstance(tile, SigmoidTile | SigmoidOddsTile)
                self.rows.losses[cut(rows)] += tile.losses(self.bias)
                if self.weights is not None:
                    self._tile_gradient(place, tile, [side])
                    if self.bias_grad is not None and tile.of_bias is not None:
                        self.bias_grad += tile.of_bias


sigmoid.ENGINES["blockwise"] = BlockwiseSigmoid
