"""The paper's graph table: GRACE on CiteSeer, six links, twenty paired seeds, beside the paper's figures.

    python -m benchmarks.paper.citeseer --data FOLDER --jobs 4 # goes on where it was interrupted
    python -m benchmarks.paper.citeseer --table # the tables of docs/results/graphs.md, from the results

Writes benchmarks/results/citeseer.jsonl, the raw lines with every twentieth epoch of their curves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.training import train_missing
from taufree.experiments.graphs.citeseer import CiteSeerSettings
from taufree.experiments.link_names import describe
from taufree.experiments.report.statistics import (
    against_best_temperature,
    best_temperature,
    difference,
    spreads,
)
from taufree.experiments.training.run import Run
from taufree.util.machine import choose_device

LINKS = ("free", "0.1", "0.25", "0.5", "1", "learnable")
MASKED = ("free", "0.5")
# Kim and Kim, arXiv 2501.17683: mean and standard deviation of twenty runs, in %.
PAPER = {
    "0.1": ("58.94 ± 3.17", "53.41 ± 2.72"),
    "0.25": ("62.50 ± 2.92", "56.73 ± 2.87"),
    "0.5": ("67.33 ± 3.02", "60.47 ± 2.82"),
    "1": ("67.05 ± 3.02", "60.03 ± 2.47"),
    "free": ("67.95 ± 2.10", "60.56 ± 2.09"),
}
COLUMNS = (
    "link", "micro, PyGCL's split", "paper", "macro, PyGCL's split", "paper", "micro, 10/10/80",
    "macro, 10/10/80", "seeds", "seconds a run",
)  # fmt: skip


def runs(chosen: argparse.Namespace) -> list[Run]:
    """Each link with each seed, and some with PyGCL's mask."""
    device = choose_device(chosen.device, "32-true")
    return [
        Run(
            "citeseer",
            link,
            seed,
            CiteSeerSettings(chosen.epochs, mask=mask),
            device=device,
            data=chosen.data,
        )
        for mask, links, seeds in (("nt-xent", LINKS, chosen.seeds), ("pygcl", MASKED, chosen.seeds // 2))
        for seed in range(seeds)
        for link in links
    ]


def table(lines: list[dict], *, paper: bool) -> None:
    """Markdown: one row for each link, then links minus the best temperature, and by micro-F1 the others."""
    head(*COLUMNS)
    for link, found in spreads(lines).items():
        published = PAPER.get(link, ("", "")) if paper else ("", "")
        seconds = mean(line["seconds"] for line in lines if line["link"] == link)
        cells = [
            describe(link),
            str(found["pygcl_micro"]),
            published[0],
            str(found["pygcl_macro"]),
            published[1],
        ]
        cells += [str(found["micro"]), str(found["macro"]), str(found["micro"].seeds), f"{seconds:.1f}"]
        row(*cells)
    print()
    for gap in against_best_temperature(lines):
        print(f"- {gap}")
    for link in spreads(lines):
        if link not in ("free", best_temperature(lines, "micro")):
            print(f"- {difference(lines, 'micro', 'free', link)}")


def with_mask_minus_without(lines: list[dict]) -> None:
    """Free with PyGCL's mask against free without, seed by seed."""
    micro = {
        (line["settings"]["mask"], line["seed"]): line["metrics"]["micro"]
        for line in lines
        if line["link"] == "free"
    }
    gaps = [micro[mask, seed] - micro["nt-xent", seed] for mask, seed in micro if mask == "pygcl"]
    if len(gaps) > 1:
        error = stdev(gaps) / len(gaps) ** 0.5
        print(f"- micro: free with the mask minus without is {mean(gaps):+.2f} (standard error {error:.2f}).")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds planetoid/CiteSeer/raw")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=CiteSeerSettings.epochs)
    add_training_options(parser, "citeseer")
    add_result_options(parser, "citeseer")
    chosen = parser.parse_args()
    if not chosen.table:
        train_missing(runs(chosen), chosen, thinned)
    lines = [line for line in read(chosen.results) if line["settings"]["epochs"] == chosen.epochs]
    for mask, title in (("nt-xent", "Without self-pairs"), ("pygcl", "With PyGCL's mask")):
        print(f"\n### {title}\n")
        if part := [line for line in lines if line["settings"]["mask"] == mask]:
            table(part, paper=mask == "nt-xent")
    with_mask_minus_without(lines)


if __name__ == "__main__":
    main()
