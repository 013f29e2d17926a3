"""The pictures of the training report: what the networks of some links find similar, normal or fitting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go

from taufree.experiments.evaluation.report_arrays import EXTREME_COUNT, Arrays, load_arrays
from taufree.experiments.link_names import describe, temperature_of
from taufree.experiments.report.galleries import (
    extreme_figure,
    found_captions_figure,
    found_images_figure,
    map_figure,
    neighbour_figure,
)
from taufree.experiments.report.statistics import best_temperature, spreads
from taufree.experiments.sweep.results import Line
from taufree.experiments.training.run import run_slug
from taufree.util.html_page import Page

PICTURE_EPOCHS = 100
"""A page says of pictures of networks with a shorter training that it was short."""
_WHICH = "the free link, and the link without a fixed temperature and the temperature with the best"
_FIGURES: Mapping[str, tuple[Callable[[Arrays], go.Figure], str]] = {
    "map": (
        map_figure,
        "features of {count} validation images, laid out by t-SNE, which keeps near what is near; distances "
        "between groups mean little. The network saw no label: colours were added for this picture.",
    ),
    "neighbours": (
        neighbour_figure,
        "validation images, and the training images whose features are nearest to theirs. A red frame is "
        "another class.",
    ),
    "extremes": (
        extreme_figure,
        "the test images with the highest scores, the most anomalous, and those with the lowest, "
        f"{EXTREME_COUNT} of each at most, and not more than there are anomalous and normal ones. A red "
        "frame is on the wrong side: a normal image above, another below.",
    ),
    "found-images": (
        found_images_figure,
        "test captions, and the test images nearest to them, the nearest first. A green frame is the image "
        "that the caption was written for.",
    ),
    "found-captions": (
        found_captions_figure,
        "test images, and the test captions nearest to them, the nearest first. Bold ones were written for "
        "the image.",
    ),
}
"""Each with its caption."""


def show_pictures(page: Page, lines: Sequence[Line], metric: str, folders: Sequence[Path]) -> None:
    """The section of pictures: the networks of the first seed, if they left something to show, of the free
    link, the best other link without a fixed temperature, and the best temperature.
    """
    chosen = _chosen(lines, metric)
    shown, epochs = {}, 0
    for line in sorted(lines, key=lambda line: line["link"] != "free"):
        if line["seed"] == 0 and line["link"] in chosen:
            slug = run_slug(line["recipe"], line["link"], line["seed"], line["settings"])
            found = (load_arrays(folder / "embeddings" / f"{slug}.npz") for folder in folders)
            if arrays := next(filter(None, found), None):
                shown[line["link"]] = arrays
                epochs = line["settings"]["epochs"]
    if not shown:
        return
    trained = f"after {epochs} epoch{'s' * (epochs != 1)}"
    which = f"The networks of the first seed: {_WHICH} {metric}, {trained}."
    if all("anomalous" in arrays for arrays in shown.values()):
        page.heading("What the network finds normal")
        page.text(
            f"The networks of the first seed, {trained}. Every test image's score is in a file of the folder "
            "scores."
        )
        names = ["extremes"]
    elif all("found_captions" in arrays for arrays in shown.values()):
        page.heading("What images and captions find of each other")
        page.text(which)
        names = ["found-images", "found-captions"]
    else:
        page.heading("What the network finds similar")
        short = f" That is fewer than {PICTURE_EPOCHS}: the pictures show networks that still change much."
        page.text(which + short * (epochs < PICTURE_EPOCHS))
        names = ["map", "neighbours"]
    for name in names:
        draw, caption = _FIGURES[name]
        for number, (link, arrays) in enumerate(shown.items()):
            words = caption.format(count=len(arrays.get("labels", ())))
            page.figure(draw(arrays), id=f"{name}-{number}", caption=f"{describe(link)}: {words}")


def _chosen(lines: Sequence[Line], metric: str) -> set[str | None]:
    means = {link: of_link[metric].mean for link, of_link in spreads(lines).items() if metric in of_link}
    unfixed = [link for link in means if temperature_of(link) is None]
    best = max(unfixed, key=lambda link: means[link], default=None)
    return {"free", best, best_temperature(lines, metric)}
