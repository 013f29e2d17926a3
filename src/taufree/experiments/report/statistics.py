"""Figures of a sweep: mean and spread of each link, and the paired difference between two links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

import pandas as pd
from scipy import stats

from taufree.experiments.link_names import describe, in_order, temperature_of
from taufree.experiments.sweep.results import Line

MIN_SEEDS = 3
"""Fewer cannot say which of two links is ahead: the interval of two seeds rests on one difference of them."""


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (None for one seed) and number of seeds of one link's metric."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        """
        >>> str(Spread(84.434, 0.2, 10)), str(Spread(84.434, None, 1))
        ('84.43 ± 0.20', '84.43')
        """
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second`` over the seeds both have, with the 95 % interval of Student's t.

    The interval is mean ± t(0.975, n - 1) std / sqrt(n); for one seed there is none.
    """

    metric: str
    first: str
    second: str
    per_seed: dict[int, float]
    mean: float
    interval: tuple[float, float] | None

    @property
    def within_noise(self) -> bool:
        """Whether the interval has 0 in it; not so where there is none."""
        return self.interval is not None and self.interval[0] <= 0 <= self.interval[1]

    @property
    def clear(self) -> bool:
        """Whether the seeds are enough to say which is ahead, and 0 is outside of the interval."""
        return len(self.per_seed) >= MIN_SEEDS and not self.within_noise

    def brief(self) -> str:
        """
        >>> Difference("knn", "free", "0.5", {0: 1.0, 1: 1.2}, 1.1, (-0.17, 2.37)).brief()
        '+1.10 (-0.17 to +2.37)'
        """
        interval = "" if self.interval is None else f" ({self.interval[0]:+.2f} to {self.interval[1]:+.2f})"
        return f"{self.mean:+.2f}{interval}"

    def __str__(self) -> str:
        """
        >>> print(Difference("knn", "free", "0.5", {0: 1.0, 1: 1.2, 2: 0.2}, 0.8, (-0.51, 2.11)))
        knn: free minus tau 0.5 is +0.80 (95 % interval -0.51 to +2.11, 3 seeds): within noise.
        """
        first, second = describe(self.first), describe(self.second)
        claim = f"{self.metric}: {first} minus {second} is {self.mean:+.2f}"
        if self.interval is None:
            return f"{claim} (one seed, so nothing can be said of noise)."
        low, high = self.interval
        verdict = "two seeds cannot tell them apart"
        if len(self.per_seed) >= MIN_SEEDS:
            ahead = "ahead" if low > 0 else "behind"
            verdict = f"{first} is {ahead}" if self.clear else "within noise"
        return f"{claim} (95 % interval {low:+.2f} to {high:+.2f}, {len(self.per_seed)} seeds): {verdict}."


def values(lines: Sequence[Line]) -> pd.DataFrame:
    """The metrics as a table: one row per link and seed, one column per metric; links in order."""
    order = in_order({line["link"] for line in lines})
    rows = sorted(lines, key=lambda line: (order.index(line["link"]), line["seed"]))
    keys = [[line[name] for line in rows] for name in ("link", "seed")]
    index = pd.MultiIndex.from_arrays(keys, names=["link", "seed"])
    table: pd.DataFrame = pd.DataFrame([line["metrics"] for line in rows], index)
    return table


def spreads(lines: Sequence[Line]) -> dict[str, dict[str, Spread]]:
    """The spread of each metric of each link, over lines that have it: ``spreads(lines)[link][metric]``."""
    table = values(lines)
    found: dict[str, dict[str, Spread]] = {link: {} for link in table.index.unique("link")}
    for link, frame in table.groupby(level="link", sort=False):
        for metric, column in frame.items():
            some = column.dropna()
            if len(some):
                std = float(some.std()) if len(some) > 1 else None
                found[str(link)][str(metric)] = Spread(float(some.mean()), std, len(some))
    return found


def common_seeds(lines: Sequence[Line], metric: str, other: str = "free") -> set[int]:
    """The seeds that all fixed temperatures have by this metric, and ``other`` too if it is there."""
    seeds: dict[str, set[int]] = {}
    for line in lines:
        link = line["link"]
        if metric in line["metrics"] and (link == other or temperature_of(link) is not None):
            seeds.setdefault(link, set()).add(line["seed"])
    return set.intersection(*seeds.values()) if seeds else set()


def best_temperature(lines: Sequence[Line], metric: str, other: str = "free") -> str | None:
    """The fixed temperature with the highest mean over the :func:`common_seeds`, None where there is none."""
    seeds = common_seeds(lines, metric, other)
    found = spreads([line for line in lines if line["seed"] in seeds]) if seeds else {}
    means = {
        link: of_link[metric].mean
        for link, of_link in found.items()
        if temperature_of(link) is not None and metric in of_link
    }
    return max(means, key=lambda link: means[link], default=None)


def difference(lines: Sequence[Line], metric: str, first: str, second: str) -> Difference | None:
    """The paired difference of two links, None where they share no seed."""
    table = values(lines)
    if metric not in table or not {first, second} <= set(table.index.unique("link")):
        return None
    table = table[metric].unstack("link")
    between = (table[first] - table[second]).dropna()
    if between.empty:
        return None
    per_seed = dict(zip(map(int, between.index), map(float, between), strict=True))
    return Difference(
        metric, first, second, per_seed, float(between.mean()), interval_of_mean(between.tolist())
    )


def interval_of_mean(found: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t, None for a single number.

    >>> interval_of_mean([1.0, 2.0, 3.0])
    (-0.48..., 4.48...)
    """
    if len(found) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(found) - 1)) * stdev(found) / len(found) ** 0.5
    return mean(found) - half, mean(found) + half


def against_best_temperature(lines: Sequence[Line]) -> list[Difference]:
    """Each link without a fixed temperature minus the best one, for each metric, on the common seeds alone.

    A temperature that lacks a seed which is hard for all links would be picked for that.
    """
    found = []
    for metric, link in product(values(lines).columns, in_order({line["link"] for line in lines})):
        seeds = common_seeds(lines, metric, link)
        best = best_temperature(lines, metric, link)
        if best is not None and temperature_of(link) is None:
            lead = difference([line for line in lines if line["seed"] in seeds], metric, link, best)
            found += [] if lead is None else [lead]
    return found
