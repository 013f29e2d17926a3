"""What does a link for matching cost where a representation is wanted? CiteSeer, DCRec, Imagenette, by link.

    python -m benchmarks.studies.representation --data FOLDER --jobs 8      # goes on where interrupted
    python -m benchmarks.studies.representation --tasks beauty --data FOLDER
    python -m benchmarks.studies.representation --tasks imagenette --set knn_every=20 --data FOLDER
    python -m benchmarks.studies.representation --table                     # only the tables

The recipes are the paper's, `taufree run citeseer`, `dcrec` and `imagenette` (100 epochs), with paired seeds.
On CiteSeer all links are trained again beside the fitted ones; elsewhere the lines of links that are not
fitted are those of earlier studies of the same recipe and settings. FOLDER holds planetoid/CiteSeer/raw,
dcrec, or imagenette2-160. Writes benchmarks/results/representation.jsonl, the raw lines with every
twentieth epoch of their curves.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.calibration import UNTRAINED
from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import (
    add_precision_option,
    add_result_options,
    add_training_options,
    parser_of,
)
from benchmarks.support.paths import RESULTS
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.link_names import describe, in_order, parse_links
from taufree.experiments.recipe import choose_settings
from taufree.experiments.registry import find_recipe
from taufree.experiments.report.statistics import (
    Difference,
    against_best_temperature,
    difference,
    spreads,
)
from taufree.experiments.settings import parse_seeds
from taufree.experiments.training.run import Run


@dataclass(frozen=True)
class Task:
    """A recipe with its settings, the metrics of the table, and the links that are compared; ``earlier`` is
    the file of another study with lines of the same runs, of which the links ``beside`` are shown, or all."""

    recipe: str
    given: dict[str, object]
    metrics: tuple[str, ...]
    links: tuple[str, ...]
    seeds: int
    earlier: str | None = None
    beside: tuple[str, ...] = ()

    def has(self, line: dict) -> bool:
        settings = line.get("settings", {})
        same = all(settings.get(name) == value for name, value in self.given.items())
        return bool(line.get("recipe") == self.recipe and same)

    def lines(self, results: Path) -> list[dict]:
        """Those of the results, and the earlier ones of seeds and links that these do not have."""
        earlier = [line for line in read(RESULTS / self.earlier) if self._shows(line)] if self.earlier else []
        lines = earlier + read(results)
        return list({(line["link"], line["seed"]): line for line in lines if self.has(line)}.values())

    def _shows(self, line: dict) -> bool:
        """Whether an earlier line is shown."""
        link = line.get("link", UNTRAINED)
        beside = not self.beside or link in (*self.links, *self.beside)
        return link != UNTRAINED and beside and line["seed"] < self.seeds


def dcrec(dataset: str) -> Task:
    """DCRec as benchmarks/paper/dcrec.py trains it."""
    links = ("fitted", "fitted-temperature", "free", "0.8")
    given = {"dataset": dataset, "batch_size": 2048, "protocol": "validation", "ids": True, "contrast": 0.1}
    return Task("dcrec", given, ("ndcg10", "hr10"), links, 5, "dcrec.jsonl")


TASKS = {
    "citeseer": Task(
        "citeseer", {}, ("micro", "macro"), ("fitted", "fitted-temperature", "free", "1", "0.5"), 20
    ),
    "beauty": dcrec("beauty"),
    "reddit": dcrec("reddit"),
    "imagenette": Task(
        "imagenette",
        {"epochs": 100, "batch_size": 256, "projection": 128},
        ("knn", "linear"),
        ("fitted", "fitted-temperature"),
        3,
        "calibration.jsonl",
    ),
}


def runs(chosen: argparse.Namespace, tasks: dict[str, Task]) -> list[Run]:
    """Each link with each seed, all links of a seed one after the other."""
    found = []
    for task in map(tasks.__getitem__, chosen.tasks):
        recipe = find_recipe(task.recipe)
        device, precision = device_and_precision(chosen, recipe)
        settings, _ = choose_settings(recipe, "full", task.given, chosen.set)
        found += [
            Run(task.recipe, link, seed, settings, precision, device, chosen.data)
            for seed in chosen.seeds or range(task.seeds)
            for link in chosen.links or task.links
        ]
    return found


def table(lines: list[dict], task: Task) -> None:
    """Markdown: one row for each link, then its paired differences to free and to the best temperature."""
    found = spreads(lines)
    links = in_order(set(found))
    head("link", *task.metrics, "seeds")
    for link in links:
        cells = [str(found[link][metric]) for metric in task.metrics]
        row(describe(link), *cells, str(found[link][task.metrics[0]].seeds))
    best = {(gap.metric, gap.first): gap for gap in against_best_temperature(lines)}
    print()
    head("link", *(f"{metric} minus {other}" for metric in task.metrics for other in ("free", "best tau")))
    for link in links:
        gaps = [
            gap
            for metric in task.metrics
            for gap in (
                difference(lines, metric, link, "free") if link != "free" else None,
                best.get((metric, link)),
            )
        ]
        shown = (
            brief(gap) + (f", {describe(gap.second)}" if i % 2 else "") if gap else ""
            for i, gap in enumerate(gaps)
        )
        row(describe(link), *shown)


def brief(gap: Difference) -> str:
    """Bold if it is beyond noise."""
    return f"**{gap.brief()}**" if gap.clear else gap.brief()


def study(about: str | None, name: str, tasks: dict[str, Task], first: str) -> None:
    """The command of a study that compares links on tasks; ``first`` is the task if none is named."""
    parser = parser_of(about)
    parser.add_argument("--data", type=Path, help="folder with the data of the tasks")
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=(first,))
    parser.add_argument("--links", type=parse_links, help="those of the task if not given")
    parser.add_argument("--seeds", type=parse_seeds, help="how many, or 3:5")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="other settings")
    add_precision_option(parser)
    add_training_options(parser, name)
    add_result_options(parser, name)
    chosen = parser.parse_args()
    if not chosen.table:
        train_missing(runs(chosen, tasks), chosen, thinned)
    for title, task in tasks.items():
        if lines := task.lines(chosen.results):
            print(f"\n### {title}\n")
            table(lines, task)


if __name__ == "__main__":
    study(__doc__, "representation", TASKS, "citeseer")
