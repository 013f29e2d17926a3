"""What the calibrated link's measurement costs: ``python -m benchmarks.studies.calibration --cost``."""

from __future__ import annotations

from datetime import date
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from benchmarks.support.markdown import head, row
from taufree import CalibratedLogOdds, InfoNCE, LogOdds
from taufree.util.json_lines import append_json
from taufree.util.machine import hardware, versions


def cost(device: str, results: Path) -> None:
    """Markdown: milliseconds of a symmetric loss, forward and backward, with a gain set and measured."""
    made = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = [(256, 128), (1024, 128), (1024, 512), (4096, 128), (4096, 512)]
    sizes += [(16384, 512), (65536, 512)] if device == "cuda" else []
    kinds = {"gain 2": partial(LogOdds, 2.0), "calibrated": CalibratedLogOdds}
    ways = [f"{kind}{ids}" for ids, kind in product(("", ", ids"), kinds)]
    head("N x D", *ways)
    for n, d in sizes:
        a, b = (torch.randn(n, d, device=device, dtype=made, requires_grad=True) for _ in range(2))
        ids, took = torch.arange(n, device=device) // 2, {}
        for way, (of, kind) in zip(ways, product((None, ids), kinds), strict=True):
            loss = InfoNCE(symmetric=True, link=kinds[kind]().to(device))
            timer = Timer("loss(a, b, ids=of).backward()", globals={"loss": loss, "a": a, "b": b, "of": of})
            took[way] = round(1e3 * timer.blocked_autorange(min_run_time=0.5).median, 2)
        row(f"{n:,} x {d}", *(f"{value:.2f}" for value in took.values()))
        line = {"n": n, "d": d, "dtype": str(made)[6:], "milliseconds": took, "date": str(date.today())}
        append_json(results, {**line, "versions": versions(), "hardware": hardware(torch.device(device))})
