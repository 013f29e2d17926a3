"""Batch norms whose batch is that of all ranks together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from taufree.distributed import Ranks


def synchronised(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with every batch norm made one over all ranks; names and values stay.

    On GPUs that is PyTorch's own, which does not run on CPUs.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-any-return, no-untyped-call]
    if isinstance(module, _BatchNorm):
        shared = SharedBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        shared.load_state_dict(module.state_dict())
        return shared
    for name, part in module.named_children():
        setattr(module, name, synchronised(part, device))
    return module


class SharedBatchNorm(_BatchNorm):
    r"""A batch norm over the rows of all ranks, by two all-reduces.

    With sums over the rows and places of all ranks, M in number, for each channel

    .. math:: \mu = \frac{1}{M} \sum x, \quad \sigma^2 = \frac{1}{M} \sum (x - \mu)^2, \quad
        y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,

    so that ranks may have shares of different sizes.

    Shape:
        x: [n, C, ...], this rank's rows.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of dimensions will do."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        ranks, channels = Ranks(x.device), x.shape[1]
        places, shape = [axis for axis in range(x.dim()) if axis != 1], [1, channels] + [1] * (x.dim() - 2)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_full((1,), x.numel() / channels)
        sums, total = _Sum.apply(torch.cat([wide.sum(places), count]), ranks).split([channels, 1])
        mean = sums / total
        centred = wide - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(places), ranks) / total
        self._track(mean.detach(), (variance * total / (total - 1)).detach())
        y: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class _Sum(torch.autograd.Function):
    """The sum over all ranks; as each of them goes on with it, its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(x.clone(memory_format=torch.contiguous_format), "the statistics of a batch norm")

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(upstream, ctx.ranks), None
