"""The paper's anomaly table: MSC on CIFAR-10 by class and link, beside the paper's figures.

    python -m benchmarks.paper.msc --data FOLDER --weights FILE --jobs 3 --seconds 540 # until all is done
    python -m benchmarks.paper.msc --table # the tables of docs/results/anomalies.md, from the results
    python -m benchmarks.paper.msc --speed --weights FILE # images per second; noise without a folder

FOLDER holds cifar10.npz, FILE the weights of a ResNet-50 as it was published first; for others name the
network: --backbone resnet152 --weights imagenet is the paper's own. Each finished run is a line in
benchmarks/results/msc.jsonl and is not done again; the most important are done first. The picture
docs/figures/msc.png is drawn from them. --speed writes benchmarks/results/msc-speed.json.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import (
    add_precision_option,
    add_result_options,
    add_training_options,
    parser_of,
)
from benchmarks.support.paths import FIGURES, RESULTS
from benchmarks.support.pictures import colour, finish
from benchmarks.support.timing import epoch_seconds, part_seconds, seconds, write
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.images.cifar10 import CLASSES
from taufree.experiments.images.decoded import from_arrays
from taufree.experiments.images.msc import MSC, MSCSettings
from taufree.experiments.link_names import describe, in_order
from taufree.experiments.report.statistics import difference, interval_of_mean, spreads
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training

FIGURE = FIGURES / "msc.png"
LINKS = ("free", "0.25", "0.1", "0.5", "1")
MAIN_LINKS = LINKS[:2]
"""On all ten classes; the others on a few."""
FEW_CLASSES = ("airplane", "bird", "cat")
SEEDS = 3
# Kim and Kim, arXiv 2501.17683: ROC-AUC in %, mean of five runs, with ResNet-152; by class for free alone.
PAPER_MEAN = {"0.1": 96.902, "0.25": 97.215, "0.5": 97.184, "1": 97.012, "free": 97.279}
PAPER_FREE = dict(
    zip(
        CLASSES, (97.145, 98.713, 94.406, 94.461, 96.919, 97.392, 98.171, 98.281, 98.809, 98.491), strict=True
    )
)


def plan() -> list[tuple[str, str, int]]:
    """Class, link and seed of all runs, the most important first, the links of a class together."""
    runs = [(name, link, 0) for name in CLASSES for link in MAIN_LINKS]
    runs += [(name, link, 0) for name in FEW_CLASSES for link in LINKS[2:]]
    for links in (MAIN_LINKS, LINKS[2:]):
        runs += [(name, link, seed) for seed in range(1, SEEDS) for name in FEW_CLASSES for link in links]
    return runs


def recorded(line: dict) -> dict:
    """The line with five digits of its curves, and with the name of the weights' file alone."""
    curves = {
        name: [float(f"{value:.5g}") for value in curve] if isinstance(curve, list) else curve
        for name, curve in line["curves"].items()
    }
    settings = {**line["settings"], "weights": Path(line["settings"]["weights"]).name}
    return {**line, "curves": curves, "settings": settings}


def train(chosen: argparse.Namespace, settings: MSCSettings, device: str, precision: str) -> None:
    """Do what is planned and not in the results yet, as long as the time allows."""
    runs = [
        Run("msc", link, seed, replace(settings, normal=name), precision, device, chosen.data)
        for name, link, seed in plan()
    ]
    train_missing(runs, chosen, recorded)


def kind(settings: dict) -> str:
    """What is not the same in all runs but class, link and seed."""
    text = "{backbone}, {epochs} epochs, batches of {batch_size}".format(**settings)
    for name in ("crop", "subset"):
        text += f", {name} {settings[name]}" * (settings[name] != getattr(MSCSettings, name))
    return text + ", float32" * (settings.get("precision") == "32-true")


def table(lines: list[dict]) -> None:
    """Markdown: a row for each class, a column for each link, then free minus each temperature."""
    links = in_order({line["link"] for line in lines})
    found = {
        name: [line for line in lines if line["settings"]["normal"] == name]
        for name in CLASSES
        if any(line["settings"]["normal"] == name for line in lines)
    }
    head("normal class", "before", *map(describe, links), "paper, free, ResNet-152")
    means: dict[str, dict[str, float]] = {link: {} for link in ["before", *links]}
    for name, part in found.items():
        spread = spreads(part)
        before = mean(line["metrics"]["auc"] - line["metrics"]["gain"] for line in part)
        means["before"][name] = before
        for link in spread:
            means[link][name] = spread[link]["auc"].mean
        cells = [str(spread[link]["auc"]) if link in spread else "" for link in links]
        row(name, f"{before:.2f}", *cells, f"{PAPER_FREE[name]:.2f}")
    for what, some in ((f"mean of {', '.join(FEW_CLASSES)}", FEW_CLASSES), ("**mean of ten**", CLASSES)):
        cells = [
            f"{mean(of[name] for name in some):.2f}" if of.keys() >= set(some) else ""
            for of in [*means.values(), PAPER_FREE]
        ]
        row(what, *cells)
    paper = [f"{PAPER_MEAN[link]:.2f}" if link in PAPER_MEAN else "" for link in links]
    row("paper, mean of ten, ResNet-152", "", *paper, "")
    print()
    for link in links:
        gaps = {name: gap for name, part in found.items() if (gap := difference(part, "auc", "free", link))}
        if link == "free" or not gaps:
            continue
        each = [gap.mean for gap in gaps.values()]
        interval = interval_of_mean(each)
        over = f"95 % interval {interval[0]:+.2f} to {interval[1]:+.2f}, " if interval else ""
        ahead = sum(gap > 0 for gap in each)
        print(
            f"- free minus {describe(link)}: {mean(each):+.2f} in the mean of classes "
            f"({over}ahead in {ahead} of {len(each)})"
        )
        for name, gap in gaps.items():
            if gap.interval is not None:
                print(f"  - {name}, {gap}")
    print(f"\n{len(lines)} runs, {median(line['seconds'] for line in lines):.0f} s each in the median.")


def draw(lines: list[dict], path: Path) -> None:
    """What training adds to the ROC-AUC, by class and link, a dot for each run."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    links = in_order({line["link"] for line in lines})
    for place, link in enumerate(links):
        runs = [line for line in lines if line["link"] == link]
        at = [CLASSES.index(line["settings"]["normal"]) + 0.14 * (place - len(links) // 2) for line in runs]
        gains = [line["metrics"]["gain"] for line in runs]
        axes.plot(at, gains, "o", ms=5, alpha=0.8, mec="none", color=colour(link), label=describe(link))
    axes.set_xticks(range(len(CLASSES)), CLASSES)
    axes.set(xlabel="normal class", ylabel="ROC-AUC, points gained", ylim=(0, None))
    finish(figure, path, columns=len(links))


class Noise(MSC):
    """As many images as one class of CIFAR-10 has, of noise: the same work."""

    def find(self, data: Path | None):
        draw = np.random.default_rng(0)
        train_set, test = (draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (5000, 10000))
        self._names = list(map(str, range(10000)))
        return from_arrays(train_set, np.zeros(5000), test, np.arange(10000) % 10, CLASSES)


def speed(chosen: argparse.Namespace, settings: MSCSettings, device: str, precision: str) -> None:
    """Images per second (each view counts) of the parts of a step, of whole epochs, and of scoring."""
    recipe = (MSC if chosen.data else Noise)(settings)
    recipe.load(chosen.data)
    start = time.perf_counter()
    training = Training(Run("msc", "free", 0, settings, precision, device, chosen.data), recipe)
    begin = time.perf_counter() - start
    first = epoch_seconds(training, 1)
    batch = tuple(part.to(device) for part in next(iter(recipe.batches(0, torch.Generator()))))
    autocast = training.fabric.autocast

    def views(inputs: object = ()) -> torch.Tensor:
        return recipe.views(batch)

    images = views()

    def frozen(inputs: object = ()) -> torch.Tensor:
        with torch.no_grad(), autocast():
            return training.weights.frozen(images)

    middle = frozen()

    def trained(inputs: object = ()) -> torch.Tensor:
        training.optimizer.zero_grad()
        with autocast():
            loss = training.weights.trained(middle).float().square().mean()
        loss.backward()
        return loss.detach()

    parts = {"views": views, "frozen half": frozen, "trained half": trained}
    measured = part_seconds(parts, device, chosen.repeats)
    with torch.no_grad():
        measured["scoring"] = seconds(lambda: recipe.features(training.model), device, 1, first=0)
    epoch = epoch_seconds(training, max(1, chosen.repeats // 20))
    measured["step"] = epoch / recipe.steps
    counts = dict.fromkeys(measured, len(images)) | {"scoring": len(recipe.images.labels)}
    about = {
        "backbone": settings.backbone,
        "crop": settings.crop,
        "data": "cifar10" if chosen.data else "noise",
    }
    took = {"before training": begin, "first epoch": first, "epoch": epoch}
    write(chosen.speed_results, training, counts, measured, **about, seconds=took)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds cifar10.npz")
    parser.add_argument("--weights", default="imagenet", help="a file, or imagenet")
    parser.add_argument("--backbone", default="resnet50-v1")
    parser.add_argument("--epochs", type=int, default=MSCSettings.epochs)
    parser.add_argument("--batch-size", type=int, default=MSCSettings.batch_size)
    parser.add_argument("--crop", type=int, default=MSCSettings.crop)
    parser.add_argument("--subset", type=int, default=0, help="so many images at most, to try the script")
    add_training_options(parser, "msc")
    add_result_options(parser, "msc")
    add_precision_option(parser)
    parser.add_argument("--speed", action="store_true", help="measure images per second instead")
    parser.add_argument("--speed-results", type=Path, default=RESULTS / "msc-speed.json")
    parser.add_argument("--repeats", type=int, default=60, help="measurements of --speed")
    chosen = parser.parse_args()
    if not chosen.table:
        device, precision = device_and_precision(chosen, MSC)
        settings = MSCSettings(
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            crop=chosen.crop,
            subset=chosen.subset,
            backbone=chosen.backbone,
            weights=chosen.weights,
        )
    if chosen.speed:
        speed(chosen, settings, device, precision)
        return
    if not chosen.table:
        train(chosen, settings, device, precision)
    parts: dict[str, list[dict]] = {}
    for line in read(chosen.results):
        parts.setdefault(kind(line["settings"]), []).append(line)
    for title, lines in parts.items():
        print(f"\n### {title}\n")
        table(lines)
        if title == kind(asdict(MSCSettings(backbone="resnet50-v1"))):
            draw(lines, FIGURE)


if __name__ == "__main__":
    main()
