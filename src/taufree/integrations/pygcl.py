"""PyGCL's InfoNCE without a temperature."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from taufree import info_nce, nt_xent
from taufree.checks import check_flags
from taufree.integrations import Linked, as_twin, link_of
from taufree.links import LearnableTemperature, LinkLike, Temperature
from taufree.masked import check_rows, masked_losses
from taufree.util.optional import needs

with needs("taufree[pygcl]", "GCL"):
    from GCL import losses as original
    from GCL.models import DualBranchContrast, SingleBranchContrast


SMALL_BATCH = 256  # rows whose masks are compared as a whole: fewer calls, and memory of their size


class InfoNCE(Linked, original.InfoNCE):
    """`GCL.losses.InfoNCE` with ``tau=None`` by default, for SingleBranchContrast and DualBranchContrast.

    With ``intraview_negs=True`` DualBranchContrast gives the anchors as negatives too, and by its mask each
    anchor is a negative of its own, or by an extra mask a positive. Without a temperature that pair would
    outweigh all others, so it is left out; with one it stays, as in PyGCL. BootstrapContrast and
    WithinEmbedContrast give no negatives, so neither loss works there.

    One positive a row at the same place and every other sample a negative, as in GRACE, is NT-Xent or InfoNCE
    and costs no memory beyond the masks; any other masks are computed densely. A pair in both masks counts
    once (in PyGCL twice), an anchor without a positive has loss 0 (in PyGCL NaN).

    Args:
        tau: None for the log-odds, else PyGCL's loss; a parameter is learned.
        link: instead of ``tau``, any other link or its name. As PyGCL's losses are no modules, the parameters
            of a contrast model are without those of its link.
        balanced: see ``taufree.nt_xent``; an attribute too.
        backend: see ``taufree.info_nce``; masks that are computed densely allow "auto" and "reference".
    """

    temperature_name = "tau"
    balanced = False

    def __init__(
        self,
        tau: float | Tensor | None = None,
        *,
        link: LinkLike = None,
        balanced: bool = False,
        backend: str = "auto",
    ) -> None:
        link_of(tau, "tau", link)
        check_flags(balanced=balanced)
        super().__init__(tau)
        self._set_options(tau, link, backend)
        self.balanced = balanced

    def __repr__(self) -> str:
        balanced = ", balanced=True" * self.balanced
        return f"InfoNCE(link={self.link}{balanced}, backend={self.backend!r})"

    def compute(
        self, anchor: Tensor, sample: Tensor, pos_mask: Tensor, neg_mask: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The mean loss of anchors [N, D] against samples [M, D], by masks [N, M]."""
        check_rows(anchor=anchor, sample=sample)
        n, m, link = anchor.shape[0], sample.shape[0], self.link
        intraview = m == 2 * n and torch.equal(sample[n:], anchor)
        with_itself = isinstance(link, Temperature | LearnableTemperature)
        if (m == n or intraview) and m <= SMALL_BATCH:
            usual = _usual_masks(pos_mask, neg_mask, n, m)
            if usual == "others" or (usual == "all" and intraview and not with_itself):
                return self._of_views(anchor, sample[:n])
            if usual == "all":
                return self._of_all(anchor, sample)
        positives = _as_booleans("pos_mask", pos_mask, n, m)
        candidates = positives | _as_booleans("neg_mask", neg_mask, n, m)
        if intraview and not with_itself:
            for mask in (positives, candidates):
                mask[:, n:].diagonal().fill_(False)
        paired = positives[:, :n].diagonal().all() and positives.sum() == n
        if paired and (m == n or intraview) and candidates.all():
            return self._of_all(anchor, sample)
        alone = intraview and not candidates[:, n:].diagonal().any()
        if paired and alone and candidates.sum() == n * (m - 1):
            return self._of_views(anchor, sample[:n])
        self._check_dense("these masks")
        losses = masked_losses(anchor, sample, positives, candidates, link, balanced=self.balanced)
        return losses.mean()

    def _of_all(self, anchor: Tensor, sample: Tensor) -> Tensor:
        """The loss where all samples count, those beyond the positives as negatives of every anchor."""
        n = anchor.shape[0]
        more = sample[n:] if sample.shape[0] > n else None
        options: dict[str, Any] = {"link": self.link, "balanced": self.balanced, "backend": self.backend}
        return info_nce(anchor, sample[:n], more, in_batch=True, **options)

    def _of_views(self, anchor: Tensor, other: Tensor) -> Tensor:
        """The loss of the anchors of one view alone."""
        losses = nt_xent(
            anchor,
            other,
            link=self.link,
            balanced=self.balanced,
            reduction="none",
            backend=self.backend,
        )
        return losses[: len(anchor)].mean()


def _usual_masks(pos_mask: Tensor, neg_mask: Tensor, n: int, m: int) -> str | None:
    """Which of the usual masks [n, m] these are, which few calls can tell: sample i is the positive of anchor
    i, and every other one a negative ("all"), or every one but sample n + i, the anchor itself ("others")."""
    if not isinstance(pos_mask, Tensor) or not isinstance(neg_mask, Tensor):
        return None
    eye = torch.eye(n, m, dtype=pos_mask.dtype, device=pos_mask.device)
    if not torch.equal(pos_mask, eye):
        return None
    negatives = (1 - eye.float()).to(neg_mask.dtype)
    if torch.equal(neg_mask, negatives):
        return "all"
    if m > n:
        negatives.diagonal(n).zero_()
    return "others" if m > n and torch.equal(neg_mask, negatives) else None


def _as_booleans(name: str, mask: Tensor, n: int, m: int) -> Tensor:
    """A mask [n, m] of zeros and ones as booleans; raises if it is none."""
    if not isinstance(mask, Tensor) or mask.shape != (n, m):
        got = list(mask.shape) if isinstance(mask, Tensor) else mask
        raise ValueError(f"{name} must have shape [{n}, {m}], got {got}.")
    found = mask != 0
    if not torch.equal(found.to(mask.dtype), mask):
        raise ValueError(f"{name} must hold zeros and ones, got other numbers as well.")
    return found


def temperature_free(loss: Any, link: LinkLike = None) -> Any:
    """A copy of ``loss``, which a contrast model may hold, without its temperature; see
    ``taufree.temperature_free``."""
    if isinstance(loss, SingleBranchContrast | DualBranchContrast):
        found = copy.deepcopy(loss)
        found.loss = temperature_free(found.loss, link)
        return found
    return as_twin(loss, {original.InfoNCE: InfoNCE}, link)
