"""pytorch-metric-learning's contrastive losses without a temperature.

Miners, reducers, regularizers, CrossBatchMemory, SelfSupervisedLoss and DistributedLossWrapper work with them
as with the library's own. The only distance is CosineSimilarity, since a link takes a cosine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree import nt_xent, sup_con
from taufree.dtypes import result_dtype
from taufree.integrations import Linked, as_twin, link_of
from taufree.links import Link
from taufree.masked import check_rows, masked_losses, prepare_by_mask, similarity
from taufree.util.optional import needs

with needs("taufree[metric-learning]", "pytorch_metric_learning"):
    from pytorch_metric_learning import losses as original
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses.base_loss_wrapper import BaseLossWrapper
    from pytorch_metric_learning.utils import common_functions as c_f
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs

Pairs = tuple[Tensor, Tensor, Tensor, Tensor]


class _Free(Linked):
    """What both losses share, a base before the original: the checks, and which pairs there are."""

    temperature: float | None
    distance: Any
    zero_losses: Callable[[], dict[str, Any]]
    all_pairs: Callable[..., Any]
    some_pairs: Callable[..., Any]

    def __init__(
        self,
        temperature: float | None = None,
        *,
        link: Link | None = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        link_of(temperature, link=link)
        super().__init__(temperature=temperature, **kwargs)  # type: ignore[call-arg]
        self._set_options(temperature, link, backend)
        _check_distance(self.distance)

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
        c_f.labels_or_indices_tuple_required(labels, indices_tuple)
        if self.distance.collect_stats:  # it is not called, so its statistics are set here
            self.distance.reset_stats()
            rows = embeddings, ref_emb
            self.distance.set_default_stats(*rows, *map(self.distance.normalize, rows))
        found = None
        if indices_tuple is None and ref_emb is embeddings and ref_labels is labels:
            assert labels is not None
            _, groups, counts = torch.unique(labels, return_inverse=True, return_counts=True)
            if len(counts) > 1 and counts.max() > 1:
                found = self.all_pairs(embeddings, groups, counts)
        if found is None:
            pairs: Pairs = convert_to_pairs(indices_tuple, labels, ref_labels)
            few = not len(pairs[0]) or not len(pairs[2]) or all(len(x) <= 1 for x in pairs)
            if few:  # the library's rule, by which one positive and one negative pair are too few as well
                return self.zero_losses()
            self._check_dense("pairs of a miner, of ref_emb or of unequal labels")
            found = self.some_pairs(embeddings, ref_emb, pairs)
        losses, indices = found
        kind = "pos_pair" if isinstance(indices, tuple) else "element"
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": kind}}


class NTXentLoss(_Free, original.NTXentLoss):
    """`losses.NTXentLoss` with ``temperature=None`` by default.

    Each pair of an anchor a and a positive p has the loss log(1 + S / w), with w the pair's weight and S the
    sum over the negatives of a; other positives of a take no part. Time and memory grow with the number of
    pairs, where the original's grow with positive pairs times negative pairs. Two rows a label, as
    SelfSupervisedLoss gives them, are NT-Xent and cost memory linear in the batch.

    Args:
        temperature: None for the log-odds, else the original's loss.
        link: any other link, instead of a temperature.
        backend: see ``taufree.sup_con``; pairs that are computed densely allow "auto" and "reference".
        kwargs: those of the original: reducer, embedding_regularizer, ...

    Examples:
        >>> loss = NTXentLoss()
        >>> round(loss(torch.eye(4, 8), torch.tensor([0, 0, 1, 1])).item(), 4)
        1.0986
    """

    def all_pairs(
        self, embeddings: Tensor, groups: Tensor, counts: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
        """Losses of all pairs [P] and the pairs, if every label occurs twice."""
        if not (counts == 2).all():
            return None
        order = groups.argsort()
        first, second = order[::2], order[1::2]
        losses = nt_xent(
            embeddings[first], embeddings[second], link=self.link, reduction="none", backend=self.backend
        )
        anchors, positives = torch.cat([first, second]), torch.cat([second, first])
        by_anchor = anchors.argsort()  # the library's order of pairs
        return losses[by_anchor], (anchors[by_anchor], positives[by_anchor])

    def some_pairs(
        self, embeddings: Tensor, ref_emb: Tensor, pairs: Pairs
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Losses of the positive pairs [P] and the pairs; a pair that is listed twice counts twice."""
        a1, p, a2, n = pairs
        gap, rise = similarity(embeddings, ref_emb)
        negatives, positives = torch.zeros(2, *gap.shape, dtype=torch.bool, device=gap.device)
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
        return losses.to(result_dtype(embeddings, ref_emb)), (a1, p)


class SupConLoss(_Free, original.SupConLoss):
    """`losses.SupConLoss` with ``temperature=None`` by default.

    Without a miner and without ``ref_emb`` it is ``taufree.sup_con``, at memory linear in the batch.

    Args:
        temperature: None for the log-odds, else the original's loss.
        link: any other link, instead of a temperature.
        backend: see ``taufree.sup_con``; pairs that are computed densely allow "auto" and "reference".
        kwargs: those of the original: reducer, embedding_regularizer, ...

    Examples:
        >>> loss = SupConLoss()
        >>> round(loss(torch.eye(4, 8), torch.tensor([0, 0, 1, 1])).item(), 4)
        1.0986
    """

    def all_pairs(self, embeddings: Tensor, groups: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of all anchors [N], and their indices."""
        losses = sup_con(embeddings, groups, link=self.link, reduction="none", backend=self.backend)
        return losses, c_f.torch_arange_from_size(embeddings)

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
        return losses, c_f.torch_arange_from_size(embeddings)


def temperature_free(loss: Any) -> Any:
    """A copy of the library's ``loss``, which a wrapper may hold, without its temperature."""
    if isinstance(loss, (BaseLossWrapper, DistributedLossWrapper)):
        found = copy.deepcopy(loss)
        found.loss = temperature_free(found.loss)
        return found
    twins = {original.NTXentLoss: NTXentLoss, original.SupConLoss: SupConLoss}
    found = as_twin(loss, twins)
    _check_distance(found.distance)
    return found


def _check_distance(distance: Any) -> None:
    if not isinstance(distance, CosineSimilarity):
        raise ValueError(f"distance must be CosineSimilarity(), got {type(distance).__name__}.")
    if distance.power != 1 or distance.p != 2:
        got = f"power={distance.power} and p={distance.p}"
        raise ValueError(f"distance must be CosineSimilarity() with power=1 and p=2, got {got}.")
