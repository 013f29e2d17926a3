"""What a diagnosis of embeddings holds, what its words mean, and what it advises."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from taufree.diagnostics.anchors import HARDEST_SHARE
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np

OPTIMAL_COSINE = 0.95
"""An anchor whose positive cosine is below this is non-optimal."""
VANISHED_SHARE = 0.01
"""A gradient scale below this share of the one at chance has vanished."""
COSINE_EDGES = np.linspace(-1, 1, 101)
"""Bins of the cosines in a `Diagnosis`."""
DEFINITIONS = {
    "as tau": "the temperature that is as steep at cosine 0 as the link: 1 / (2 gain) for the "
    "log-odds links, gain log((1 + c) / (1 - c)), which are steeper towards cosines of 1 and -1.",
    "loss": "the mean over the anchors of -log of the probability that the link gives to the positive, of "
    "these embeddings as they are. It is what training lowers, and no measure of how good they are.",
    "vanished": f"the share, among the anchors whose positive has a cosine below {OPTIMAL_COSINE}, of those "
    f"whose gradient scale is below {VANISHED_SHARE:.0%} of the one at chance. With one positive that means "
    "that the link gives it more than 99% of the probability: the anchor counts as learned.",
    "hardest": f"how much of the negatives' gradient goes to the {HARDEST_SHARE:.0%} of an anchor's "
    "negatives that are most similar to it (one at least).",
    "gradient scale": "how strongly the loss acts on one anchor: the sum, over all its candidates, of the "
    "size of the loss's derivative with respect to their cosine. It is not the length of the gradient of the "
    "embedding: that has a factor sqrt(1 - c^2) more, which is 0 at c = 1.",
    "at chance": "where all cosines are 0, as if the embeddings knew nothing yet, with as many candidates.",
    "free": "the log-odds link with gain 1, LogOdds().",
    "calibrated": "the log-odds link with a gain from the effective dimension of the negatives, 1 / (their "
    "mean squared cosine), as CalibratedLogOdds() measures it.",
    "fitted": "the log-odds link with the gain at which the mean loss of these embeddings is lowest, the "
    "targets smoothed by Laplace's rule, and at least 1: what FittedLogOdds() follows while training.",
}
PURPOSE = (
    "What are the vectors for? If you want the network behind the head (classes: SimCLR, GRACE), take free; "
    "if the vectors themselves are compared (search, CLIP, sentences), take fitted or a grid of temperatures."
)
_NOTABLE_SHARE = 0.05
"""From this share on the summary speaks of vanished gradients, and of what free keeps at the optimum."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """What one link does with the embeddings.

    `tau` or `gain` is its temperature or the gain of its log-odds; `loss`: the mean over anchors; `scale`:
    quantiles of the anchors' gradient scales; `chance`: its mean at chance; `by_cosine`: the median of
    scale / chance of the anchors whose positive cosine is in each bin of `COSINE_EDGES`, None where there are
    none; `vanished`, `hardest`: see `DEFINITIONS`; `optimum`: scale / chance where every positive is at
    cosine 1 and every negative at -1.
    """

    name: str
    tau: float | None
    gain: float | None
    loss: float
    scale: dict[str, float]
    chance: float
    by_cosine: list[float | None]
    vanished: float
    hardest: float
    optimum: float

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name if self.tau is None else f"tau {self.tau:g}"

    @property
    def temperature(self) -> float:
        """The temperature that is as steep at cosine 0."""
        return self.tau or 1 / (2 * (self.gain or 1.0))


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. Printed, it says it in words; `to_dict` gives all of it, ready for JSON.

    `anchors` of the `eligible` anchors (those with a positive) were looked at, `positives` and `negatives`
    are their mean numbers of candidates. `ranked_first` is the share of the anchors whose most similar
    candidate is a positive, `chance_first` and `chance_loss` what it and the loss would be if all candidates
    were alike, `fitted_gain` the gain that `FittedLogOdds` would follow. `duplicates` counts rows: of `first`
    and of `second` that equal another row of the same table, of `first` that equal a row of `second` other
    than their own (`across`), and anchors that have a copy of themselves or of their positive among their
    negatives (`false_negatives`).
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
    ranked_first: float
    chance_first: float
    chance_loss: float
    effective_dimension: float
    fitted_gain: float
    positive_counts: list[int]
    negative_counts: list[int]
    non_optimal: float
    schemes: list[Scheme]
    duplicates: dict[str, int]
    zero_rows: dict[str, int]

    @property
    def state(self) -> Literal["ahead", "partly ahead", "not ahead"]:
        """Whether positives are ahead of negatives, as after training, by `ranked_first`.

        They are not if chance alone could have done it, and are in part up to half of the way from chance
        to 1.
        """
        if self.ranked_first <= self._by_luck:
            return "not ahead"
        return "ahead" if self.ranked_first >= (1 + self.chance_first) / 2 else "partly ahead"

    @property
    def _by_luck(self) -> float:
        """What `ranked_first` may be by chance: three standard errors more than it is on average."""
        return self.chance_first + 3 * math.sqrt(self.chance_first * (1 - self.chance_first) / self.anchors)

    def to_dict(self) -> dict[str, Any]:
        """All fields, the edges of the bins and the definitions, as plain numbers, texts, lists and dicts."""
        return {
            **dataclasses.asdict(self),
            "state": self.state,
            "cosine_edges": COSINE_EDGES.round(9).tolist(),
            "definitions": dict(DEFINITIONS),
        }

    @property
    def collapsed(self) -> bool:
        """Whether the negatives have a mean cosine of 0.9 or more."""
        return self.negative_mean >= 0.9

    def table(self) -> list[dict[str, str]]:
        """The links side by side, each a row of texts by column."""
        return [
            {
                "link": scheme.title,
                "gain": "" if scheme.gain is None else f"{scheme.gain:.3g}",
                "as tau": f"{scheme.temperature:.2g}",
                "loss": f"{scheme.loss:.3f}",
                "vanished": f"{scheme.vanished:.1%}",
                f"hardest {HARDEST_SHARE:.0%}": f"{scheme.hardest:.1%}",
            }
            for scheme in self.schemes
        ]

    @property
    def caption(self) -> str:
        """What the columns of the table are, in short."""
        return (
            "As tau: the temperature that is as steep at cosine 0. Loss: of these embeddings as they are; "
            f"{self.chance_loss:.3f} if all candidates were alike. Vanished: of the anchors whose positive "
            f"has a cosine below {OPTIMAL_COSINE} ({self.non_optimal:.0%} of all), those that hardly get a "
            "gradient. Hardest: the part of the negatives' gradient that goes to the most similar of them."
        )

    def summary(self) -> list[str]:
        """What can be said of these embeddings, as sentences."""
        count = ",.1f" if self.labelled else ",.0f"
        how = {
            "ahead": ", as in a trained model",
            "partly ahead": ", as in a model half trained",
            "not ahead": ", as in an untrained model"
            if self._by_luck < 1
            else " as far as so few anchors tell",
        }
        lines = [
            f"Looked at {self.anchors:,} of {self.eligible:,} anchors"
            + (f" (drawn at random, seed {self.seed})" if self.anchors < self.eligible else "")
            + f", each with {self.positives:{count}} positive{'s' if self.labelled else ''} and "
            + f"{self.negatives:{count}} negative{'' if self.negatives == 1 else 's'}"
            + f"{' on average' if self.labelled else ''}, as one batch.",
            f"The positives are {self.state}"
            + ("" if self.collapsed else how[self.state])
            + f": for {self.ranked_first:.1%} of the anchors the most similar candidate is a positive "
            f"({self.chance_first:.1%} by chance). The mean cosine of positives is {self.positive_mean:.3f}, "
            f"of negatives {round(self.negative_mean, 3) + 0.0:.3f}.",
        ]
        if self.state != "not ahead" and any(one.vanished >= _NOTABLE_SHARE for one in self.schemes):
            lines.append(
                "Gradients that have vanished are no argument against a link here: they belong to anchors "
                "whose positive is far ahead already, and that is what having learned looks like."
            )
        lines.append(self._fit())
        free = self.schemes[0]
        if free.optimum >= _NOTABLE_SHARE:
            lines.append(
                f"Free keeps {free.optimum:.0%} of its gradient scale where every positive is at cosine 1 "
                "and every negative at -1, for so many candidates; a smaller LogOdds(resolution=...) "
                "lowers that."
            )
        if copies := self.duplicates["false_negatives"]:
            lower = ", and fitted's gain is lower for it" if self.fitted_gain > 1 else ""
            advice = "check their labels" if self.labelled else "give the loss ids that are equal for copies"
            lines.append(
                f"Rows with a copy of themselves or of their positive among their negatives: {copies:,}. "
                f"The loss separates equal rows{lower}: {advice}."
            )
        if zeros := sum(self.zero_rows.values()):
            lines.append(
                f"Rows that are all zero: {zeros:,}. They have no direction, their cosines count as 0 and "
                "they get no gradient. Look for dead inputs or a dead layer."
            )
        if self.collapsed:
            lines.append(
                f"The embeddings look collapsed: negatives have a mean cosine of {self.negative_mean:.3f}."
            )
        return lines

    def _fit(self) -> str:
        if self.fitted_gain == 1:
            return (
                "Fitted would stay at gain 1, the lowest it takes: for now it is free, as steep at cosine 0 "
                "as the temperature 0.5."
            )
        return (
            f"Fitted would choose the gain {self.fitted_gain:.3g}, at cosine 0 as steep as the temperature "
            f"{1 / (2 * self.fitted_gain):.2g}: of all gains of the log-odds link (free has 1) it makes "
            "these positives most likely."
            + (" Chance alone could give such a number." if self.state == "not ahead" else "")
        )

    def advice(self) -> list[str]:
        """The question that the numbers cannot answer, and what to try."""
        first = []
        if self.state == "not ahead":
            right = (
                "these are the rows' labels" if self.labelled else "the rows belong together in this order"
            )
            first = [f"Try first: check that {right}; train a little, and diagnose again."]
        if self.collapsed and self.state != "ahead":
            first = ["Try first: find out why nearly all rows point the same way; no link tells them apart."]
        return [
            PURPOSE,
            *first,
            "Try, for the network behind the head: LogOdds(), judged by kNN or a linear probe of features.",
            "Try, for the vectors themselves: FittedLogOdds() beside Temperature(0.02), (0.05) and (0.1), "
            "judged by recall or rank correlation on held-out pairs.",
            "No number above says which link trains the better model; only such a comparison does.",
        ]

    def __str__(self) -> str:
        rows = self.table()
        rows = [{name: name for name in rows[0]}, *rows]
        width = {name: max(len(row[name]) for row in rows) for name in rows[0]}
        lines = [
            "  ".join(
                row[name].ljust(width[name]) if name == "link" else row[name].rjust(width[name])
                for name in width
            )
            for row in rows
        ]
        return "\n".join([*self.summary(), "", *lines, self.caption, "", *self.advice()])
