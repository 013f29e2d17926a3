"""The page and the sentences of ``taufree demo``: what a temperature does, for two purposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taufree.experiments.link_names import describe, temperature_of
from taufree.experiments.registry import find_recipe
from taufree.experiments.report.curves import accuracy_figure
from taufree.experiments.report.statistics import against_best_temperature, spreads
from taufree.experiments.sweep.results import Line
from taufree.util.html_page import Page

SHORT = "Too short to compare: this only shows that everything works. Run it without --preset quick."


@dataclass(frozen=True)
class Purpose:
    """What vectors are for, and the small experiment that shows it.

    Attributes:
        link: the one without a temperature that this purpose asks for.
        metric: the figure to look at.
    """

    title: str
    sentence: str
    recipe: str
    link: str
    metric: str


PURPOSES = (
    Purpose(
        "Representation",
        "A network learns from handwritten digits without their labels; then a linear classifier is trained "
        "on its features. As in SimCLR, the network is what one wants. The link for this is free.",
        "digits",
        "free",
        "linear",
    ),
    Purpose(
        "Matching",
        "Two networks learn which left half and which right half are of the same digit; then each half looks "
        "for its other half among 500. As in search, or with images and captions, the vectors themselves "
        "are compared. The link for this is fitted.",
        "halves",
        "fitted",
        "recall_1",
    ),
)


def rows(lines: Sequence[Line], purpose: Purpose) -> list[dict[str, str]]:
    """A row for each link: its figure, mean ± standard deviation over seeds."""
    return [
        {"link": describe(link), purpose.metric: str(found[purpose.metric])}
        for link, found in spreads(_of(lines, purpose)).items()
    ]


def summary(lines: Sequence[Line], purpose: Purpose, *, quick: bool = False) -> list[str]:
    """What the runs of a purpose say: how far temperatures are apart, and where its link is among them."""
    found = {link: of[purpose.metric] for link, of in spreads(_of(lines, purpose)).items()}
    if quick:
        return [SHORT]
    taus = [link for link in found if temperature_of(link) is not None]
    leads = against_best_temperature(_of(lines, purpose))
    (lead,) = (one for one in leads if (one.metric, one.first) == (purpose.metric, purpose.link))
    ends = min(taus, key=lambda tau: found[tau].mean), lead.second
    worst, best = (f"{found[tau].mean:.1f} with {describe(tau)}" for tau in ends)
    rest = [link for link in found if link not in (purpose.link, *taus)]
    others = ", ".join(f"{link}, for the other purpose, {found[link].mean:.1f}" for link in rest)
    return [
        f"With a temperature: from {worst} to {best}. With nothing to tune: {purpose.link} "
        f"{found[purpose.link].mean:.1f}; {others}.",
        str(lead),
    ]


def write_page(lines: Sequence[Line], path: Path, *, quick: bool = False) -> Path:
    """Write one page for both purposes and return its path."""
    page = Page(
        "With and without a temperature: two purposes",
        "A contrastive loss compares vectors by their cosines, and usually divides these by a temperature, a "
        "number that has to be found by trying. Here the same networks are trained with six temperatures and "
        "with two links that have none, everything else being equal.",
    )
    page.bullets(
        [
            "free, the default of taufree: the log-odds of the cosine, log((1 + c) / (1 - c)).",
            "fitted: the same, times a gain that is fitted to the batches while training.",
        ]
    )
    for purpose in PURPOSES:
        recipe = find_recipe(purpose.recipe)
        page.heading(purpose.title)
        page.text(purpose.sentence)
        table = rows(lines, purpose)
        page.table(
            table,
            id=purpose.recipe,
            highlight={i for i, row in enumerate(table) if row["link"] == purpose.link},
            caption=f"{purpose.metric}: {recipe.metrics[purpose.metric]}; mean ± standard deviation over "
            f"{len({line['seed'] for line in _of(lines, purpose)})} seeds.",
        )
        page.bullets(summary(lines, purpose, quick=quick))
        page.figure(
            accuracy_figure(_of(lines, purpose), purpose.metric),
            id=f"{purpose.recipe}-figure",
            caption="By temperature, bars of one standard deviation. The line across is free; the diamond "
            "is fitted, at the temperature that its gain came to for unrelated pairs.",
        )
    page.heading("What this shows, and what it does not")
    page.text(
        "The best temperature was picked afterwards from the same figures, which favours it; a person who "
        "tunes one pays for all the runs. Each seed starts every link from the same weights. The data are "
        "small: 1,797 digits of 8 x 8 pixels that come with scikit-learn, of which 500 are held out. Larger "
        "data, with links that fall behind too, are on the pages of results in the documentation."
    )
    return page.write(path)


def _of(lines: Sequence[Line], purpose: Purpose) -> list[Line]:
    return [line for line in lines if line["recipe"] == purpose.recipe]
