"""PPS: the temperature is the mean squared distance of the positive pairs."""

from __future__ import annotations

from torch import Tensor

from taufree.baselines.scheme import RuledTemperature
from taufree.links import Cosines

MIN_TAU = 0.01  # ours: of identical views the published rule gives 0


class PositivePairTemperature(RuledTemperature):
    """PPS, the positive-pair schedule: a temperature that falls as positives come together.

        tau = mean |z_i - z_i+|^2 = 2 (1 - mean s+)

    No number to choose. The temperature gets no gradient here; whether it does in the original is not known.
    At least 0.01.

    Examples:
        >>> import torch
        >>> from taufree import nt_xent
        >>> link = PositivePairTemperature()
        >>> loss = nt_xent(torch.eye(3), torch.eye(3).roll(1, 0), link=link)  # positives at right angles
        >>> link.tau.item()
        2.0
    """

    def __init__(self) -> None:
        super().__init__(first=2.0)

    def rule(self, cosines: Cosines) -> Tensor:
        return (2 * (1 - cosines.positive)).clamp(min=MIN_TAU)
