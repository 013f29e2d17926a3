"""vMF: the temperature by which positives would be von Mises-Fisher distributed around their anchors."""

from __future__ import annotations

from torch import Tensor

from taufree.baselines.scheme import RuledTemperature
from taufree.links import Cosines

RANGE = (0.05, 0.995)  # of the mean cosine, beyond which the rule would run away


class VonMisesFisherTemperature(RuledTemperature):
    """The usual estimate of a von Mises-Fisher distribution's concentration, as an inverse temperature.

        1/tau = r (D - r^2) / (1 - r^2),  r = mean s+ in [0.05, 0.995],  D the dimensions of the vectors

    No number to choose but the range.

    Examples:
        >>> import torch
        >>> from taufree import nt_xent
        >>> link = VonMisesFisherTemperature()
        >>> loss = nt_xent(torch.eye(3), torch.eye(3) + 0.5, link=link)
        >>> round(link.tau.item(), 3)  # r = 0.905, D = 3
        0.092
    """

    def __init__(self) -> None:
        super().__init__(first=1.0)

    def rule(self, cosines: Cosines) -> Tensor:
        r = cosines.positive.clamp(*RANGE)
        return (1 - r.square()) / (r * (cosines.dimensions - r.square()))
