"""The training report: one page for a reader who does not know what a temperature is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from taufree.experiments.report.about import About, about
from taufree.experiments.report.curves import accuracy_figure, cosine_figure, curve_figure
from taufree.experiments.report.pictures import show_pictures
from taufree.experiments.report.tables import metrics_of, result_table
from taufree.experiments.report.verdicts import NO_VERDICT, verdicts
from taufree.experiments.sweep.results import Line
from taufree.util.html_page import Page, word_of


def write_report(
    lines: Sequence[Line],
    path: Path,
    *,
    preset: str | None = None,
    data: Path | None = None,
    folders: Sequence[Path] = (),
) -> Path:
    """Write the page of one sweep (one recipe, one choice of settings) and return its path.

    Args:
        preset: the preset of the runs, if it is known; those of "quick" have no verdict.
        data: the folder of the data, if the user gave one.
        folders: those of the results, if the page does not lie beside them.
    """
    recipe = about(lines)
    preset = preset or recipe.preset
    links = len({line["link"] for line in lines})
    page = Page(
        f"With and without a temperature: {recipe.title}",
        f"The same network, trained with {links} different ways to turn a similarity into a score, "
        "everything else being equal."
        if links > 1
        else "A network, trained with one way to turn a similarity into a score.",
    )
    page.text(
        f"{recipe.task} "
        "Similarity is the cosine of the two vectors, between -1 and 1. Before the loss compares the "
        "pairs, a link turns each cosine into a score. The usual link divides by a temperature tau, a "
        "number that has to be found by trying. The free link takes the log-odds of the cosine, log((1 + "
        "c) / (1 - c)), and has no such number. The learnable link trains tau together with the network, "
        "the calibrated one stretches the free link by a gain that it measures on the negative pairs, the "
        "fitted one by the gain that makes the pairs of the batches most likely."
    )
    table = result_table(lines)
    page.heading("Results")
    page.table(
        table.rows,
        id="results",
        highlight=table.stressed,
        footer=table.notes,
        file=f"{recipe.name.replace(':', '.')}.csv",
        caption="Mean ± standard deviation over seeds, higher is better; free and the best temperature of "
        "each metric are marked; seconds are those of a run, of which the first also loads the libraries. "
        + " ".join(f"{name}: {text}." for name, text in recipe.metrics.items() if text),
    )
    _verdicts(page, verdicts(lines, quick=preset == "quick"))
    metrics = [metric for metric in recipe.metrics if metric in metrics_of(lines)]
    _accuracy(page, lines, metrics)
    _training(page, lines, metrics)
    _cosines(page, lines)
    show_pictures(page, lines, next(iter(recipe.metrics)), folders or [path.parent])
    page.heading("How this was made")
    page.table(
        [*_origin(recipe, lines, preset, data), *_facts(lines[-1])],
        id="facts",
        caption="Settings, software and machine are those of the newest run shown here.",
    )
    return page.write(path)


def _verdicts(page: Page, sentences: Sequence[str]) -> None:
    if sentences == [NO_VERDICT]:
        page.text(NO_VERDICT)
    elif sentences:
        page.text(
            "Each seed starts every link from the same weights and shows it the same data in the same "
            "order, so links are compared seed by seed, on the seeds that all temperatures have. Each link "
            "that has no fixed temperature, minus the best temperature:"
        )
        page.bullets(sentences)
        page.text(
            "The best temperature was picked after the fact from the same figures, which favours it a "
            "little; the other links were not picked. An interval that holds 0 means that these seeds cannot "
            "tell the two apart; more seeds make it narrower. Two seeds cannot tell, whatever their interval."
        )


def _accuracy(page: Page, lines: Sequence[Line], metrics: Sequence[str]) -> None:
    if {line["link"] for line in lines} == {"free"}:  # a line across, with nothing to compare it with
        return
    page.heading("How much the temperature matters")
    page.text(
        "Each metric by temperature, bars of one standard deviation. The line across is the free link, which "
        "has no temperature: below it a temperature did worse, above it better. A diamond is a link that "
        "found its own, or has another gain, drawn at the temperature that it ended with for unrelated "
        "pairs, whose cosines are near 0."
    )
    for metric in metrics:
        page.figure(accuracy_figure(lines, metric), id=f"accuracy-{word_of(metric)}")


def _training(page: Page, lines: Sequence[Line], metrics: Sequence[str]) -> None:
    page.heading("What happened during training")

    lengths = {len(line["curves"].get("loss", ())) for line in lines}
    ended = " Some runs ended earlier than others: from there on, a curve is the mean of those that went on."
    page.text(f"Curves are the mean over seeds, epoch by epoch.{ended * (len(lengths) > 1)}")

    def draw(curves: dict[str, str], title: str, id: str, caption: str = "", log: bool = False) -> None:
        """The curves that all lines have: a line of an older version of a recipe may be without one."""
        figure = curve_figure(lines, curves, title, log=log)
        if figure.data:
            page.figure(figure, id=id, caption=caption)

    for metric in metrics:
        draw({metric: "solid"}, metric, id=f"curve-{word_of(metric)}")
    draw(
        {"loss": "solid"},
        "loss",
        id="loss",
        caption="Mean loss of each epoch. Each link has a scale of its own: compare shapes, not heights.",
    )
    draw(
        {"positive_cosine": "solid", "negative_cosine": "dot"},
        "mean cosine",
        id="cosines",
        caption="Mean cosine of positive pairs (solid) and negative pairs (dotted). Where both are near 1, "
        "all vectors point much the same way; training moves negatives towards 0 (unrelated) and keeps "
        "positives high.",
    )
    draw(
        {"effective_dimension": "solid"},
        "effective dimension",
        log=True,
        id="effective-dimension",
        caption="In how many dimensions random vectors would be as far from orthogonal as the negative "
        "pairs are: 1 / (mean squared cosine). 1 means that all vectors lie on a line.",
    )
    draw(
        {"gradient_scale": "solid"},
        "gradient scale",
        log=True,
        id="gradient-scale",
        caption="How strongly the loss acts on the cosines of a batch: the sum of |d loss / d cosine| over "
        "all pairs of an example, the mean over examples. With a temperature it is 2/tau until the positive "
        "pair is clearly ahead of the negative ones; with the free link it is larger for pairs whose cosine "
        "is near 1 or -1.",
    )


def _cosines(page: Page, lines: Sequence[Line]) -> None:
    figure = cosine_figure(lines)
    if not figure.data:
        return
    candidates = next((n for line in lines if (n := line["curves"].get("candidates"))), None)
    others = "others" if candidates is None else f"other {candidates - 1} candidates"
    page.heading("Where the cosines ended, and what the loss would still do there")
    page.figure(
        figure,
        id="histogram",
        caption="Bars: cosines of positive and negative pairs in the last epoch, in % of their kind. "
        "Line: the gradient scale in the paper's scenario, one positive pair at cosine C and all "
        f"{others} at -C, read at C on the horizontal axis. A curve that is near zero before C reaches 1 "
        "stops learning early, and one that is still high at 1 has a gradient for pairs that are already "
        "perfect. Real negatives are not all at -C: those that lie among the positives keep the gradient "
        "larger, as the measured curve above shows. A link of your own has its bars alone.",
    )


def _origin(
    recipe: About, lines: Sequence[Line], preset: str | None, data: Path | None
) -> list[dict[str, str]]:
    """What the runs have in common beside their settings: when, on what, how many."""
    days = sorted({str(line["date"]) for line in lines})
    seeds = sorted({line["seed"] for line in lines})
    found = {
        "recipe": recipe.name,
        "date": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        "data": recipe.data_source if data is None else str(data),
        "preset": preset,
        "seeds": ", ".join(map(str, seeds)),
    }
    return [{"what": name, "value": value} for name, value in found.items() if value is not None]


def _facts(line: Line) -> list[dict[str, str]]:
    groups = ("settings", "versions", "hardware")
    return [
        {"what": name, "value": value if isinstance(value, str) else json.dumps(value)}
        for group in groups
        for name, value in line[group].items()
    ]
