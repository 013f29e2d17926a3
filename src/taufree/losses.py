"""The losses as modules: keyword arguments in ``__init__``, tensors in ``forward``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from taufree.backends.autograd import exporting, transformed
from taufree.checks import (
    check_bias,
    check_denominator,
    check_flags,
    check_hardness,
    check_options,
    without_temperature,
)
from taufree.contrast import Bias
from taufree.distributed import Gathering, GatherLike
from taufree.functional import info_nce, nt_xent, sigmoid_nce, sup_con
from taufree.links import LinkLike
from taufree.stats import Stats, Tracker


class _Loss(Gathering):
    """What the losses share; the only state is what the link learns.

    With ``track=True`` a call leaves the statistics of its batch in ``stats``.
    """

    stats: Stats | None = None
    balanced = False  # of modules that were pickled before there was such an option

    @without_temperature
    def __init__(
        self,
        *,
        link: LinkLike = None,
        decoupled: bool = False,
        balanced: bool = False,
        hardness: float = 0,
        scale_hardness: bool = True,
        reduction: str = "mean",
        gather_distributed: GatherLike = False,
        backend: str = "auto",
        track: bool = False,
    ) -> None:
        super().__init__(gather_distributed)
        check_flags(scale_hardness=scale_hardness, track=track)
        check_denominator(decoupled, balanced)
        self.link = check_options(link, reduction, backend)
        self.decoupled = decoupled
        self.balanced = balanced
        self.hardness = check_hardness(hardness)
        self.scale_hardness = scale_hardness
        self.reduction = reduction
        self.backend = backend
        self.track = track

    def _call(self, function: Callable[..., Tensor], *tensors: Tensor | None, **options: Any) -> Tensor:
        """The loss, by its function; keeps the statistics if they are wanted."""
        if not self.track or exporting():  # an exported module has no attributes to set
            return function(*tensors, **self._options(), **options)
        tracker = None if transformed() else Tracker()
        loss = function(*tensors, **self._options(), **options, _tracker=tracker)
        scale = math.nan if self.link.formula is None else self.link.formula_scale()
        scale = scale.mean() if isinstance(scale, Tensor) else scale  # where each anchor has one
        columns = 0 if tensors[0] is None else tensors[0].shape[-1]
        self.stats = None if tracker is None else tracker.stats(scale, columns, loss)
        return loss

    def _options(self) -> dict[str, Any]:
        return {
            "link": self.link,
            **({"decoupled": True} if self.decoupled else {}),
            **({"balanced": True} if self.balanced else {}),
            **({"hardness": self.hardness, "scale_hardness": self.scale_hardness} if self.hardness else {}),
            "reduction": self.reduction,
            "gather_distributed": self.gather_distributed,
            "backend": self.backend,
        }

    def extra_repr(self) -> str:
        options = "decoupled=True, " if self.decoupled else "balanced=True, " if self.balanced else ""
        if self.hardness:
            options += f"hardness={self.hardness}, scale_hardness={self.scale_hardness}, "
        gathers = f", {gathers}" if (gathers := super().extra_repr()) else ""
        track = ", track=True" if self.track else ""
        return f"{options}reduction={self.reduction!r}{gathers}, backend={self.backend!r}{track}"


class InfoNCE(_Loss):
    """Module form of ``taufree.info_nce``, where the arguments are explained.

    Args:
        track: whether a call leaves what a training loop prints in ``stats``, a ``taufree.metrics.Stats``;
            None before the first call, and after one that torch.func follows; torch.export leaves it alone.

    Examples:
        >>> import torch
        >>> loss = InfoNCE(symmetric=True)
        >>> query = torch.eye(4, requires_grad=True)
        >>> loss(query, torch.eye(4)).backward()
        >>> loss
        InfoNCE(
          symmetric=True, in_batch=None, reduction='mean', backend='auto'
          (link): LogOdds(gain=1.0, resolution=0.0001)
        )
        >>> loss = InfoNCE(link=0.1, track=True)
        >>> value = loss(torch.eye(4), torch.eye(4) + 0.5)
        >>> {name: round(x.item(), 3) for name, x in loss.stats._asdict().items()}
        {'accuracy': 1.0, 'positive_cosine': 0.866, 'negative_cosine': 0.289, 'gain': 10.0, 'dimension': 4.0}
    """

    @without_temperature
    def __init__(
        self,
        *,
        symmetric: bool = False,
        in_batch: bool | None = None,
        link: LinkLike = None,
        decoupled: bool = False,
        balanced: bool = False,
        hardness: float = 0,
        scale_hardness: bool = True,
        reduction: str = "mean",
        gather_distributed: GatherLike = False,
        backend: str = "auto",
        track: bool = False,
    ) -> None:
        super().__init__(
            link=link,
            decoupled=decoupled,
            balanced=balanced,
            hardness=hardness,
            scale_hardness=scale_hardness,
            reduction=reduction,
            gather_distributed=gather_distributed,
            backend=backend,
            track=track,
        )
        check_flags(symmetric=symmetric)
        check_flags(or_none=True, in_batch=in_batch)
        self.symmetric = symmetric
        self.in_batch = in_batch

    def forward(
        self,
        query: Tensor,
        positive_key: Tensor,
        negative_keys: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        negative_ids: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; shapes as in ``info_nce``."""
        return self._call(
            info_nce,
            query,
            positive_key,
            negative_keys,
            symmetric=self.symmetric,
            in_batch=self.in_batch,
            ids=ids,
            weights=weights,
            negative_ids=negative_ids,
        )

    def extra_repr(self) -> str:
        return f"symmetric={self.symmetric}, in_batch={self.in_batch}, {super().extra_repr()}"


class NTXent(_Loss):
    """Module form of ``taufree.nt_xent``; ``track`` as in ``InfoNCE``.

    Examples:
        >>> import torch
        >>> NTXent()(torch.eye(4), torch.eye(4)).item() < 1e-3
        True
    """

    def forward(
        self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch; shapes as in ``nt_xent``."""
        return self._call(nt_xent, view_a, view_b, ids=ids, weights=weights)


class SupCon(_Loss):
    """Module form of ``taufree.sup_con``; ``track`` as in ``InfoNCE``.

    Examples:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]])
        >>> round(SupCon()(z, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.0302
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        keys: Tensor | None = None,
        key_labels: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; shapes as in ``sup_con``."""
        return self._call(sup_con, embeddings, labels, keys, key_labels, weights=weights)


class SigmoidNCE(_Loss):
    """Module form of ``taufree.sigmoid_nce``.

    Args:
        bias: as in ``sigmoid_nce``, or "learnable": the prior log-odds plus a parameter that begins at 0, so
            that nothing has to be chosen. A parameter is learned as it is.
        link, reduction, gather_distributed, backend: see ``sigmoid_nce``; the names "fitted", "calibrated"
            and "learnable" are links too.

    Examples:
        >>> import torch
        >>> from taufree import LearnableTemperature
        >>> SigmoidNCE(link=LearnableTemperature(0.1), bias=nn.Parameter(torch.tensor(-10.0)))
        SigmoidNCE(
          bias=-10.0, reduction='mean', backend='auto'
          (link): LearnableTemperature(tau=0.1, max_scale=100.0)
        )
        >>> round(SigmoidNCE()(torch.eye(4), torch.eye(4)).item(), 2)
        0.86
    """

    @without_temperature
    def __init__(
        self,
        *,
        link: LinkLike = None,
        bias: float | Tensor | str | None = None,
        reduction: str = "mean",
        gather_distributed: GatherLike = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            link=link, reduction=reduction, gather_distributed=gather_distributed, backend=backend
        )
        if isinstance(bias, str):
            if bias != "learnable":
                raise ValueError(
                    f'bias must be a number, a tensor of one, None or "learnable", got {bias!r}.'
                )
            self.bias_above_prior = nn.Parameter(torch.zeros(()))
        else:
            check_bias(bias)
        self.bias = bias

    def forward(
        self, query: Tensor, key: Tensor, ids: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch; shapes as in ``sigmoid_nce``."""
        bias: Any = self.bias
        if bias == "learnable":
            bias = Bias(0.0, self.bias_above_prior, True)
        return sigmoid_nce(query, key, ids=ids, bias=bias, weights=weights, **self._options())

    def extra_repr(self) -> str:
        bias = self.bias.item() if isinstance(self.bias, Tensor) else self.bias
        return f"bias={bias!r}, {super().extra_repr()}"
