"""The paper's image table: SimCLR on Imagenette, five links, paired seeds, beside the paper's figures.

    python -m benchmarks.paper.imagenette --data FOLDER # goes on where it was interrupted
    python -m benchmarks.paper.imagenette --table # table and picture of docs/results/images.md again
    python -m benchmarks.paper.imagenette --speed [--data FOLDER] # images per second; noise without a folder

Writes benchmarks/results/imagenette.jsonl, the raw line of each run when it ends, with every twentieth epoch
of its curves, and docs/figures/imagenette.png and imagenette-800.png from the runs of 200 and 800 epochs.
--speed writes benchmarks/results/imagenette-speed.json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.support.lines import KEPT_EVERY, read, thinned
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
from taufree.experiments.evaluation.pair_statistics import BINS
from taufree.experiments.images.augment import Parameters
from taufree.experiments.images.decoded import from_arrays
from taufree.experiments.images.imagenette import Imagenette
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.link_names import describe, parse_links
from taufree.experiments.report.statistics import (
    against_best_temperature,
    best_temperature,
    difference,
    spreads,
)
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training

# Kim and Kim, arXiv 2501.17683: kNN accuracy, mean and standard deviation of ten runs, in %.
PAPER = {
    "0.1": "80.69 ± 0.24",
    "0.25": "84.43 ± 0.20",
    "0.5": "83.75 ± 0.28",
    "1": "82.27 ± 1.42",
    "free": "84.65 ± 0.27",
}
# LightlySSL's benchmark of Imagenette: the best epoch's kNN accuracy of one run, by epochs.
LIGHTLY = {("0.5", 200): "83.5", ("0.5", 800): "88.9"}
COLUMNS = ("link", "epochs", "knn", "best_knn", "linear", "paper", "LightlySSL", "seeds", "minutes a run")


def train(chosen: argparse.Namespace, device: str, precision: str) -> None:
    """Do the runs that are not in the results, as long as the time allows."""
    settings = SimCLRSettings(epochs=chosen.epochs, batch_size=chosen.batch_size, together=not chosen.apart)
    runs = [
        Run("imagenette", link, seed, settings, precision, device, chosen.data)
        for seed in range(chosen.seeds)
        for link in parse_links(chosen.links)
    ]
    train_missing(runs, chosen, thinned)


def kind(settings: dict) -> tuple[int, str]:
    """The epochs, and what else is not as in most runs."""
    batch = f", batch {settings['batch_size']}" * (settings["batch_size"] != SimCLRSettings.batch_size)
    apart = ", views apart" * (not settings["together"])
    return settings["epochs"], batch + apart + ", float32" * (settings["precision"] == "32-true")


def table(lines: list[dict]) -> None:
    """Markdown: a row for each link and number of epochs, then links minus the best temperature."""
    head(*COLUMNS)
    parts: dict[tuple[int, str], list[dict]] = {}
    for line in lines:
        parts.setdefault(kind(line["settings"]), []).append(line)
    for (epochs, other), part in sorted(parts.items()):
        for link, found in spreads(part).items():
            minutes = mean(line["seconds"] for line in part if line["link"] == link) / 60
            cells = [describe(link), f"{epochs}{other}", *(str(found[name]) for name in Imagenette.metrics)]
            cells += [PAPER.get(link, ""), LIGHTLY.get((link, epochs), "")]
            row(*cells, str(found["knn"].seeds), f"{minutes:.1f}")
    for (epochs, other), part in sorted(parts.items()):
        gaps = against_best_temperature(part)
        gaps += [
            gap for link in spreads(part) if link != "free" and (gap := difference(part, "knn", "free", link))
        ]
        for gap in dict.fromkeys(map(str, gaps)):
            print(f"\n- {epochs} epochs{other}, {gap}", end="")
    print("\n")


def cosines(lines: list[dict]) -> None:
    """Markdown: where the cosines are in the last epoch, mean over seeds."""
    head("link", "epochs", "positive cosine", "positives > 0.95", "negatives > 0.95", "effective dimension")
    for epochs in sorted({line["settings"]["epochs"] for line in lines}):
        for link in spreads(part := [line for line in lines if line["settings"]["epochs"] == epochs]):
            curves = [line["curves"] for line in part if line["link"] == link]
            near = [
                mean(sum(own[name][-BINS // 40 :]) / sum(own[name]) for own in curves)
                for name in ("positive_histogram", "negative_histogram")
            ]
            cosine, dimension = (
                mean(own[name][-1] for own in curves) for name in ("positive_cosine", "effective_dimension")
            )
            shares = (f"{100 * share:.1f} %" for share in near)
            row(describe(link), str(epochs), f"{cosine:.3f}", *shares, f"{dimension:.1f}")


def towards_positives(lines: list[dict], at: Sequence[int] = (20, 200, 400, 600, 800)) -> None:
    """Markdown: what is left to learn in a long training, mean over seeds; the lines are of 800 epochs.

    The positive's share of its anchor's softmax is the geometric mean, exp(-loss), and the gradient scale the
    sum of |dL/dc| over an anchor's candidates.
    """
    head("link", "", *(f"epoch {epoch}" for epoch in at))
    for link in spreads(lines):
        curves = [line["curves"] for line in lines if line["link"] == link]
        seen = [epoch // KEPT_EVERY - 1 for epoch in at]
        knn, share, gap, scale = (
            [mean(value(own[name][i]) for own in curves) for i in seen]
            for name, value in (
                ("knn", float),
                ("loss", lambda loss: 100 * math.exp(-loss)),
                ("positive_cosine", lambda cosine: 1 - cosine),
                ("gradient_scale", float),
            )
        )
        row(describe(link), "kNN", *(f"{x:.1f}" for x in knn))
        row("", "share of the positive", *(f"{x:.1f} %" for x in share))
        row("", "1 - c of positives", *(f"{x:.3f}" for x in gap))
        row("", "gradient scale", *(f"{x:.1f}" for x in scale))


def draw(lines: list[dict], path: Path, epochs: int = 200) -> None:
    """The kNN accuracy over the epochs, mean over seeds, each link less the best temperature's below."""
    curves = {
        link: np.mean([line["curves"]["knn"] for line in lines if line["link"] == link], axis=0)
        for link in spreads(lines)
    }
    best = best_temperature(lines, "knn")
    at = KEPT_EVERY * np.arange(1, epochs // KEPT_EVERY + 1)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, base in zip(figure.subplots(1, 2), (0, curves[best]), strict=True):
        for link, curve in curves.items():
            look = {"lw": 2.5, "zorder": 3} if link == "free" else {}
            axes.plot(at, curve - base, marker="o", ms=3, label=describe(link), color=colour(link), **look)
        axes.set(xlabel="epoch", xticks=range(0, epochs + 1, 50))
    left, right = figure.axes
    left.set_ylabel("kNN accuracy, %")
    right.set_ylabel(f"points above {describe(best)}")
    finish(figure, path, columns=len(curves))


def draw_long(lines: list[dict], path: Path) -> None:
    """The kNN accuracy over the epochs, and where the negatives' cosines are in the last one, of one seed."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for line in lines:
        look = {"label": describe(line["link"]), "color": colour(line["link"])}
        curve, counts = line["curves"]["knn"], np.array(line["curves"]["negative_histogram"])
        left.plot(KEPT_EVERY * np.arange(1, len(curve) + 1), curve, **look)
        right.stairs(100 * counts / counts.sum(), np.linspace(-1, 1, BINS + 1), lw=1.5, **look)
    left.set(xlabel="epoch", ylabel="kNN accuracy, %", ylim=(70, None))
    right.set(xlabel="cosine of a negative pair, last epoch", ylabel="% of the negatives")
    right.set_xticks([-1, -0.5, 0, 0.5, 1])
    finish(figure, path, columns=len(lines))


class Noise(Imagenette):
    """As many images as Imagenette has, of noise: the same work."""

    def find(self, data: Path | None):
        draw = np.random.default_rng(0)
        train, val = (draw.integers(0, 256, (n, 160, 160, 3), dtype=np.uint8) for n in (9469, 3925))
        return from_arrays(train, np.arange(9469) % 10, val, np.arange(3925) % 10, list("abcdefghij"))


def speed(chosen: argparse.Namespace, device: str, precision: str) -> None:
    """Images per second (each view counts) of the views alone, of the network alone, and of whole steps."""
    settings = SimCLRSettings(epochs=chosen.epochs, batch_size=chosen.batch_size)
    recipe = (Imagenette if chosen.data else Noise)(settings)
    recipe.load(chosen.data)
    training = Training(Run("imagenette", "free", 0, settings, precision, device, chosen.data), recipe)
    first = epoch_seconds(training, 1)
    images, *drawn = (part.to(device) for part in next(iter(recipe.batches(0, torch.Generator()))))
    lines = recipe._lines[images]
    views = recipe._augment(torch.cat([lines, lines]), Parameters(*drawn))
    training.model.train()

    def augment(inputs: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        return recipe._augment(torch.cat([lines, lines]), Parameters(*drawn))

    def network(inputs: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = training.model(views)[1].square().mean()
        training.fabric.backward(loss)
        return loss.detach()

    measured = part_seconds({"augmentation": augment, "network": network}, device, chosen.repeats)
    few = max(1, chosen.repeats // 20)
    with torch.no_grad():
        training.model.eval()
        follow = seconds(lambda: recipe.follow(training.model), device, few)
    epoch = epoch_seconds(training, few)
    measured["step"] = (epoch - follow) / recipe.steps
    took = {"first_epoch": first, "epoch": epoch, "knn": follow, "800_epochs": 800 * epoch}
    data = "imagenette" if chosen.data else "noise"
    counts = dict.fromkeys(measured, 2 * chosen.batch_size)
    write(chosen.speed_results, training, counts, measured, data=data, seconds=took)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds imagenette2-160")
    parser.add_argument("--links", default="free,0.1,0.25,0.5,1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=SimCLRSettings.epochs)
    parser.add_argument("--batch-size", type=int, default=SimCLRSettings.batch_size)
    parser.add_argument("--apart", action="store_true", help="one view after the other, as LightlySSL")
    add_training_options(parser, "imagenette")
    add_result_options(parser, "imagenette")
    add_precision_option(parser)
    parser.add_argument("--speed", action="store_true", help="measure images per second instead")
    parser.add_argument("--speed-results", type=Path, default=RESULTS / "imagenette-speed.json")
    parser.add_argument("--repeats", type=int, default=100, help="measurements of --speed")
    chosen = parser.parse_args()
    if not chosen.table:
        device, precision = device_and_precision(chosen, Imagenette)
    if chosen.speed:
        speed(chosen, device, precision)
        return
    if not chosen.table:
        train(chosen, device, precision)
    lines = read(chosen.results)
    table(lines)
    usual = [line for line in lines if not kind(line["settings"])[1]]
    cosines(usual)
    if short := [line for line in usual if line["settings"]["epochs"] == 200]:
        draw(short, FIGURES / "imagenette.png")
    if long := [line for line in usual if line["settings"]["epochs"] == 800]:
        print()
        towards_positives(long)
        draw_long([line for line in long if line["seed"] == 0], FIGURES / "imagenette-800.png")


if __name__ == "__main__":
    main()
