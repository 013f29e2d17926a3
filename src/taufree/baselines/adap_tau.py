"""Adap-tau: the temperature by how far positives are ahead of all pairs, for recommendation."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.baselines.scheme import RuledTemperature, Scheme
from taufree.links import Cosines

MIN_LEAD = 0.01  # ours: before positives are ahead, the published rule has no positive temperature


class AdaptiveTemperature(RuledTemperature):
    """The temperature that Adap-tau has for all users: the gradient of the whole batch is neither flat nor
    on one pair.

        1/tau = ln(K/2) / (mean s+ - mean s),  K candidates of an anchor, of which mean s is the mean cosine

    No number to choose. The lead of the positives counts as at least 0.01. Each batch is measured, where the
    original measures all training data once an epoch.
    """

    def __init__(self) -> None:
        super().__init__(first=1.0)

    def rule(self, cosines: Cosines) -> Tensor:
        lead = (cosines.positive - cosines.candidate).clamp(min=MIN_LEAD)
        return lead / torch.log(cosines.candidates.clamp(min=3) / 2)


class AdapTau(Scheme):
    """Adap-tau: ``AdaptiveTemperature`` in a loss without the positive in the denominator (DCL).

    Chen et al., Adap-tau, WWW 2023. Its factor for each user, by Lambert's W of the user's own loss, is left
    out: it needs users that come back.

    Args:
        pairs, reduction, gather_distributed, backend: see ``Scheme``.

    Examples:
        >>> from taufree.baselines import AdapTau
        >>> loss = AdapTau()
        >>> loss(torch.eye(4, requires_grad=True), torch.eye(4)).backward()
        >>> round(loss.link.tau.item(), 3)  # K = 7: the lead 6/7 by ln 3.5
        0.684
    """

    def __init__(
        self,
        *,
        pairs: bool = False,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(AdaptiveTemperature(), pairs, reduction, gather_distributed, backend)

    def forward(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None) -> Tensor:
        """The loss of a batch."""
        return self._reduced(self._decoupled(view_a, view_b, ids, self.link))
