"""MACL: a temperature that grows with the mean positive cosine, and InfoNCE weighted to DCL's gradient."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from taufree.baselines.scheme import RuledTemperature, Scheme, with_value
from taufree.links import Cosines
from taufree.links.base import check_number


class ModelAwareTemperature(RuledTemperature):
    """MACL's temperature, a link of its own for any loss.

        tau = tau0 (1 + alpha (A - a0)),  A = mean s+ of the batch

    Args:
        tau0, alpha, a0: as published.
    """

    def __init__(self, tau0: float = 0.1, alpha: float = 0.5, a0: float = 0.0) -> None:
        self.tau0 = check_number("tau0", tau0, "a positive number", lambda x: x > 0)
        self.alpha = check_number("alpha", alpha, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self.a0 = check_number("a0", a0, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        super().__init__(first=tau0)

    def rule(self, cosines: Cosines) -> Tensor:
        # At A = -1 and alpha = 1 the published rule gives 0.
        return self.tau0 * (1 + self.alpha * (cosines.positive - self.a0)).clamp(min=1e-2)


class MACL(Scheme):
    """Model-aware contrastive learning.

        L_i = -sg[1 / (1 - P_i)] log P_i  at the temperature of ``ModelAwareTemperature``

    with P_i the softmax probability of the positive and sg a constant of the gradient. That gradient is
    exactly DCL's. Huang et al., ICML 2023. Equal to lightly's ``MACLLoss`` but for its 1e-8 beside 1 - P,
    which here is no difference and needs none.

    Args:
        tau0, alpha, a0: the three numbers of the temperature, as published.
        pairs, reduction, gather_distributed, backend: see ``Scheme``.

    Examples:
        >>> import torch
        >>> round(MACL(tau0=1.0, alpha=0.0)(torch.eye(3), torch.eye(3)).item(), 3)
        1.52
    """

    def __init__(
        self,
        tau0: float = 0.1,
        alpha: float = 0.5,
        a0: float = 0.0,
        *,
        pairs: bool = False,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            ModelAwareTemperature(tau0, alpha, a0), pairs, reduction, gather_distributed, backend
        )

    def forward(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss of a batch."""
        decoupled = self._decoupled(view_a, view_b, ids, self.link)
        ahead = decoupled.detach().clamp(min=-60)  # below, the ratio is 1 to all digits
        return self._reduced(with_value(softplus(ahead) / ahead.sigmoid(), decoupled))
