"""The sigmoid loss over all ranks: the keys go round once, and what comes back are their gradients.

A query's loss is complete on its own rank, and a pair's gradient needs no other pair. So there is neither a
sum nor a normaliser to exchange, and a scalar loss exchanges nothing in its backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from taufree.backends import sigmoid
from taufree.backends.blockwise import sigmoid as blockwise
from taufree.backends.sharded.step import ShardedStep
from taufree.contrast import Contrast
from taufree.distributed import Ranks
from taufree.dtypes import wide_dtype
from taufree.links import Link


def loss(
    contrast: Contrast, link: Link, ranks: Ranks, sizes: Sequence[int], groups: Tensor | None,
    weights: Tensor | float | None, backend: str,
) -> Tensor:  # fmt: skip
    """The loss over all ranks; own rows' losses for "none". ``groups`` are all ranks' ids."""
    assert contrast.bias is not None
    step = ShardedStep(contrast, ranks, sizes, [0] * ranks.world, sizes, groups, weights)
    link = link.prepare(step)
    if backend == "triton":
        from taufree.backends.fused import sigmoid as fused  # needs Triton

        make, connected = fused.engine_of(contrast, link, contrast.bias.number)
    else:
        make, connected, _ = blockwise.engine_of(contrast, link, contrast.bias.number)
    return sigmoid.loss(OverRanks(backend, make, step), contrast, connected, weights)


class OverRanks(sigmoid.Visit):
    """The visit of own queries to the keys of all ranks."""

    def __init__(self, backend: str, make: sigmoid.Make, step: ShardedStep) -> None:
        super().__init__(backend, make)
        self.step, self.factor = step, step.ranks.world

    def __call__(
        self, inputs: Sequence[Tensor | None], ids: Tensor | None, wanted: Sequence[bool],
        weights: Tensor | None,
    ) -> tuple[Tensor, sigmoid.Gradients]:  # fmt: skip
        keys = self.step.keys
        assert keys is not None
        keys.start()
        engine = self.make(inputs, ids, wanted, weights)
        engine.add_own()
        give_back = weights is not None and wanted[1]
        of_keys = keys.visit(
            lambda rows, span: engine.add(self.step.shard(rows, span), give_back),
            engine.dtype if give_back else None,
        )
        return engine.finish(of_keys)

    def total(self, losses: Tensor, weights: Tensor) -> Tensor:
        own = super().total(losses.to(wide_dtype(losses.device)), weights)
        return self.step.ranks.sum(own, "the losses of all ranks")
