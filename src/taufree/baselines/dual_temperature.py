"""Dual temperature: the anchor's share of the gradient by another temperature than the negatives' shares."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from taufree.baselines.scheme import Scheme, with_value
from taufree.links import Temperature
from taufree.links.base import check_number


class DualTemperature(Scheme):
    """Dual temperature, as in SimCo and SimMoCo.

        L_i = -sg[(1 - P_b) / (1 - P_a)] log P_a

    with P the softmax probability of the positive at the temperatures ``tau`` (a) and ``between`` (b), and
    sg a constant of the gradient: DCL's gradient at ``tau``, each anchor weighted by 1 - P_b. Candidates are
    the rows of the other view alone. Zhang et al., CVPR 2022.

    Args:
        tau: within an anchor, which of its negatives count.
        between: which anchors count; ten times ``tau``, as published, if None.
        reduction, gather_distributed, backend: see ``Scheme``.

    Examples:
        >>> round(DualTemperature(tau=1.0, between=1.0)(torch.eye(3), torch.eye(3)).item(), 3)
        0.551
    """

    def __init__(
        self,
        tau: float = 0.1,
        between: float | None = None,
        *,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            Temperature(tau),
            pairs=True,
            reduction=reduction,
            gather_distributed=gather_distributed,
            backend=backend,
        )
        chosen = 10 * tau if between is None else between
        self.between = check_number("between", chosen, "a positive number", lambda x: x > 0)

    def forward(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss of a batch."""
        decoupled = self._other_view(view_a, view_b, ids, self.link)
        with torch.no_grad():
            weight = self._other_view(view_a, view_b, ids, Temperature(self.between)).sigmoid()
        ahead = decoupled.detach().clamp(min=-60)  # below, the ratio is 1 to all digits
        return self._reduced(with_value(weight * softplus(ahead) / ahead.sigmoid(), weight * decoupled))

    def extra_repr(self) -> str:
        return f"between={self.between:g}, {super().extra_repr()}"
