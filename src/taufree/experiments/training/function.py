"""A run of a user's own training function, in place of a recipe."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import numbers
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from taufree.experiments.evaluation.pair_statistics import temperature_at_zero
from taufree.experiments.link_names import OWN, make_link
from taufree.experiments.training.run import LINK_SOURCE, Run
from taufree.experiments.training.seeds import seed_everything
from taufree.util.errors import BadInputError
from taufree.util.files import write_text, writing_to
from taufree.util.function_source import function_digest

ONLY_CURVES = ("loss", "positive_cosine", "negative_cosine", "gradient_scale", "effective_dimension")
"""What a function may give for the report's curves, by these names; none of it is a metric."""


@dataclass(frozen=True)
class FunctionRun(Run):
    """A run whose training is a call ``function(link, seed, **options)``; ``options`` are JSON."""

    function: Callable[..., Any] = field(default=print, compare=False)  # another object in another process
    options: str = "{}"

    @cached_property
    def recorded_settings(self) -> dict[str, Any]:
        link = function_digest(type(make_link(self.link))) if OWN in self.link else None
        own = {"source": function_digest(self.function), LINK_SOURCE: link}
        options: dict[str, Any] = json.loads(self.options)
        return options | {name: value for name, value in own.items() if value is not None}

    @cached_property
    def content(self) -> str | None:
        return None

    def check_data(self) -> None:
        return

    def train(self, folder: Path) -> Generator[tuple[int, float | None], None, dict[str, Any]]:
        """Call the function; yields each epoch that it gives, with its loss if there is one, and returns the
        line.

        Args:
            folder: the run's own, of which the function gets a part if it asks for a folder.
        """
        import torch

        link = make_link(self.link)
        seed_everything(self.seed, "weights")
        curves: dict[str, list[float]] = {}
        options: dict[str, Any] = json.loads(self.options)
        past = _Past(None)
        if asks_for_folder(self.function, options):
            with writing_to(folder.parent.parent):
                (folder / "saved").mkdir(parents=True, exist_ok=True)
            options["folder"] = (folder / "saved").absolute()
            past = _Past(folder / "past.json")
        started = time.monotonic() - past.seconds
        result = self.function(link, self.seed, **options)
        last: dict[str, float] = {}
        if inspect.isgenerator(result):
            epoch = 0
            while True:
                try:
                    given = _numbers(next(result))
                except StopIteration as end:
                    last |= {} if end.value is None else _numbers(end.value)
                    break
                epoch += 1
                last = given
                temperature = past.temperature(epoch, temperature_at_zero(link), time.monotonic() - started)
                for name, value in (given | {"temperature_at_zero": temperature}).items():
                    curves.setdefault(name, []).append(value)
                yield epoch, given.get("loss")
        else:
            last = _numbers(result)
            curves["temperature_at_zero"] = [temperature_at_zero(link)]
        metrics = {name: value for name, value in last.items() if name not in ONLY_CURVES}
        if not metrics:
            raise BadInputError(f"train must give at least one metric beside {', '.join(ONLY_CURVES)}.")
        return self.line(metrics, curves, started, torch.device(self.device))


class _Past:
    """What is kept beside a function's folder: of epochs that it yields again, the link is a later one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.seconds: float = 0.0
        self._temperatures: list[float] = []
        with contextlib.suppress(OSError, TypeError, ValueError):  # not there, or damaged
            if file is not None:
                seconds, temperatures = json.loads(file.read_text())
                self.seconds, self._temperatures = float(seconds), list(map(float, temperatures))

    def temperature(self, epoch: int, now: float, seconds: float) -> float:
        """That of the epoch, of which the first is 1, when it was trained: if that is ``now``, it is kept."""
        if epoch > len(self._temperatures):
            self._temperatures.append(now)
            if self._file is not None:
                write_text(self._file, json.dumps([seconds, self._temperatures]))
        return self._temperatures[epoch - 1]


def asks_for_folder(function: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether it has an argument ``folder`` that nobody gives: without a default, or with None."""
    asked = inspect.signature(function).parameters.get("folder")
    if asked is None or asked.kind not in (asked.POSITIONAL_OR_KEYWORD, asked.KEYWORD_ONLY):
        return False
    return (asked.default is asked.empty or asked.default is None) and "folder" not in options


def name_of(function: Callable[..., Any]) -> str:
    """What the results call a function: its module and its name, ``script:train``."""
    inner = getattr(function, "func", function)  # of a partial
    module = getattr(inner, "__module__", None) or "__main__"
    if module in ("__main__", "__mp_main__"):
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else "notebook"
    return f"{module}{OWN}{getattr(inner, '__name__', type(inner).__name__)}"


def _numbers(given: Any) -> dict[str, float]:
    """Metrics and curves as a function gave them, tensors and NumPy's numbers among them."""
    if not isinstance(given, Mapping):
        raise BadInputError(
            f"train must give a dictionary of metrics, or yield one an epoch, got {type(given).__name__}."
        )
    found = {}
    for name, value in given.items():
        try:
            number = float(value) if isinstance(value, numbers.Real) else float(value.item())
        except (AttributeError, OverflowError, TypeError, ValueError, RuntimeError):
            raise BadInputError(f"train must give numbers, got {type(value).__name__} as {name}.") from None
        if not math.isfinite(number):
            raise FloatingPointError(f"{name} became {number}.")
        found[str(name)] = number
    return found
