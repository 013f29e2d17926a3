"""The paper's recommendation benchmark on other data: DCRec with each link on Beauty and Reddit.

    python -m benchmarks.paper.dcrec --data FOLDER --jobs 4 --seconds 540    # again, until all is done
    python -m benchmarks.paper.dcrec --table                                 # the tables and the picture
    python -m benchmarks.paper.dcrec --data FOLDER --speed                   # what takes how long

Writes benchmarks/results/dcrec.jsonl, the raw line of each run as soon as it is done, with every twentieth
epoch of its curves; docs/figures/dcrec.png is drawn from them. --speed writes
benchmarks/results/dcrec-speed.jsonl. Seeds are paired. The control has no contrastive term; runs without ids
have the negatives of the public code, where the same last item twice in a batch is a negative equal to the
positive. benchmarks/results/dcrec-older.jsonl has seeds 0 to 2 by an older version, whose dropout drew other
numbers: --table --results benchmarks/results/dcrec-older.jsonl --figure older.png.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from benchmarks.paper.dcrec_tables import apart, differences, draw, paper, table
from benchmarks.speed.dcrec_speed import measure
from benchmarks.support.lines import read, thinned
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.paths import FIGURES, RESULTS
from benchmarks.support.training import train_missing
from taufree.experiments.recommendation.dcrec import NAMED_DATASETS, DCRecSettings
from taufree.experiments.training.run import Run
from taufree.util.json_lines import append_json
from taufree.util.machine import choose_device

LINKS = ("free", "0.8", "0.1", "0.5", "1")
"""The paper's two first."""
FIRST_SEEDS = 3
"""Seeds that are done with everything before the others begin."""
BATCH_SIZE = 2048
"""The public code's for Beauty; for Reddit it has 128, which would take sixteen times the steps."""
FIGURE = FIGURES / "dcrec.png"


def planned(chosen: argparse.Namespace, device: str) -> list[Run]:
    """All runs: a few seeds with everything; then the others, the paper's links and the control first.

    Runs without ids, which show what ids are for, have these few seeds alone.
    """
    links = [(link, {}) for link in LINKS]
    main, others = [*links[:2], ("free", {"contrast": 0.0})], links[2:]
    with_twins = [(link, {"ids": False}) for link in LINKS[:2]]
    few, more = range(chosen.seeds)[:FIRST_SEEDS], range(chosen.seeds)[FIRST_SEEDS:]
    stages = ((few, [*main, *others]), (few, with_twins), (more, main), (more, others))
    order = [
        (seed, dataset, link, other)
        for seeds, kinds in stages
        for seed in seeds
        for dataset in chosen.datasets.split(",")
        for link, other in kinds
    ]
    same = {"epochs": chosen.epochs, "batch_size": chosen.batch_size, "protocol": chosen.protocol}
    where = {"device": device, "data": chosen.data}
    return [
        Run("dcrec", link, seed, DCRecSettings(dataset=dataset, **same, **other), **where)
        for seed, dataset, link, other in order
    ]


def train(chosen: argparse.Namespace) -> None:
    """Do the runs that the results do not have, as long as the time allows."""
    runs = planned(chosen, choose_device(chosen.device, "32-true"))
    # The curve that shows which epoch was chosen stays whole.
    train_missing(runs, chosen, partial(thinned, whole=("choice",)))


def speed(chosen: argparse.Namespace, device: str) -> None:
    """Measure each data set, and write a line for it."""
    for dataset in chosen.datasets.split(","):
        settings = DCRecSettings(dataset=dataset, batch_size=chosen.batch_size)
        found = measure(settings, chosen.data, device, chosen.repeats)
        print(json.dumps(found, indent=1), flush=True)
        append_json(chosen.speed_results, found)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds dcrec/beauty and dcrec/reddit")
    parser.add_argument("--datasets", default=",".join(NAMED_DATASETS))
    parser.add_argument("--protocol", default="validation", help="validation, or public")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=DCRecSettings.epochs, help="at most")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    add_training_options(parser, "dcrec")
    add_result_options(parser, "dcrec")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="where the picture goes")
    parser.add_argument("--speed", action="store_true", help="measure times instead")
    parser.add_argument("--repeats", type=int, default=50, help="measurements of --speed")
    parser.add_argument("--speed-results", type=Path, default=RESULTS / "dcrec-speed.jsonl")
    chosen = parser.parse_args()
    if chosen.speed:
        speed(chosen, choose_device(chosen.device, "32-true"))
        return
    if not chosen.table:
        train(chosen)
    parts = apart(read(chosen.results), BATCH_SIZE)
    for title, lines in parts.items():
        print(f"\n### {title}\n")
        table(lines)
        print()
        differences(lines)
    paper()
    if parts:
        draw(parts, chosen.figure)


if __name__ == "__main__":
    main()
