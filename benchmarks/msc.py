"""The paper's anomaly table: MSC on CIFAR-10 by class and link, beside the paper's figures.

    python benchmarks/msc.py --data FOLDER --weights FILE --seconds 540   # again, until all is done
    python benchmarks/msc.py --table                  # the tables of docs/anomalies.md, from the results
    python benchmarks/msc.py --speed --weights FILE   # images per second; noise for want of a folder

FOLDER holds cifar10.npz, FILE the weights of a ResNet-50 as it was published first; for others name the
network: --backbone resnet152 --weights imagenet is the paper's own. Each finished run is a line in
benchmarks/results/msc.jsonl and is not done again; what tells most is done first. --speed writes
benchmarks/results/msc-speed.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from imagenette import seconds
from lines import read

from taufree.experiments.checkpoint import Checkpoint
from taufree.experiments.environment import choose_device, hardware, versions
from taufree.experiments.images import from_arrays
from taufree.experiments.link_names import describe, in_order
from taufree.experiments.recipes.cifar10 import CLASSES
from taufree.experiments.recipes.msc import MSC, MSCSettings
from taufree.experiments.replay import Replayed
from taufree.experiments.run import Run
from taufree.experiments.runner import Training, train
from taufree.experiments.summary import difference, spreads

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LINKS = ("free", "0.25", "0.1", "0.5", "1")
MAIN = LINKS[:2]
"""On all ten classes; the others on a few."""
FEW = ("airplane", "bird", "cat")
SEEDS = 3
# Kim and Kim, arXiv 2501.17683: ROC-AUC in %, mean of five runs, with ResNet-152; by class for free alone.
PAPER_MEAN = {"0.1": 96.902, "0.25": 97.215, "0.5": 97.184, "1": 97.012, "free": 97.279}
PAPER_FREE = dict(
    zip(
        CLASSES, (97.145, 98.713, 94.406, 94.461, 96.919, 97.392, 98.171, 98.281, 98.809, 98.491), strict=True
    )
)


def plan() -> list[tuple[str, str, int]]:
    """Class, link and seed of all runs, the most telling first."""
    runs = [(name, link, 0) for name in CLASSES for link in MAIN]
    runs += [(name, link, 0) for link in LINKS[2:] for name in FEW]
    return runs + [(name, link, seed) for seed in range(1, SEEDS) for link in LINKS for name in FEW]


def key(line: dict) -> str:
    return json.dumps([line["link"], line["seed"], line["settings"]], sort_keys=True)


def recorded(line: dict) -> dict:
    """The line with five digits of its curves, and with the name of the weights' file alone."""
    curves = {
        name: [float(f"{value:.5g}") for value in curve] if isinstance(curve, list) else curve
        for name, curve in line["curves"].items()
    }
    settings = {**line["settings"], "weights": Path(line["settings"]["weights"]).name}
    return {**line, "curves": curves, "settings": settings}


def work(chosen: argparse.Namespace, settings: MSCSettings, device: str, precision: str) -> None:
    """Train what is planned and not in the results yet, while another run still fits into the time."""
    start, longest = time.monotonic(), 0.0
    part, parts = map(int, chosen.part.split("/"))
    for name, link, seed in plan()[part - 1 :: parts]:
        run = Run("msc", link, seed, replace(settings, normal=name), precision, device, chosen.data)
        probe = recorded({"link": link, "seed": seed, "settings": run.recorded_settings, "curves": {}})
        if key(probe) in {key(line) for line in read(chosen.results)}:
            continue
        if time.monotonic() - start + longest > chosen.seconds:
            print("The time is used up; give the same command again to go on.", flush=True)
            return
        began = time.monotonic()
        line = train(run, chosen.runs / "checkpoints", note=print)
        longest = max(longest, time.monotonic() - began)
        with chosen.results.open("a") as file:
            file.write(json.dumps(recorded(line)) + "\n")
        Checkpoint(chosen.runs / "checkpoints" / run.slug).remove()
        figures = ", ".join(f"{metric} {value:.2f}" for metric, value in line["metrics"].items())
        print(f"{name}, {describe(link)}, seed {seed}: {figures} ({line['seconds']:.0f} s)", flush=True)


def table(lines: list[dict]) -> None:
    """Markdown: a row for each class, a column for each link, then free minus each temperature."""
    links = in_order({line["link"] for line in lines})
    found = {
        name: [line for line in lines if line["settings"]["normal"] == name]
        for name in CLASSES
        if any(line["settings"]["normal"] == name for line in lines)
    }
    head = ["normal class", "before", *map(describe, links), "paper, free, ResNet-152"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    means: dict[str, list[float]] = {link: [] for link in ["before", *links]}
    for name, part in found.items():
        spread = spreads(part)
        before = mean(line["metrics"]["auc"] - line["metrics"]["gain"] for line in part)
        means["before"].append(before)
        for link in spread:
            means[link].append(spread[link]["auc"].mean)
        cells = [str(spread[link]["auc"]) if link in spread else "" for link in links]
        print("| " + " | ".join([name, f"{before:.2f}", *cells, f"{PAPER_FREE[name]:.2f}"]) + " |")
    whole = [f"{mean(means[link]):.2f}" if len(means[link]) == len(CLASSES) else "" for link in means]
    print("| " + " | ".join(["**mean of ten**", *whole, f"{PAPER_MEAN['free']:.2f}"]) + " |")
    paper = [f"{PAPER_MEAN[link]:.2f}" if link in PAPER_MEAN else "" for link in links]
    print("| " + " | ".join(["paper, mean of ten, ResNet-152", "", *paper, ""]) + " |\n")
    # One number for each class and seed, so that the pairs of all classes are taken together.
    pairs = [
        {**line, "seed": 1000 * CLASSES.index(line["settings"]["normal"]) + line["seed"]} for line in lines
    ]
    for link in links:
        gap = difference(pairs, "auc", "free", link) if link != "free" else None
        if gap is not None and gap.interval is not None:
            print(
                f"- free minus {describe(link)}: {gap.mean:+.3f} (95 % interval {gap.interval[0]:+.3f} to "
                f"{gap.interval[1]:+.3f}, {len(gap.per_seed)} pairs of class and seed)"
            )
    print(f"\n{len(lines)} runs, {median(line['seconds'] for line in lines):.0f} s each in the median.")


class Noise(MSC):
    """As many images as one class of CIFAR-10 has, of noise: the same work."""

    def find(self, data: Path | None):
        draw = np.random.default_rng(0)
        train_set, test = (draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (5000, 10000))
        self._names = list(map(str, range(10000)))
        return from_arrays(train_set, np.zeros(5000), test, np.arange(10000) % 10, CLASSES)


def speed(chosen: argparse.Namespace, settings: MSCSettings, device: str, precision: str) -> dict:
    """Images per second (each view counts) of the parts of a step, of whole epochs, and of scoring."""
    recipe = (MSC if chosen.data else Noise)(settings)
    recipe.load(chosen.data)
    start = time.perf_counter()
    training = Training(Run("msc", "free", 0, settings, precision, device, chosen.data), recipe)
    begin = time.perf_counter() - start
    start = time.perf_counter()
    training.train_epoch()
    first = time.perf_counter() - start
    batch = tuple(part.to(device) for part in next(iter(recipe.batches(0, torch.Generator()))))
    views = recipe.views(batch)
    autocast = training.fabric.autocast
    with torch.no_grad(), autocast():
        middle = training.weights.frozen(views)

    def frozen(inputs: object = ()) -> torch.Tensor:
        with torch.no_grad(), autocast():
            return training.weights.frozen(views)

    def trained(inputs: object = ()) -> torch.Tensor:
        training.optimizer.zero_grad()
        with autocast():
            loss = training.weights.trained(middle).float().square().mean()
        loss.backward()
        return loss.detach()

    parts = {"views": lambda inputs=(): recipe.views(batch), "frozen half": frozen, "trained half": trained}
    measured = {
        name: seconds(Replayed(part) if device == "cuda" else part, device, chosen.repeats)
        for name, part in parts.items()
    }
    with torch.no_grad():
        measured["scoring"] = seconds(lambda: recipe.features(training.model), device, 1)
    epochs = []
    for _ in range(max(1, chosen.repeats // 20)):
        start = time.perf_counter()
        training.train_epoch()  # reads its curves at the end, so the device is done
        epochs.append(time.perf_counter() - start)
    measured["step"] = median(epochs) / recipe.steps
    counts = {name: len(views) for name in measured} | {"scoring": len(recipe.images.labels)}
    return {
        "backbone": settings.backbone,
        "batch_size": settings.batch_size,
        "crop": settings.crop,
        "precision": precision,
        "data": "cifar10" if chosen.data else "noise",
        "replayed": isinstance(training._step, Replayed) and not training._step.waits,
        "images_per_second": {name: round(counts[name] / value) for name, value in measured.items()},
        "milliseconds": {name: round(1e3 * value, 3) for name, value in measured.items()},
        "seconds": {"before training": begin, "first epoch": first, "epoch": median(epochs)},
        "versions": versions(),
        "hardware": hardware(torch.device(device)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder that holds cifar10.npz")
    parser.add_argument("--weights", default="imagenet", help="a file, or imagenet")
    parser.add_argument("--backbone", default="resnet50-v1")
    parser.add_argument("--epochs", type=int, default=MSCSettings.epochs)
    parser.add_argument("--batch-size", type=int, default=MSCSettings.batch_size)
    parser.add_argument("--crop", type=int, default=MSCSettings.crop)
    parser.add_argument("--subset", type=int, default=0, help="so many images at most, to try the script")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", help="bf16-mixed on CUDA and 32-true elsewhere if not given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run that may end later")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th run from the I-th on, for N at once")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "msc", help="where a run goes on")
    parser.add_argument("--results", type=Path, default=RESULTS / "msc.jsonl")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--speed", action="store_true", help="measure images per second instead")
    parser.add_argument("--speed-results", type=Path, default=RESULTS / "msc-speed.json")
    parser.add_argument("--repeats", type=int, default=60, help="measurements of --speed")
    chosen = parser.parse_args()
    if not chosen.table:
        device = choose_device(chosen.device, chosen.precision or "32-true")
        precision = chosen.precision or (MSC.gpu_precision if device == "cuda" else "32-true")
        settings = MSCSettings(
            epochs=chosen.epochs,
            batch_size=chosen.batch_size,
            crop=chosen.crop,
            subset=chosen.subset,
            backbone=chosen.backbone,
            weights=chosen.weights,
        )
    if chosen.speed:
        found = speed(chosen, settings, device, precision)
        print(json.dumps(found, indent=2))
        chosen.speed_results.write_text(json.dumps(found, indent=2) + "\n")
        return
    if not chosen.table:
        work(chosen, settings, device, precision)
    by_backbone: dict[tuple, list[dict]] = {}
    for line in read(chosen.results):
        backbone = (line["settings"]["backbone"], line["settings"]["epochs"], line["settings"]["batch_size"])
        by_backbone.setdefault(backbone, []).append(line)
    for (backbone, epochs, batch_size), lines in by_backbone.items():
        print(f"\n### {backbone}, {epochs} epochs, batches of {batch_size}\n")
        table(lines)


if __name__ == "__main__":
    main()
