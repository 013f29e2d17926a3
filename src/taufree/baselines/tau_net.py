"""TaU: the network predicts a temperature for each of its vectors."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from taufree.baselines.scheme import Scheme
from taufree.links import Temperature

MIN_OUTPUT = -15.0  # of the network; ours: below, a temperature would be more than 3e6 times t


class TaU(Scheme):
    """Temperature as uncertainty: one more output u of the head, and with it a scale for each anchor.

        logit of anchor i: s_ij sigmoid(u_i) / t

    with the positive not in the denominator and a gradient through u. Zhang et al., arXiv 2110.04403. Its
    code takes the positives of both views by the first view's temperature; here each anchor has its own.

    Args:
        t: the least temperature, as published.
        pairs, reduction, gather_distributed, backend: see ``Scheme``.

    Examples:
        >>> u = torch.zeros(6, requires_grad=True)
        >>> TaU()(torch.eye(3), torch.eye(3), u).backward()
        >>> bool((u.grad < 0).all())  # certain of these
        True
    """

    needs: ClassVar[frozenset[str]] = frozenset({"uncertainty"})

    def __init__(
        self,
        t: float = 0.1,
        *,
        pairs: bool = False,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(Temperature(t), pairs, reduction, gather_distributed, backend)
        self.t = float(t)

    def forward(
        self, view_a: Tensor, view_b: Tensor, uncertainty: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch; ``uncertainty`` [2N] is u, of the first view's rows and then the second's."""
        if uncertainty.shape != (2 * len(view_a),):
            raise ValueError(
                f"uncertainty must have shape [{2 * len(view_a)}], one for each anchor, "
                f"got {list(uncertainty.shape)}."
            )
        tau = self.t / torch.sigmoid(uncertainty.float().clamp(min=MIN_OUTPUT))
        return self._reduced(self._decoupled(view_a, view_b, ids, Temperature(tau)))
