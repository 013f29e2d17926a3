"""The pictures of the training report: what the networks of some links find similar, normal or fitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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


def show_pictures(page: Page, lines: Sequence[Line], metric: str, folders: Sequence[Path]) -> None:
    """The sections of pictures: the networks of the first seed, if they left something to show, of the free
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
    if all("anomalous" in arrays for arrays in shown.values()):
        _extremes(page, shown, trained)
        return
    if all("found_captions" in arrays for arrays in shown.values()):
        _retrieved(page, shown, metric, trained)
        return
    page.heading("What the network finds similar")
    short = f" That is fewer than {PICTURE_EPOCHS}: the pictures show networks that still change much."
    page.text(
        f"The networks of the first seed: {_WHICH} {metric}, {trained}." + short * (epochs < PICTURE_EPOCHS)
    )
    for number, (link, arrays) in enumerate(shown.items()):
        page.figure(
            map_figure(arrays),
            id=f"map-{number}",
            caption=f"{describe(link)}: features of {len(arrays['labels'])} validation images, laid out by "
            "t-SNE, which keeps near what is near; distances between groups mean little. The network saw no "
            "label: colours were added for this picture.",
        )
    for number, (link, arrays) in enumerate(shown.items()):
        page.figure(
            neighbour_figure(arrays),
            id=f"neighbours-{number}",
            caption=f"{describe(link)}: validation images, and the training images whose features are "
            "nearest to theirs. A red frame is another class.",
        )


def _chosen(lines: Sequence[Line], metric: str) -> set[str | None]:
    means = {link: of_link[metric].mean for link, of_link in spreads(lines).items() if metric in of_link}
    unfixed = [link for link in means if temperature_of(link) is None]
    best = max(unfixed, key=lambda link: means[link], default=None)
    return {"free", best, best_temperature(lines, metric)}


def _extremes(page: Page, shown: Mapping[str, Arrays], trained: str) -> None:
    page.heading("What the network finds normal")
    page.text(
        f"The networks of the first seed, {trained}. Every test image's score is in a file of the folder "
        "scores."
    )
    for number, (link, arrays) in enumerate(shown.items()):
        page.figure(
            extreme_figure(arrays),
            id=f"extremes-{number}",
            caption=f"{describe(link)}: the test images with the highest scores, the most anomalous, and "
            f"those with the lowest, {EXTREME_COUNT} of each at most, and not more than there are anomalous "
            "and normal ones. A red frame is on the wrong side: a normal image above, another below.",
        )


def _retrieved(page: Page, shown: Mapping[str, Arrays], metric: str, trained: str) -> None:
    page.heading("What images and captions find of each other")
    page.text(f"The networks of the first seed: {_WHICH} {metric}, {trained}.")
    for number, (link, arrays) in enumerate(shown.items()):
        page.figure(
            found_images_figure(arrays),
            id=f"found-images-{number}",
            caption=f"{describe(link)}: test captions, and the test images nearest to them, the nearest "
            "first. A green frame is the image that the caption was written for.",
        )
    for number, (link, arrays) in enumerate(shown.items()):
        page.figure(
            found_captions_figure(arrays),
            id=f"found-captions-{number}",
            caption=f"{describe(link)}: test images, and the test captions nearest to them, the nearest "
            "first. Bold ones were written for the image.",
        )
