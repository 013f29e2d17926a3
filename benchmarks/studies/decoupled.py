"""CLIP's loss without the positive in the denominator, by link, for benchmarks/studies/matching.py:

    PYTHONPATH=benchmarks/studies python -m benchmarks.studies.matching --sizes 256 --seeds 5 ... \\
        --links decoupled:Fitted,decoupled:FittedTau,decoupled:Tau
"""

from __future__ import annotations

from torch import Tensor

from taufree import FittedLogOdds, FittedTemperature, Link, Temperature, info_nce
from taufree.baselines import Scheme


class Decoupled(Scheme):
    """The symmetric loss of a link, decoupled."""

    def __init__(self, link: Link) -> None:
        super().__init__(link, pairs=True)

    def forward(self, view_a: Tensor, view_b: Tensor, ids: Tensor | None = None) -> Tensor:
        return info_nce(view_a, view_b, symmetric=True, decoupled=True, ids=ids, link=self.link)


class Fitted(Decoupled):
    """With a fitted gain."""

    def __init__(self) -> None:
        super().__init__(FittedLogOdds())


class FittedTau(Decoupled):
    """With a fitted temperature."""

    def __init__(self) -> None:
        super().__init__(FittedTemperature())


class Tau(Decoupled):
    """With a temperature of 0.05, the best of a grid with the positive in the denominator."""

    def __init__(self) -> None:
        super().__init__(Temperature(0.05))
