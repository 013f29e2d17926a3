"""Take the temperature out of a loss that exists already, of this library or of another."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TypeVar

from taufree.links import CalibratedLogOdds, FittedLogOdds, FittedTemperature, LinkLike, LogOdds, as_link
from taufree.losses import InfoNCE, NTXent, SigmoidNCE, SupCon

MODULES = {  # the package a loss comes from: the file of taufree.integrations that has a twin of it
    "GCL": "pygcl",
    "info_nce": "info_nce",
    "lightly": "lightly",
    "open_clip": "open_clip",
    "pytorch_metric_learning": "pytorch_metric_learning",
    "sentence_transformers": "sentence_transformers",
}

_T = TypeVar("_T")


def temperature_free(loss: _T, link: LinkLike = None) -> _T:
    """A copy of ``loss`` that has no temperature and all its other settings.

    Args:
        loss: a loss of taufree, or one of lightly, pytorch-metric-learning, sentence-transformers, open_clip,
            PyGCL or info-nce-pytorch that has a twin in ``taufree.integrations``, in a wrapper of its library
            or not. A class derived from one of these may override nothing but ``__init__``. The loss stays as
            it is.
        link: the link of the copy, as the argument ``link`` of the losses. None: the loss's own if it has no
            temperature, else ``LogOdds()``; for open_clip, whose vectors are compared, ``FittedLogOdds()``,
            and for sentence-transformers ``FittedTemperature()``. The bias of ``SigmoidNCE`` goes with the
            temperature that it was chosen for: it is the prior then.

    Examples:
        >>> from taufree import Temperature
        >>> temperature_free(NTXent(link=Temperature(0.5), reduction="sum"))
        NTXent(
          reduction='sum', backend='auto'
          (link): LogOdds(gain=1.0, resolution=0.0001)
        )
    """
    if isinstance(loss, (InfoNCE, NTXent, SupCon, SigmoidNCE)):
        found = copy.deepcopy(loss)
        if isinstance(found, SigmoidNCE) and not is_free(found.link) and found.bias != "learnable":
            found.bias = None  # it went with the temperature
        if link is not None or not is_free(found.link):
            found.link = as_link(link)
        return found
    for base in type(loss).__mro__:
        if module := MODULES.get(base.__module__.partition(".")[0]):
            twin: _T = import_module(f"taufree.integrations.{module}").temperature_free(loss, link)
            return twin
    kind, got = (loss, "the class ") if isinstance(loss, type) else (type(loss), "")
    raise TypeError(
        f"loss must be a loss of taufree or of one of the packages {', '.join(MODULES)}, "
        f"got {got}{kind.__name__} of {kind.__module__}."
    )


def is_free(link: object) -> bool:
    """Whether it is a link without a temperature."""
    return isinstance(link, (LogOdds, CalibratedLogOdds, FittedLogOdds, FittedTemperature))
