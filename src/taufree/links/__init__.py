"""Links: how a cosine becomes a logit.

A loss here is link x contrast x reduction. The paper's link is ``LogOdds``; the temperatures
it replaces are links as well, so that a comparison changes this one object and nothing else.
"""

from taufree.links.base import Cosines, Formula, Gain, Likelihood, Link, Measure
from taufree.links.fitted import FittedLogOdds, FittedTemperature
from taufree.links.log_odds import LogOdds
from taufree.links.measured import CalibratedLogOdds
from taufree.links.named import LinkLike, as_link, by_direction, from_formula
from taufree.links.temperature import LearnableTemperature, Temperature

__all__ = [
    "CalibratedLogOdds",
    "Cosines",
    "FittedLogOdds",
    "FittedTemperature",
    "Formula",
    "Gain",
    "LearnableTemperature",
    "Likelihood",
    "Link",
    "LinkLike",
    "LogOdds",
    "Measure",
    "Temperature",
    "as_link",
    "by_direction",
    "from_formula",
]
