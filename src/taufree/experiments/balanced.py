"""The balanced loss as what a recipe trains with, beside links and schemes."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from taufree import Link, info_nce, nt_xent
from taufree.baselines import Scheme


class Balanced(Scheme):
    """NT-Xent or, of pairs, the symmetric InfoNCE, with ``balanced=True``."""

    def __init__(self, link: Link, *, pairs: bool = False, gather_distributed: bool = False) -> None:
        super().__init__(link, pairs, gather_distributed=gather_distributed)

    def forward(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None) -> Tensor:
        """The mean of all anchors."""
        loss = partial(info_nce, symmetric=True) if self.pairs else nt_xent
        return loss(
            view_a,
            view_b,
            ids=ids,
            link=self.link,
            balanced=True,
            reduction=self.reduction,
            gather_distributed=self.gather_distributed,
            backend=self.backend,
        )
