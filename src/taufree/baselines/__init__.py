"""The temperature schemes of the field, on the public losses: what the free link is compared with.

A scheme that only sets a temperature is a ``Link``, which every loss takes; one that changes the loss is a
module with two views as arguments. docs/explanation/baselines.md has their formulas side by side. CLIP's
learnable scale is ``taufree.LearnableTemperature``.
"""

from taufree.baselines.adap_tau import AdapTau, AdaptiveTemperature
from taufree.baselines.cauchy import Cauchy
from taufree.baselines.dual_temperature import DualTemperature
from taufree.baselines.dystress import DySTreSS
from taufree.baselines.isogclr import ISogCLR
from taufree.baselines.macl import MACL, ModelAwareTemperature
from taufree.baselines.pps import PositivePairTemperature
from taufree.baselines.schedule import TemperatureSchedule
from taufree.baselines.scheme import Scheme
from taufree.baselines.tau_net import TaU
from taufree.baselines.vmf import VonMisesFisherTemperature

__all__ = [
    "MACL",
    "AdapTau",
    "AdaptiveTemperature",
    "Cauchy",
    "DualTemperature",
    "DySTreSS",
    "ISogCLR",
    "ModelAwareTemperature",
    "PositivePairTemperature",
    "Scheme",
    "TaU",
    "TemperatureSchedule",
    "VonMisesFisherTemperature",
]
