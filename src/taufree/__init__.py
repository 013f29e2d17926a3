"""Contrastive learning without a temperature."""

from taufree.convert import temperature_free
from taufree.functional import info_nce, nt_xent, sup_con
from taufree.links import CalibratedLogOdds, LearnableTemperature, Link, LogOdds, Temperature
from taufree.losses import InfoNCE, NTXent, SupCon

__version__ = "0.1.0"

__all__ = [
    "CalibratedLogOdds",
    "InfoNCE",
    "LearnableTemperature",
    "Link",
    "LogOdds",
    "NTXent",
    "SupCon",
    "Temperature",
    "info_nce",
    "nt_xent",
    "sup_con",
    "temperature_free",
]
