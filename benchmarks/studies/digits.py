"""The digits comparison of the README: what `make demo` runs, its table and its picture.

    python -m benchmarks.studies.digits # some two minutes on two cores; goes on where it was interrupted
    python -m benchmarks.studies.digits --table # only the table, from the results

Writes benchmarks/results/digits.jsonl (the raw lines) and docs/figures/digits.png, and prints the table.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import FIGURES, RESULTS, ROOT
from benchmarks.support.pictures import FREE, finish
from taufree.experiments.report.statistics import against_best_temperature, spreads
from taufree.experiments.report.tables import table_rows

RUNS = ROOT / "runs" / "digits"
RESULTS_FILE = RESULTS / "digits.jsonl"
TITLES = {"knn": "kNN accuracy", "linear": "linear probe"}


def draw(lines: list[dict], path: Path) -> None:
    """Accuracy by temperature, with the free link as a band across: mean and standard deviation."""
    found = spreads(lines)
    taus = [link for link in found if link not in ("free", "learnable")]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        free = found["free"][metric]
        axes.axhspan(free.mean - free.std, free.mean + free.std, color=FREE, alpha=0.15, lw=0)
        axes.axhline(free.mean, color=FREE, label="free: nothing to tune")
        axes.errorbar(
            [float(tau) for tau in taus],
            [found[tau][metric].mean for tau in taus],
            [found[tau][metric].std for tau in taus],
            color="#0072b2",
            marker="o",
            capsize=3,
            label="temperature",
        )
        axes.set_xscale("log")
        axes.set_xticks([float(tau) for tau in taus], taus)
        axes.minorticks_off()
        axes.set(xlabel="temperature", ylabel="% of held-out digits", title=title)
    finish(figure, path, columns=2)


def train() -> None:
    command = [sys.executable, "-c", "from taufree.cli import main; main()", "run", "digits"]
    subprocess.run([*command, "--out", str(RUNS)], check=True)
    shutil.copy(RUNS / "results.jsonl", RESULTS_FILE)
    draw(read(RESULTS_FILE), FIGURES / "digits.png")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--table", action="store_true", help="only print the table")
    if not parser.parse_args().table:
        train()
    lines = read(RESULTS_FILE)
    rows = table_rows(lines)
    head(*rows[0])
    for cells in rows:
        row(*cells.values())
    for gap in against_best_temperature(lines):
        print(gap)


if __name__ == "__main__":
    main()
