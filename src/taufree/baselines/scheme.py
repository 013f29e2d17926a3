"""What the schemes share: losses of two views that are more than a link, and links with a rule for tau."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from taufree.checks import check_options
from taufree.functional import info_nce, nt_xent
from taufree.links import Cosines, Formula, Link, Measure, by_direction, from_formula


class Scheme(nn.Module):
    """A scheme that is a loss. It is called with two views [N, D], and with what it ``needs`` besides.

    Args:
        link: what turns a cosine into a logit.
        pairs: whether the two views are of different kinds, as images and texts are: each row has the other
            side's rows as candidates then, as in a symmetric ``info_nce``, and else those of both, as in
            ``nt_xent``.
        reduction: "mean", "sum" or "none" for each of the 2N anchors, those of the first view first.
        gather_distributed, backend: see ``taufree.info_nce``. Over ranks the mean is that of a rank's own
            anchors, so that batches must be of one size.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """The arguments that it takes besides the views: "index", the samples' numbers [N], and "uncertainty",
    an output of the network for each anchor [2N]."""

    def __init__(
        self,
        link: Link,
        pairs: bool = False,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.link = check_options(link, reduction, backend)
        self.pairs, self.reduction = pairs, reduction
        self.gather_distributed, self.backend = gather_distributed, backend

    def step(self, progress: float) -> None:
        """Hear how much of the training is done, from 0 to 1, as a link does."""
        self.link.step(progress)

    def _decoupled(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None, link: Link) -> Tensor:
        """[2N], each anchor's log(S/w): S the weights of its negatives, w that of its positive.

        With P = w/(S+w), that is DCL's loss, -log P is its softplus and 1 - P its sigmoid: neither loses
        digits, as 1 - P does where it is a difference.
        """
        if not self.pairs:
            return nt_xent(
                view_a, view_b, ids=ids, link=link, decoupled=True, reduction="none",
                gather_distributed=self.gather_distributed, backend=self.backend,
            )  # fmt: skip
        return self._other_view(view_a, view_b, ids, link)

    def _other_view(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None, link: Link) -> Tensor:
        """The same, where an anchor's candidates are the rows of the other view alone."""
        return torch.cat(
            [
                info_nce(
                    query, key, ids=ids, link=link, decoupled=True, reduction="none",
                    gather_distributed=self.gather_distributed, backend=self.backend,
                )
                for query, key, link in zip(
                    (view_a, view_b), (view_b, view_a), by_direction(link, len(view_a)), strict=True
                )
            ]
        )  # fmt: skip

    def _reduced(self, losses: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def extra_repr(self) -> str:
        return f"pairs={self.pairs}, reduction={self.reduction!r}, backend={self.backend!r}"


def with_value(value: Tensor, gradient_of: Tensor) -> Tensor:
    """The value of one tensor and the gradient of another."""
    return value.detach() + (gradient_of - gradient_of.detach())


class RuledTemperature(Link):
    """A temperature that a rule finds anew for each batch, without gradient; ``tau`` is that of the last.

    Under autograd the rule is a constant of the loss. Nothing is smoothed over batches.
    """

    tau: Tensor

    def __init__(self, first: float) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(float(first)))

    def rule(self, cosines: Cosines) -> Tensor:
        """The temperature for a batch."""
        raise NotImplementedError

    @property
    def measures(self) -> bool:
        return True

    @torch.no_grad()
    def prepare(self, measure: Measure) -> Link:
        tau = self.rule(measure.cosines())
        if self.tau.device != tau.device:
            self.tau = self.tau.to(tau.device)
        try:
            self.tau.copy_(tau)
        except RuntimeError as error:  # torch.func forbids changing a tensor that it was not given
            if "captured Tensor" not in str(error):
                raise
        return from_formula(Formula("linear"), tau.reciprocal())

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine / self.tau.to(cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self.tau.to(cosine).reciprocal().expand_as(cosine)

    @property
    def formula(self) -> Formula:
        return Formula("linear")

    def formula_scale(self) -> Tensor:
        return self.tau.reciprocal()

    def extra_repr(self) -> str:
        return f"tau={self.tau.item():.3g}"
