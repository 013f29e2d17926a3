"""info-nce-pytorch's module and function without a temperature."""

from __future__ import annotations

from torch import Tensor

import taufree
from taufree.integrations import Linked, as_twin, link_of
from taufree.links import LinkLike
from taufree.util.optional import needs

with needs("taufree[info-nce]", "info_nce"):
    import info_nce as original

__all__ = ["InfoNCE", "info_nce", "temperature_free"]
DIMENSIONS = {"unpaired": 2, "paired": 3}


class InfoNCE(Linked, original.InfoNCE):
    """`info_nce.InfoNCE` with ``temperature=None`` by default; see ``info_nce``.

    Examples:
        >>> import torch
        >>> loss = InfoNCE(negative_mode="paired")
        >>> loss(torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 5, 8)).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        reduction: str = "mean",
        negative_mode: str = "unpaired",
        *,
        link: LinkLike = None,
        backend: str = "auto",
    ) -> None:
        link_of(temperature, link=link)
        super().__init__(temperature, reduction, negative_mode)
        self._set_options(temperature, link, backend)

    def forward(self, query: Tensor, positive_key: Tensor, negative_keys: Tensor | None = None) -> Tensor:
        return info_nce(
            query,
            positive_key,
            negative_keys,
            reduction=self.reduction,
            negative_mode=self.negative_mode,
            link=self.link,
            backend=self.backend,
        )


def info_nce(
    query: Tensor,
    positive_key: Tensor,
    negative_keys: Tensor | None = None,
    temperature: float | Tensor | None = None,
    reduction: str = "mean",
    negative_mode: str = "unpaired",
    *,
    link: LinkLike = None,
    backend: str = "auto",
) -> Tensor:
    """`info_nce.info_nce` with ``temperature=None`` by default.

    Args:
        query, positive_key: [N, D]; without ``negative_keys`` the other positive keys are the negatives.
        negative_keys: [M, D] if ``negative_mode`` is "unpaired", [N, M, D] if it is "paired".
        temperature: None for the log-odds, else the original's loss; a tensor gets its gradient.
        reduction: "mean", "sum" or "none".
        negative_mode: "unpaired" or "paired".
        link: instead of a temperature, any other link or the name "free".
        backend: see ``taufree.info_nce``.
    """
    if negative_mode not in DIMENSIONS:
        raise ValueError(f"negative_mode must be one of {tuple(DIMENSIONS)}, got {negative_mode!r}.")
    if isinstance(negative_keys, Tensor) and negative_keys.dim() != DIMENSIONS[negative_mode]:
        raise ValueError(
            f"negative_keys must have {DIMENSIONS[negative_mode]} dimensions with "
            f"negative_mode={negative_mode!r}, got shape {list(negative_keys.shape)}."
        )
    return taufree.info_nce(
        query,
        positive_key,
        negative_keys,
        link=link_of(temperature, link=link, kept=False),
        reduction=reduction,
        backend=backend,
    )


def temperature_free(loss: original.InfoNCE, link: LinkLike = None) -> InfoNCE:
    """A copy of ``loss`` without its temperature; see ``taufree.temperature_free``."""
    twin: InfoNCE = as_twin(loss, {original.InfoNCE: InfoNCE}, link)
    return twin
