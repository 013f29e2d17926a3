"""What a diagnosis of embeddings holds, what its words mean, and what it advises."""

from __future__ import annotations

import dataclasses
from typing import Any

from taufree.diagnostics.anchors import HARDEST_SHARE
from taufree.diagnostics.theory.closed_forms import dimension_temperature
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np

OPTIMAL_COSINE = 0.95
"""An anchor whose positive cosine is below this is non-optimal."""
VANISHED_SHARE = 0.01
"""A gradient scale below this share of the one at chance has vanished."""
COSINE_EDGES = np.linspace(-1, 1, 101)
"""Bins of the cosines in a `Diagnosis`."""
SCALE_EDGES = np.linspace(-8, 4, 61)
"""Bins of log10(gradient scale / gradient scale at chance); the outer bins hold what lies beyond them."""
DEFINITIONS = {
    "gradient scale": "how strongly the loss acts on one anchor: the sum, over all its candidates, of the "
    "size of the loss's derivative with respect to their cosine. It is not the length of the gradient of the "
    "embedding: that has a factor sqrt(1 - c^2) more, which is 0 at c = 1.",
    "at chance": "the gradient scale that the same scheme gives to an anchor with as many candidates whose "
    "cosines are all 0, as if the embeddings knew nothing yet.",
    "non-optimal": f"the cosine of the anchor and its positive (the mean, where there are several) is "
    f"below {OPTIMAL_COSINE}: there is still something to learn.",
    "vanished": f"the anchor's gradient scale is below {VANISHED_SHARE:.0%} of the one at chance: training "
    "has all but stopped there.",
    "hardest": f"the {HARDEST_SHARE:.0%} of an anchor's negatives that are most similar to it, one at least.",
    "at the optimum": "the gradient scale, relative to chance, when every positive has cosine 1 and every "
    "negative -1. Nothing is left to gain there, so it should be near 0. What free shows there comes from "
    "its resolution, which keeps identical vectors finite; it grows with the number of candidates.",
    "local temperature": "(1 - c^2) / 2, the temperature whose slope free has at the cosine c: 0.5 for "
    "unrelated vectors, towards 0 for nearly equal or opposite ones.",
    "effective dimension": "1 / (mean squared cosine of negatives), at most the columns there are: random "
    "vectors of so many dimensions are as far from orthogonal as the negatives are. It stands for a "
    "temperature, the one that is as steep at cosine 0 as the log-odds that a random pair is less similar; 3 "
    "dimensions or fewer for 0.5. CalibratedLogOdds() measures and uses it.",
}
_NOTABLE_SHARE = 0.05
"""From this share on, the summary names a temperature whose gradient vanishes or stays at the optimum."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """What one way to score cosines (a temperature, or none) does with the embeddings.

    `scale`: quantiles of the anchors' gradient scales; `chance`: its mean at chance; `relative`: how many
    anchors have log10(scale / chance) in each bin of `SCALE_EDGES`; `by_cosine`: the median of scale / chance
    of the anchors whose positive cosine is in each bin of `COSINE_EDGES`, None where there are none;
    `vanished`: the share of the non-optimal anchors whose gradient vanished; `hardest`: the share of the
    negatives' gradient on the hardest, mean over anchors; `optimum`: the relative scale at the optimum.
    """

    name: str
    tau: float | None
    scale: dict[str, float]
    chance: float
    relative: list[int]
    by_cosine: list[float | None]
    vanished: float
    hardest: float
    optimum: float

    @property
    def title(self) -> str:
        """The name in words."""
        return "free (no temperature)" if self.tau is None else f"temperature {self.tau:g}"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; `summary` says it in words, `to_dict` gives all of it, ready for JSON.

    `anchors` of the `eligible` anchors (those with a positive) were looked at, `positives` and `negatives`
    are their mean numbers of candidates. `duplicates` counts rows: of `first` and of `second` that equal
    another row of the same table, of `first` that equal a row of `second` other than their own (`across`),
    and anchors that have a copy of themselves or of their positive among their negatives (`false_negatives`).
    """

    rows: int
    dimensions: int
    labelled: bool
    eligible: int
    anchors: int
    seed: int
    positives: float
    negatives: float
    positive_mean: float
    negative_mean: float
    effective_dimension: float
    positive_counts: list[int]
    negative_counts: list[int]
    non_optimal: float
    local_temperature: dict[str, dict[str, float]]
    schemes: list[Scheme]
    duplicates: dict[str, int]
    zero_rows: dict[str, int]

    @property
    def effective_temperature(self) -> float:
        """The temperature that the effective dimension stands for, at most 0.5, the free loss's."""
        return float(dimension_temperature(max(3.0, self.effective_dimension)))

    def to_dict(self) -> dict[str, Any]:
        """All fields, the edges of the bins and the definitions, as plain numbers, texts, lists and dicts."""
        return {
            **dataclasses.asdict(self),
            "effective_temperature": self.effective_temperature,
            "cosine_edges": COSINE_EDGES.round(9).tolist(),
            "log10_relative_edges": SCALE_EDGES.round(9).tolist(),
            "definitions": dict(DEFINITIONS),
        }

    def summary(self) -> list[str]:
        """The findings as sentences, the advice included."""
        free = next(scheme for scheme in self.schemes if scheme.tau is None)
        taus = [scheme for scheme in self.schemes if scheme.tau is not None]
        vanishing = [scheme for scheme in taus if scheme.vanished >= _NOTABLE_SHARE]
        lasting = [scheme for scheme in taus if scheme.optimum >= _NOTABLE_SHARE]
        neither = [scheme for scheme in taus if scheme not in vanishing and scheme not in lasting]
        count = ",.1f" if self.labelled else ",.0f"
        lines = [
            f"Looked at {self.anchors:,} of {self.eligible:,} anchors"
            + (f" (drawn at random, seed {self.seed})" if self.anchors < self.eligible else "")
            + f", each with {self.positives:{count}} positive{'s' if self.labelled else ''} and "
            + f"{self.negatives:{count}} negatives{' on average' if self.labelled else ''}.",
            f"The mean cosine of positives is {self.positive_mean:.3f}, of negatives "
            f"{round(self.negative_mean, 3) + 0.0:.3f}; {self.non_optimal:.1%} of the anchors are "
            f"non-optimal (positive cosine below {OPTIMAL_COSINE}).",
        ]
        lines.append(
            f"The effective dimension of the negatives is {self.effective_dimension:.3g}, which stands for a "
            f"temperature of {self.effective_temperature:.2g} at cosine 0."
        )
        lines += [
            f"{_capital(scheme.title)}: the gradient has vanished for {scheme.vanished:.1%} of the "
            f"non-optimal anchors, so they hardly train. A higher temperature, or none, reaches them."
            for scheme in vanishing
        ]
        lines += [
            f"{_capital(scheme.title)}: at the optimum the gradient scale is still {scheme.optimum:.0%} of "
            "the one at chance."
            for scheme in lasting
        ]
        if neither:
            names = _capital(", ".join(scheme.title for scheme in neither))
            lines.append(
                f"{names}: the gradient neither vanishes early nor stays at the optimum, for these "
                "embeddings and this number of candidates; both change with the batch size and in training."
            )
        lines.append(
            f"{_capital(free.title)} leaves {free.vanished:.1%} of the non-optimal anchors without gradient "
            f"and spends {free.hardest:.0%} of the negatives' gradient on the hardest {HARDEST_SHARE:.0%}."
        )
        if free.optimum >= _NOTABLE_SHARE:
            lines.append(
                f"{_capital(free.title)}: at the optimum the gradient scale is still {free.optimum:.0%} of "
                "the one at chance, for so many candidates: a smaller `LogOdds(resolution=...)` lowers it."
            )
        if copies := self.duplicates["false_negatives"]:
            lines.append(
                f"Rows with a copy of themselves or of their positive among their negatives: {copies:,}. "
                "The loss separates equal rows: "
                + (
                    "check their labels."
                    if self.labelled
                    else "give the loss `ids` that are equal for copies."
                )
            )
        if zeros := sum(self.zero_rows.values()):
            lines.append(
                f"Rows that are all zero: {zeros:,}. They have no direction, their cosines count as 0 and "
                "they get no gradient. Look for dead inputs or a dead layer."
            )
        if self.negative_mean >= 0.9:
            lines.append(
                f"The embeddings look collapsed: negatives have a mean cosine of {self.negative_mean:.3f}."
            )
        if self.positive_mean <= self.negative_mean:
            lines.append(
                "Positives are no more similar than negatives: "
                + (
                    "are these the rows' labels?"
                    if self.labelled
                    else "do the rows belong together in this order?"
                )
            )
        return lines


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
