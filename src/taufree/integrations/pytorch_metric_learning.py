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

from taufree import nt_xent, sup_con
from taufree.dtypes import result_dtype
from taufree.integrations import Linked, as_twin, link_of
from taufree.links import LinkLike
from taufree.masked import check_rows, masked_losses, prepare_by_mask, similarity
from taufree.util.optional import needs

with needs("taufree[metric-learning]", "pytorch_metric_learning"):
    from pytorch_metric_learning import losses as original
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses.base_loss_wrapper import BaseLossWrapper
    from pytorch_metric_learning.utils import common_functions as c_f
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs

Pairs = tuple[Tensor, Tensor, Tensor, Tensor]


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
            rows = embeddings, ref_emb
            self.distance.set_default_stats(*rows, *map(self.distance.normalize, rows))
        pairwise = None
        if indices_tuple is None and ref_emb is embeddings and ref_labels is labels:
            assert labels is not None
            _, groups, counts = torch.unique(labels, return_inverse=True, return_counts=True)
            if len(counts) > 1 and counts.max() > 1:
                pairwise = self.all_pairs(embeddings, groups, counts)
        if pairwise is None:
            pairs: Pairs = convert_to_pairs(indices_tuple, labels, ref_labels)
            few = not len(pairs[0]) or not len(pairs[2]) or all(len(x) <= 1 for x in pairs)
            if few:  # the library's rule, by which one positive and one negative pair are too few as well
                return self.zero_losses()
            self._check_dense("pairs of a miner, of ref_emb or of unequal labels")
            pairwise = self.some_pairs(embeddings, ref_emb, pairs)
        losses, indices = pairwise
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


class NTXentLoss(_Free, original.NTXentLoss):
    """`losses.NTXentLoss` with ``temperature=None`` by default.

    Each pair of an anchor a and a positive p has the loss log(1 + S / w), with w the pair's weight and S the
    sum over the negatives of a; other positives of a take no part. Time and memory grow with the number of
    pairs, where the original's grow with positive pairs times negative pairs. Two rows a label, as
    SelfSupervisedLoss gives them, are NT-Xent and cost memory linear in the batch.

    Args:
        temperature: None for the log-odds, else the original's loss; a parameter is learned.
        link: instead of a temperature, any other link or its name.
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
        return losses.to(result_dtype(embeddings, ref_emb)), (a1, p)


class SupConLoss(_Free, original.SupConLoss):
    """`losses.SupConLoss` with ``temperature=None`` by default.

    Without a miner and without ``ref_emb`` it is ``taufree.sup_con``, at memory linear in the batch.

    The default reducer averages the losses that are not 0. In the original's arithmetic the loss of an anchor
    with one positive far ahead of its negatives rounds to 0; with a temperature it is 0 here too, so that the
    same anchors count.

    Args:
        temperature: None for the log-odds, else the original's loss; a parameter is learned.
        link: instead of a temperature, any other link or its name.
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
        if self._near_zero(losses):
            order = groups.argsort()
            order = order[(counts == 2)[groups[order]]]  # both rows of such a label, one after the other
            losses = self._rounded(losses, embeddings, embeddings, order, order.view(-1, 2).flip(1).flatten())
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
        if self._near_zero(losses):
            single = (positives.sum(1) == 1).nonzero().squeeze(1)
            partner = positives[single].int().argmax(1)
            losses = self._rounded(losses, embeddings, ref_emb, single, partner)
        return losses, c_f.torch_arange_from_size(embeddings)

    def _near_zero(self, losses: Tensor) -> bool:
        """Whether the original's arithmetic may round one of the losses to 0; it has logits up to 2 / tau.

        Without a temperature there is no original to follow.
        """
        if self.temperature is None:
            return False
        return bool((losses.detach() * self.temperature < 8 * torch.finfo(losses.dtype).eps).any())

    def _rounded(self, losses: Tensor, a: Tensor, b: Tensor, rows: Tensor, partners: Tensor) -> Tensor:
        """``losses`` with 0 where the original's arithmetic rounds them to 0, with their gradient.

        The original's logits are (c - 1) / tau. With m the positive's and S the sum of the negatives' weights
        over the positive's, its loss is the float nearest to m + log(1 + S), minus m.

        Args:
            rows, partners: anchors with one positive, and these; with several no loss is near 0.
        """
        with torch.no_grad():
            unit = (normalize(z.to(losses.dtype)) for z in (a[rows], b[partners]))
            cosines = torch.linalg.vecdot(*unit)
            m = (cosines - 1) / torch.as_tensor(self.temperature).to(losses)
            zero = torch.zeros_like(losses, dtype=torch.bool)
            zero[rows] = m + (1 + losses[rows].expm1()).log() <= m
        return torch.where(zero, losses - losses.detach(), losses)


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
