"""Contrastive learning without a temperature.

The public names are imported when they are first used: the command line, which is inside this package, then
answers ``taufree --help`` and refuses bad input without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taufree.version import __version__ as __version__

if TYPE_CHECKING:
    from taufree.convert import temperature_free
    from taufree.functional import info_nce, nt_xent, sigmoid_nce, sup_con
    from taufree.links import (
        CalibratedLogOdds,
        FittedLogOdds,
        FittedTemperature,
        LearnableTemperature,
        Link,
        LogOdds,
        Temperature,
    )
    from taufree.losses import InfoNCE, NTXent, SigmoidNCE, SupCon
    from taufree.queue import NegativeQueue

__all__ = [
    "CalibratedLogOdds",
    "FittedLogOdds",
    "FittedTemperature",
    "InfoNCE",
    "LearnableTemperature",
    "Link",
    "LogOdds",
    "NTXent",
    "NegativeQueue",
    "SigmoidNCE",
    "SupCon",
    "Temperature",
    "info_nce",
    "nt_xent",
    "sigmoid_nce",
    "sup_con",
    "temperature_free",
]

_HOMES = ("links", "functional", "losses", "queue", "convert")
"""The modules of the public names."""
_MODULES = (*_HOMES, "backends", "checks", "contrast", "distributed", "dtypes", "metrics", "reduction")
"""What ``import taufree`` is known to bring: ``taufree.functional`` needs no import of its own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "compare":  # needs the extra cli, so it is not in __all__, of which `import *` gets everything
        from taufree.util.optional import needs

        with needs("taufree[cli]"):
            return import_module(f"{__name__}.experiments.compare").compare
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _HOMES:
        found = vars(import_module(f"{__name__}.{module}"))
        globals().update({public: found[public] for public in __all__ if public in found})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "compare"})
