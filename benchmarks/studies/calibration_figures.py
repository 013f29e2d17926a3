"""The pictures of docs/studies/calibration.md, from the lines of the study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.support.lines import KEPT_EVERY
from benchmarks.support.pictures import colour, finish
from taufree.experiments.link_names import describe
from taufree.experiments.report.statistics import best_temperature, difference, spreads
from taufree.experiments.sweep.results import Line


def overview(tasks: dict[str, tuple[str, Sequence[Line]]], path: Path) -> None:
    """A row for each task, given its metric and lines: distance to the best temperature, dimension."""
    figure = Figure(figsize=(9, 2.8 * len(tasks)), layout="constrained")
    for (left, right), (task, (metric, lines)) in zip(
        figure.subplots(len(tasks), 2, squeeze=False), tasks.items(), strict=True
    ):
        distances(left, lines, metric)
        title = task if metric in task else f"{task}: {metric}"
        left.set(title=title, xlabel="points above the best temperature, 95 % interval")
        for link in spreads(lines):
            curves = [line["curves"]["effective_dimension"] for line in lines if line["link"] == link]
            at = KEPT_EVERY * np.arange(1, len(curves[0]) + 1)
            wide = 2.5 if link in ("free", "calibrated") else 1.2
            right.plot(at, np.mean(curves, axis=0), color=colour(link), lw=wide)
        right.set(title=task, xlabel="epoch", ylabel="effective dimension", yscale="log")
        right.set_yticks([1, 2, 4, 8, 16, 32, 64], labels=["1", "2", "4", "8", "16", "32", "64"], minor=False)
        right.minorticks_off()
    finish(figure, path)


def distances(axes: Axes, lines: Sequence[Line], metric: str) -> None:
    """Each link minus the best temperature, seed by seed."""
    best = best_temperature(lines, metric)
    links = list(spreads(lines))[::-1]
    axes.axvline(0, color="0.7", lw=1, zorder=0)
    for height, link in enumerate(links):
        gap = difference(lines, metric, link, best)
        low, high = gap.interval or (gap.mean, gap.mean)
        axes.plot([low, high], [height, height], color=colour(link), lw=2)
        axes.plot(gap.mean, height, "o", color=colour(link))
    axes.set_yticks(range(len(links)), labels=[describe(link) for link in links])


def sizes(panels: dict[str, dict[int, Sequence[Line]]], metric: str, path: Path) -> None:
    """A panel for each thing that is varied: the metric of each link by its size, the mean over seeds."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (name, by_size) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        means = {
            size: {k: v[metric].mean for k, v in spreads(lines).items()} for size, lines in by_size.items()
        }
        for link in dict.fromkeys(link for found in means.values() for link in found):
            points = [(size, found[link]) for size, found in sorted(means.items()) if link in found]
            axes.plot(*zip(*points, strict=True), marker="o", color=colour(link), label=describe(link))
        axes.set(xlabel=name, xscale="log")
        axes.set_xticks(sorted(means), labels=[f"{size:,}" for size in sorted(means)])
        axes.minorticks_off()
    figure.axes[0].set_ylabel(f"{metric}, %")
    finish(figure, path, columns=5)
