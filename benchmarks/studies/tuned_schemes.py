"""What do temperature schemes gain when their numbers are chosen for the task? The best of three settings.

    python -m benchmarks.studies.tuned_schemes digits           # an hour of one core; goes on if interrupted
    python -m benchmarks.studies.tuned_schemes flickr8k --data FOLDER --backbone resnet50-v1 --weights FILE
    python -m benchmarks.studies.tuned_schemes digits --table   # only the table, from the results

Of each scheme the published default and two other settings are trained with one seed that is not counted, and
the best of them by the task's metric with the seeds of the studies that have the defaults: digits as in
temperature_schemes.py, Flickr8k's frozen features as in matching.py with batches of 256. Writes
benchmarks/results/tuned-schemes.jsonl, the raw lines with every twentieth epoch of their curves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.matching import recorded, settings_of
from benchmarks.studies.representation import brief
from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.paths import RESULTS
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.digits import Digits
from taufree.experiments.image_text.clip import CLIP, CLIPSettings
from taufree.experiments.link_names import parse_links, scheme_needs
from taufree.experiments.recipe import Recipe, choose_settings
from taufree.experiments.report.statistics import difference, spreads
from taufree.experiments.training.run import Run

SEED_OF_CHOICE = 100
SIZE = 256  # of a batch of Flickr8k
SETTINGS = {
    "dual": ("dual:tau=0.05", "dual:tau=0.2"),
    "dystress": ("dystress:low=0.1:high=0.2", "dystress:low=0.04:high=0.05"),
    "macl": ("macl:tau0=0.05", "macl:tau0=0.2"),
    "schedule": ("schedule:low=0.1:high=0.5", "schedule:low=0.01:high=0.05"),
    "isogclr": (
        "isogclr:gamma=0.9:beta=0.9:rho=0.3:high=0.7:eta=0.01",
        "isogclr:beta=0.9:rho=6:tau=0.01:low=0.005:clip=5",
    ),
    "tau-net": ("tau-net:t=0.05", "tau-net:t=0.2"),
}
"""Beside the defaults: the authors' own for other data (dystress, schedule, isogclr), half and twice tau."""
RIVALS = ("fitted", "fitted-temperature", "0.05", "0.25", "learnable")


@dataclass(frozen=True)
class Task:
    """A recipe, the metric that chooses and those that are shown, and the seeds; ``earlier`` is the file with
    the lines of the defaults."""

    recipe: type[Recipe]
    chooses: str
    metrics: tuple[str, ...]
    seeds: int
    earlier: str
    small: Callable[[dict], dict]

    @property
    def schemes(self) -> list[str]:
        return [name for name in SETTINGS if (scheme_needs(name) or set()) <= self.recipe.serves]

    def has(self, line: dict) -> bool:
        """Whether it is of a run of this task."""
        settings = line.get("settings", {})
        flickr = settings.get("batch_size") == SIZE and settings.get("frozen") and settings.get("crop") == 224
        plain = settings.get("loss", "info_nce") == "info_nce"
        return line.get("recipe") == self.recipe.name and (self.recipe is Digits or bool(flickr and plain))


TASKS = {
    "digits": Task(Digits, "linear", ("knn", "linear"), 20, "temperature-schemes.jsonl", thinned),
    "flickr8k": Task(CLIP, "dev_rsum", ("rsum",), 5, "matching.jsonl", recorded),
}


def runs(chosen: argparse.Namespace, task: Task, links: list[str], seeds: range) -> list[Run]:
    device, precision = device_and_precision(chosen, task.recipe)
    settings = choose_settings(Digits, "full")[0] if task.recipe is Digits else settings_of(chosen, SIZE)
    return [
        Run(task.recipe.name, link, seed, settings, precision, device, chosen.data)
        for seed in seeds
        for link in links
    ]


def best_settings(lines: list[dict], task: Task) -> dict[str, str]:
    """Of each scheme, by the seed that is not counted; those with a setting not trained yet are missing."""
    found = {line["link"]: line["metrics"][task.chooses] for line in lines if line["seed"] == SEED_OF_CHOICE}
    tried = {name: parse_links(",".join((name, *SETTINGS[name]))) for name in task.schemes}
    return {
        name: max(names, key=found.__getitem__) for name, names in tried.items() if set(names) <= set(found)
    }


def table(lines: list[dict], task: Task) -> None:
    """Markdown: each scheme with its best setting, and its paired lead over its default and the rivals."""
    counted = [line for line in read(RESULTS / task.earlier) + lines if task.has(line)]
    counted = [line for line in counted if line["seed"] < task.seeds]
    found = spreads(counted)
    for metric in task.metrics:
        rivals = [name for name in RIVALS if metric in found.get(name, {})]
        print()
        others = (f"minus {name}" for name in ("default", *rivals))
        head("scheme", f"best setting, {metric}", metric, "seeds", *others)
        for name, best in best_settings(lines, task).items():
            if best not in found:  # not trained with the counted seeds yet
                continue
            leads = [difference(counted, metric, best, other) for other in (name, *rivals)]
            shown = ["-" if one is None else "" if one.first == one.second else brief(one) for one in leads]
            of = found[best][metric]
            row(name, best if best != name else "the default", str(of), str(of.seeds), *shown)
        for name in rivals:
            of = found[name][metric]
            row(name, "", str(of), str(of.seeds), *("" for _ in range(len(rivals) + 1)))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, help="folder of Flickr8k")
    parser.add_argument("--backbone", default=CLIPSettings.backbone)
    parser.add_argument("--weights", default=CLIPSettings.weights, help="a file, or imagenet")
    parser.add_argument("--model", help="folder or hub's name of another text tower")
    add_training_options(parser, "tuned-schemes")
    add_result_options(parser, "tuned-schemes")
    parser.set_defaults(preset="frozen", loss="info_nce", crop=None, set=[], precision=None)
    chosen = parser.parse_args()
    task = TASKS[chosen.task]
    if not chosen.table:
        tried = [link for name in task.schemes for link in parse_links(",".join((name, *SETTINGS[name])))]
        train_missing(
            runs(chosen, task, tried, range(SEED_OF_CHOICE, SEED_OF_CHOICE + 1)), chosen, task.small
        )
    lines = [line for line in read(chosen.results) if task.has(line)]
    if not chosen.table:
        changed = [best for name, best in best_settings(lines, task).items() if best != name]
        train_missing(runs(chosen, task, changed, range(task.seeds)), chosen, task.small)
        lines = [line for line in read(chosen.results) if task.has(line)]
    table(lines, task)


if __name__ == "__main__":
    main()
