"""What does a link for matching cost where a representation is wanted? GRACE on CiteSeer, DCRec, by link.

    python -m benchmarks.studies.representation --data FOLDER --jobs 8      # goes on where interrupted
    python -m benchmarks.studies.representation --tasks beauty --data FOLDER
    python -m benchmarks.studies.representation --table                     # only the tables

The recipes are the paper's, `taufree run citeseer` and `taufree run dcrec`, with paired seeds. All links are
trained again beside the fitted ones, so that versions and machines are the same. FOLDER holds
planetoid/CiteSeer/raw, or dcrec. Writes benchmarks/results/representation.jsonl, the raw lines with every
twentieth epoch of their curves.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.training import train_missing
from taufree.experiments.link_names import describe, in_order, parse_links
from taufree.experiments.recipe import choose_settings
from taufree.experiments.registry import find_recipe
from taufree.experiments.report.statistics import against_best_temperature, difference, spreads
from taufree.experiments.settings import parse_seeds
from taufree.experiments.training.run import Run
from taufree.util.machine import choose_device


@dataclass(frozen=True)
class Task:
    """A recipe with its settings, the metrics of the table, and the links that are compared."""

    recipe: str
    given: dict[str, object]
    metrics: tuple[str, ...]
    links: tuple[str, ...]
    seeds: int

    def has(self, line: dict) -> bool:
        same = all(line["settings"].get(name) == value for name, value in self.given.items())
        return bool(line["recipe"] == self.recipe and same)


def dcrec(dataset: str) -> Task:
    """DCRec as benchmarks/paper/dcrec.py trains it."""
    links = ("fitted", "fitted-temperature", "free", "0.8")
    return Task("dcrec", {"dataset": dataset, "batch_size": 2048}, ("ndcg10", "hr10"), links, 5)


TASKS = {
    "citeseer": Task(
        "citeseer", {}, ("micro", "macro"), ("fitted", "fitted-temperature", "free", "1", "0.5"), 20
    ),
    "beauty": dcrec("beauty"),
    "reddit": dcrec("reddit"),
}


def runs(chosen: argparse.Namespace) -> list[Run]:
    """Each link with each seed, all links of a seed one after the other."""
    device = choose_device(chosen.device, "32-true")
    found = []
    for task in map(TASKS.get, chosen.tasks):
        settings, _ = choose_settings(find_recipe(task.recipe), "full", task.given, chosen.set)
        found += [
            Run(task.recipe, link, seed, settings, device=device, data=chosen.data)
            for seed in chosen.seeds or range(task.seeds)
            for link in chosen.links or task.links
        ]
    return found


def table(lines: list[dict], task: Task) -> None:
    """Markdown: one row for each link with its paired differences to free and to the best temperature."""
    found = spreads(lines)
    first = task.metrics[0]
    best = {gap.first: gap for gap in against_best_temperature(lines) if gap.metric == first}
    name = describe(next(iter(best.values())).second) if best else "the best temperature"
    head("link", *task.metrics, "seeds", f"{first} minus free", f"{first} minus {name}")
    for link in in_order(set(found)):
        cells = [str(found[link][metric]) for metric in task.metrics]
        gaps = (difference(lines, first, link, "free") if link != "free" else None, best.get(link))
        briefs = [(f"**{gap.brief()}**" if gap.clear else gap.brief()) if gap else "" for gap in gaps]
        row(describe(link), *cells, str(found[link][first].seeds), *briefs)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds planetoid/CiteSeer/raw, or dcrec")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=("citeseer",))
    parser.add_argument("--links", type=parse_links, help="those of the task if not given")
    parser.add_argument("--seeds", type=parse_seeds, help="how many, or 3:5")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="other settings")
    add_training_options(parser, "representation")
    add_result_options(parser, "representation")
    chosen = parser.parse_args()
    if not chosen.table:
        train_missing(runs(chosen), chosen, thinned)
    for name, task in TASKS.items():
        if lines := [line for line in read(chosen.results) if task.has(line)]:
            print(f"\n### {name}\n")
            table(lines, task)


if __name__ == "__main__":
    main()
