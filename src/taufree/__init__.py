"""Contrastive learning without a temperature."""

from taufree.convert import temperature_free
from taufree.functional import info_nce, nt_xent, sup_con
from taufree.links import CalibratedLogOdds, FittedLogOdds, LearnableTemperature, Link, LogOdds, Temperature
from taufree.losses import InfoNCE, NTXent, SupCon
from taufree.version import __version__ as __version__

__all__ = [
    "CalibratedLogOdds",
    "FittedLogOdds",
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
