"""pytorch-metric-learning's contrastive losses without a temperature.

Miners, reducers, regularizers, CrossBatchMemory, SelfSupervisedLoss and DistributedLossWrapper work with them
as with the library's own. A link takes a cosine, so another distance needs a temperature, and then the
library computes the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus
from torch.utils.checkpoint import checkpoint

from taufree import sup_con
from taufree.dtypes import result_dtype
from taufree.integrations import Linked, as_twin, link_of
from taufree.links import Link, LinkLike
from taufree.masked import check_rows, masked_losses, paired_logits, prepare_by_mask, similarity
from taufree.util.optional import needs

with needs("taufree[metric-learning]", "pytorch_metric_learning"):
    from pytorch_metric_learning import losses as original
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses.base_loss_wrapper import BaseLossWrapper
    from pytorch_metric_learning.utils import common_functions as c_f
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs

Pairs = tuple[Tensor, Tensor, Tensor, Tensor]
MAX_NUMBERS = 2**22  # of positive pairs' rows in memory at a time
MAX_KEPT_NUMBERS = 2**18  # of those that are kept for the backward


class Labelled:
    """Rows with labels, and the keys they are compared with: ``ref_emb``, or None for each other.

    Attributes:
        labels, key_labels: numbers from 0 on, [N] and [M].
        positives, negatives: [N], how many each row has.
    """

    def __init__(self, rows: Tensor, labels: Tensor, keys: Tensor | None, key_labels: Tensor | None) -> None:
        n = len(rows)
        every = labels if key_labels is None else torch.cat([labels, key_labels])
        _, groups = torch.unique(every, return_inverse=True)
        self.rows, self.keys, self.labels = rows, keys, groups[:n]
        self.key_labels = None if keys is None else groups[n:]
        self.among = self.labels if self.key_labels is None else self.key_labels
        alone = int(keys is None)
        count = self.among.bincount(minlength=int(groups.max()) + 1)[self.labels] if len(groups) else groups
        self.positives, self.negatives = count - alone, len(self.among) - count

    def pairs(self) -> tuple[Tensor, Tensor]:
        """All pairs of a row and a positive, in the library's order."""
        order = self.among.argsort(stable=True)
        count = self.positives + int(self.keys is None)
        first = torch.searchsorted(self.among[order], self.labels)
        a = torch.arange(len(self.labels), device=order.device).repeat_interleave(count)
        begins = (count.cumsum(0) - count).repeat_interleave(count)
        p = order[first[a] + torch.arange(len(a), device=order.device) - begins]
        return (a, p) if self.keys is not None else (a[a != p], p[a != p])


class _Free(Linked):
    """What both losses share, a base before the original: the checks, and which pairs there are."""

    temperature: float | Tensor | None
    distance: Any
    zero_losses: Callable[[], dict[str, Any]]
    all_pairs: Callable[..., Any]
    some_pairs: Callable[..., Any]

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        *,
        link: LinkLike = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        link_of(temperature, link=link)
        super().__init__(temperature=temperature, **kwargs)  # type: ignore[call-arg]
        self._set_options(temperature, link, backend)
        self._left_to_the_library()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        check_rows(embeddings=embeddings, ref_emb=embeddings if ref_emb is None else ref_emb)
        for name, values in (("labels", labels), ("ref_labels", ref_labels)):
            if not isinstance(values, Tensor | None):
                raise TypeError(f"{name} must be a tensor, got {type(values).__name__}.")
        loss: Tensor = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)  # type: ignore[misc]
        return loss

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        if self._left_to_the_library():
            found: dict[str, Any] = super().compute_loss(  # type: ignore[misc]
                embeddings, labels, indices_tuple, ref_emb, ref_labels
            )
            return found
        c_f.labels_or_indices_tuple_required(labels, indices_tuple)
        if self.distance.collect_stats:  # it is not called, so its statistics are set here
            self.distance.reset_stats()
            both = embeddings, ref_emb
            self.distance.set_default_stats(*both, *map(self.distance.normalize, both))
        if indices_tuple is None:
            assert labels is not None
            alone = ref_labels is labels
            rows = Labelled(embeddings, labels, None if alone else ref_emb, None if alone else ref_labels)
            if _too_few(int(rows.positives.sum()), int(rows.negatives.sum())):
                return self.zero_losses()
            losses, indices = self.all_pairs(rows)
        else:
            pairs: Pairs = convert_to_pairs(indices_tuple, labels, ref_labels)
            if _too_few(len(pairs[0]), len(pairs[2])):
                return self.zero_losses()
            self._check_dense("pairs of a miner or of CrossBatchMemory")
            losses, indices = self.some_pairs(embeddings, ref_emb, pairs)
        kind = "pos_pair" if isinstance(indices, tuple) else "element"
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind}}

    def _left_to_the_library(self) -> bool:
        """Whether the library computes the loss: of another distance, or by a ``_compute_loss`` of one's own.

        It does so with a temperature alone; without one this raises.
        """
        other, kind = _other_than_cosine(self.distance), type(self)
        changed = kind._compute_loss not in OWN_LOSSES  # type: ignore[attr-defined]
        if self.temperature is None and other:
            raise ValueError(
                "distance must be CosineSimilarity() with power=1 and p=2 unless a temperature is given, "
                f"since a link takes a cosine; got {other}."
            )
        if self.temperature is None and changed:
            raise ValueError(
                f"temperature must be given with a _compute_loss of one's own, that of {kind.__name__}: the "
                "library calls it with cosines, and a link would have no effect; got None."
            )
        if other or changed:
            self._check_dense("another distance or _compute_loss than the library's")
        return bool(other or changed)

    def _near_zero(self, losses: Tensor) -> bool:
        """Whether the original's arithmetic may round one of the losses to 0; it has logits up to 2 / tau.

        Without a temperature there is no original to follow.
        """
        if self.temperature is None:
            return False
        return bool((losses.detach() * self.temperature < 8 * torch.finfo(losses.dtype).eps).any())

    def _rounded(self, losses: Tensor, offset: Tensor | float = 0.0) -> Tensor:
        """``losses`` with 0 where the original's arithmetic rounds them to 0, with their gradient: some
        reducers leave out losses of 0, and then the same ones count.

        With S the sum of the negatives' weights over the positive's, its loss is the float nearest to
        offset + log(1 + S), minus the offset.
        """
        if not self._near_zero(losses):
            return losses
        with torch.no_grad():
            zero = offset + (1 + losses.expm1()).log() <= offset
        return torch.where(zero, losses - losses.detach(), losses)


class NTXentLoss(_Free, original.NTXentLoss):
    """`losses.NTXentLoss` with ``temperature=None`` by default.

    Each pair of an anchor a and a positive p has the loss log(1 + S / w), with w the pair's weight and S the
    sum over the negatives of a; other positives of a take no part. Memory grows with the batch and the number
    of positive pairs, where the original's grows with positive pairs times negative pairs.

    With a temperature a loss that the original's arithmetic rounds to 0 is 0 here too, so that reducers which
    average the losses that are not 0 average the same ones.

    Args:
        temperature: None for the log-odds, else the original's loss; a parameter is learned.
        link: instead of a temperature, any other link or its name.
        backend: see ``taufree.sup_con``; pairs of a miner, computed densely, allow "auto" and "reference".
        kwargs: those of the original: reducer, embedding_regularizer, ...

    Examples:
        >>> loss = NTXentLoss()
        >>> round(loss(torch.eye(4, 8), torch.tensor([0, 0, 1, 1])).item(), 4)
        1.0986
    """

    def all_pairs(self, rows: Labelled) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Losses of all pairs [P] and the pairs.

        log S of an anchor is its decoupled loss, log S minus the mean logit of its positives, plus that mean.
        With one positive for each anchor the loss is ``sup_con`` as it is.
        """
        a, p = rows.pairs()
        single = bool((rows.positives <= 1).all())
        losses = sup_con(
            rows.rows,
            rows.labels,
            rows.keys,
            rows.key_labels,
            link=self.link,
            decoupled=not single,
            reduction="none",
            backend=self.backend,
        )
        if single:
            return self._rounded(losses[a]), (a, p)
        keys = rows.rows if rows.keys is None else rows.keys
        positive = self._positive_logits(rows.rows, keys, a, p)
        total = torch.zeros(len(losses), dtype=positive.dtype, device=a.device).index_add(0, a, positive)
        log_s = losses + total / rows.positives.clamp(min=1)
        found = softplus(log_s[a] - positive, threshold=700)  # exact below, and exp overflows at 709
        return self._rounded(found.where(rows.negatives[a] > 0, 0).to(losses.dtype)), (a, p)

    def _positive_logits(self, rows: Tensor, keys: Tensor, a: Tensor, p: Tensor) -> Tensor:
        """[P], by the link that the loss has prepared; some pairs at a time."""
        size = max(1, MAX_NUMBERS // max(1, rows.shape[1]))
        parts = zip(torch.split(a, size), torch.split(p, size), strict=True)
        return torch.cat([_checkpointed(self.link, rows, keys, i, j) for i, j in parts])

    def some_pairs(
        self, embeddings: Tensor, ref_emb: Tensor, pairs: Pairs
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Losses of the positive pairs [P] and the pairs; a pair that is listed twice counts twice."""
        a1, p, a2, n = pairs
        gap, rise = similarity(embeddings, ref_emb)
        negatives = torch.zeros_like(gap, dtype=torch.bool)
        positives = torch.zeros_like(negatives)
        negatives[a2, n], positives[a1, p] = True, True
        link = prepare_by_mask(self.link, gap, rise, negatives, positives, embeddings.shape[1])
        positive, negative = (
            link.logit((rise[at] - gap[at]) / 2, gap[at], rise[at]) for at in ((a1, p), (a2, n))
        )
        top = negative.new_full((len(gap),), -torch.inf).scatter_reduce(0, a2, negative.detach(), "amax")
        none = top == -torch.inf
        top = top.masked_fill(none, 0)
        total = torch.zeros_like(top).index_add(0, a2, (negative - top[a2]).exp())
        total = (total.masked_fill(none, 1).log() + top).masked_fill(none, -torch.inf)
        losses = softplus(total[a1] - positive, threshold=700)  # exact below, and exp overflows at 709
        return self._rounded(losses.to(result_dtype(embeddings, ref_emb))), (a1, p)


class SupConLoss(_Free, original.SupConLoss):
    """`losses.SupConLoss` with ``temperature=None`` by default.

    Without a miner it is ``taufree.sup_con``, at memory linear in the batch and ``ref_emb``.

    The default reducer averages the losses that are not 0. In the original's arithmetic the loss of an anchor
    with one positive far ahead of its negatives rounds to 0; with a temperature it is 0 here too, so that the
    same anchors count.

    Args:
        temperature: None for the log-odds, else the original's loss; a parameter is learned.
        link: instead of a temperature, any other link or its name.
        backend: see ``taufree.sup_con``; pairs of a miner, computed densely, allow "auto" and "reference".
        kwargs: those of the original: reducer, embedding_regularizer, ...

    Examples:
        >>> loss = SupConLoss()
        >>> round(loss(torch.eye(4, 8), torch.tensor([0, 0, 1, 1])).item(), 4)
        1.0986
    """

    def all_pairs(self, rows: Labelled) -> tuple[Tensor, Tensor]:
        """Losses of all anchors [N], and their indices."""
        losses = sup_con(
            rows.rows,
            rows.labels,
            rows.keys,
            rows.key_labels,
            link=self.link,
            reduction="none",
            backend=self.backend,
        )
        if rows.keys is not None:  # of an easy anchor the positive is the highest
            losses = self._rounded(losses)
        elif self._near_zero(losses):
            a, p = rows.pairs()
            one = rows.positives[a] == 1
            offset = self._offsets(losses, rows.rows[a[one]], rows.rows[p[one]], 1.0)
            losses = self._rounded(losses, torch.zeros_like(losses).index_copy(0, a[one], offset))
        return losses, c_f.torch_arange_from_size(rows.rows)

    def some_pairs(self, embeddings: Tensor, ref_emb: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Losses of all anchors [N], and their indices; a pair that is listed twice counts once."""
        shape = len(embeddings), len(ref_emb)
        positives = torch.zeros(shape, dtype=torch.bool, device=embeddings.device)
        candidates = torch.zeros_like(positives)
        positives[pairs[0], pairs[1]] = True
        candidates[pairs[2], pairs[3]] = True
        if (positives & candidates).any():
            raise ValueError("indices_tuple must not name a pair as a positive and as a negative one.")
        losses = masked_losses(embeddings, ref_emb, positives, positives | candidates, self.link)
        if self._near_zero(losses):
            single = (positives.sum(1) == 1).nonzero().squeeze(1)
            partner = positives[single].int().argmax(1)
            unit = [normalize(z.detach().to(losses.dtype)) for z in (embeddings[single], ref_emb)]
            highest = (unit[0] @ unit[1].T).amax(1)
            offset = self._offsets(losses, embeddings[single], ref_emb[partner], highest)
            losses = self._rounded(losses, torch.zeros_like(losses).index_copy(0, single, offset))
        return losses, c_f.torch_arange_from_size(embeddings)

    def _offsets(self, losses: Tensor, a: Tensor, b: Tensor, highest: Tensor | float) -> Tensor:
        """(c - highest) / tau of rows of a with their one positive, rows of b, for :meth:`_rounded`: the
        original's logits are relative to the highest cosine of an anchor, that with itself where it is its
        own candidate. With several positives no loss is near 0."""
        with torch.no_grad():
            u, v = (normalize(z.to(losses.dtype)) for z in (a, b))
            cosines = (u * v).sum(1)  # of vecdot autocast would round the inputs
            offsets: Tensor = (cosines - highest) / torch.as_tensor(self.temperature).to(losses)
            return offsets


def _too_few(positives: int, negatives: int) -> bool:
    """The library's rule, by which one positive and one negative pair are too few as well."""
    return not positives or not negatives or max(positives, negatives) <= 1


def _checkpointed(link: Link, rows: Tensor, keys: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The logits of some pairs; if they are many, their rows are gathered again for the backward instead of
    kept, which takes longer than the whole loss of a small batch."""
    if not torch.is_grad_enabled() or i.numel() * rows.shape[1] <= MAX_KEPT_NUMBERS:
        return paired_logits(rows[i], keys[j], link)
    found: Tensor = checkpoint(lambda x, y: paired_logits(x[i], y[j], link), rows, keys, use_reentrant=False)
    return found


def temperature_free(loss: Any, link: LinkLike = None) -> Any:
    """A copy of the library's ``loss``, which a wrapper may hold, without its temperature; see
    ``taufree.temperature_free``. Of ``MultipleLosses`` those that have no twin stay as they are."""
    if isinstance(loss, (BaseLossWrapper, DistributedLossWrapper)):
        found = copy.deepcopy(loss)
        found.loss = temperature_free(found.loss, link)
        return found
    if isinstance(loss, original.MultipleLosses):
        found = copy.deepcopy(loss)
        members = dict(found.losses.named_children())
        chosen = [
            name for name, one in members.items() if any(isinstance(x, tuple(TWINS)) for x in one.modules())
        ]
        if not chosen:
            kinds = ", ".join(type(one).__name__ for one in members.values())
            raise TypeError(f"loss must hold an NTXentLoss or a SupConLoss, got MultipleLosses of {kinds}.")
        for name in chosen:
            setattr(found.losses, name, temperature_free(members[name], link))
        return found
    found = as_twin(loss, TWINS, link)
    found._left_to_the_library()
    return found


TWINS = {original.NTXentLoss: NTXentLoss, original.SupConLoss: SupConLoss}
OWN_LOSSES = [kind._compute_loss for kind in (original.NTXentLoss, original.SupConLoss)]


def _other_than_cosine(distance: Any) -> str | None:
    """What the distance is, unless it is the cosine."""
    kind = type(distance)
    used = ("forward", "compute_mat", "normalize", "maybe_normalize")
    if not isinstance(distance, DotProductSimilarity) or any(
        getattr(kind, name) is not getattr(DotProductSimilarity, name) for name in used
    ):
        return kind.__name__
    settings = {name: getattr(distance, name) for name in ("normalize_embeddings", "power", "p")}
    if settings == {"normalize_embeddings": True, "power": 1, "p": 2}:
        return None
    return f"{kind.__name__}({', '.join(f'{key}={value}' for key, value in settings.items())})"
