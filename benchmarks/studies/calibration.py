"""Does one default without any setting keep up with the best tuned temperature everywhere?

    python -m benchmarks.studies.calibration --data FOLDER --tasks digits,citeseer --jobs 2
    python -m benchmarks.studies.calibration --data FOLDER --tasks imagenette --seconds 540 # again and again
    python -m benchmarks.studies.calibration --tasks "alternatives on digits" --jobs 2 # other ways to a gain
    python -m benchmarks.studies.calibration --table # docs/studies/calibration.md
    python -m benchmarks.studies.calibration --cost # what measuring costs

Writes one line for each run to benchmarks/results/calibration.jsonl, with every twentieth epoch of its
curves, and does no run again that is there; the pictures docs/figures/calibration*.png are drawn from them.
After --seconds it stops in good order; a run under way goes on from its checkpoint in --runs, if that is
still there.

A run has collapsed if it is not at least a point better than the same network before training, or if its loss
was not finite.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.studies.calibration_cost import cost
from benchmarks.studies.calibration_figures import overview, sizes
from benchmarks.support.lines import KEPT_EVERY, read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.paths import FIGURES, RESULTS
from benchmarks.support.training import complete, device_and_precision, say_failed, stopping
from taufree.experiments.digits import DigitsSettings
from taufree.experiments.graphs.citeseer import CiteSeerSettings
from taufree.experiments.images.simclr import SimCLRSettings
from taufree.experiments.link_names import describe, in_order
from taufree.experiments.registry import find_recipe
from taufree.experiments.report.statistics import best_temperature, difference, spreads
from taufree.experiments.settings import Settings
from taufree.experiments.sweep.results import line_key
from taufree.experiments.training.run import LINK_SOURCE, Run, run_key
from taufree.experiments.training.trainer import Training
from taufree.util.json_lines import append_json
from taufree.util.machine import choose_device

LINKS = ("0.05", "0.1", "0.25", "0.5", "1", "learnable", "free", "gain=2", "calibrated")
FEW_LINKS = ("0.1", "0.25", "0.5", "free", "calibrated")
ALTERNATIVE_LINKS = (
    *FEW_LINKS, "alternatives:Centred", "alternatives:Median", "alternatives:WithCount", "alternatives:Full"
)  # fmt: skip
UNTRAINED = "untrained"
NOT_FINITE = re.compile(r".+ became (nan|-?inf) .+")
COLUMNS = (
    "link", "mean ± std", "minus the best tau (95 % interval)",
    "effective dimension, epoch 20 / middle / end", "tau at c = 0, end", "collapsed", "seeds",
    "seconds a run",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A column of the study: what is trained, with which links, and by what it is judged."""

    recipe: str
    settings: Settings
    metric: str
    links: tuple[str, ...] = LINKS
    seeds: int = 20


def imagenette(links: tuple[str, ...] = FEW_LINKS, seeds: int = 1, **changes: int) -> Task:
    return Task(
        "imagenette", SimCLRSettings(epochs=100, knn_every=KEPT_EVERY, **changes), "knn", links, seeds
    )


LONG = DigitsSettings(epochs=600)  # ten times as many
SMALL, LARGE = DigitsSettings(batch_size=128, epochs=30), DigitsSettings(batch_size=1024, epochs=300)
TASKS = {
    "digits": Task("digits", DigitsSettings(), "linear"),
    "digits, knn": Task("digits", DigitsSettings(), "knn"),
    "citeseer": Task("citeseer", CiteSeerSettings(), "micro"),
    "long digits": Task("digits", LONG, "linear", seeds=5),
    "long digits, knn": Task("digits", LONG, "knn", seeds=5),
    # As many steps as with the recipe's 256.
    "digits, batch 128": Task("digits", SMALL, "linear", seeds=10),
    "digits, batch 128, knn": Task("digits", SMALL, "knn", seeds=10),
    "digits, batch 1024": Task("digits", LARGE, "linear", seeds=5),
    "digits, batch 1024, knn": Task("digits", LARGE, "knn", seeds=5),
    "imagenette": imagenette(LINKS, seeds=3),
    "imagenette, batch 64": imagenette(batch_size=64),
    "imagenette, batch 1024": imagenette(batch_size=1024),
    "imagenette, batch 4096": imagenette(batch_size=4096),
    "imagenette, 32 projections": imagenette(projection=32),
    "imagenette, 512 projections": imagenette(projection=512),
    "alternatives on digits": Task("digits", DigitsSettings(), "linear", ALTERNATIVE_LINKS),
    "alternatives on long digits": Task("digits", LONG, "linear", ALTERNATIVE_LINKS, seeds=5),
    "alternatives on citeseer": Task("citeseer", CiteSeerSettings(), "micro", ALTERNATIVE_LINKS, seeds=5),
    "alternatives on imagenette": imagenette(ALTERNATIVE_LINKS),
}

SIZES = {
    "batch size": {
        64: "imagenette, batch 64",
        256: "imagenette",
        1024: "imagenette, batch 1024",
        4096: "imagenette, batch 4096",
    },
    "columns of the projections": {
        32: "imagenette, 32 projections",
        128: "imagenette",
        512: "imagenette, 512 projections",
    },
}


def distinguishing(settings: dict) -> dict:
    """The settings that distinguish runs: how often one is evaluated while it trains changes nothing else.

    The alternatives' links are not known by their source: the results are older than that, and comments of
    it may change.
    """
    return {name: value for name, value in settings.items() if name not in ("knn_every", LINK_SOURCE)}


def small(line: dict) -> dict:
    """What is kept of a line."""
    whole = ("knn",) if line["settings"].get("knn_every") == KEPT_EVERY else ()
    return {**thinned(line, whole), "settings": distinguishing(line["settings"])}


def runs_of(name: str, chosen: argparse.Namespace) -> list[Run]:
    task = TASKS[name]
    if (folder := str(Path(__file__).parent)) not in sys.path:
        sys.path.append(folder)  # where alternatives:CLASS is imported from, also by workers
    device, precision = device_and_precision(chosen, find_recipe(task.recipe))
    return [
        Run(task.recipe, link, seed, task.settings, precision, device, chosen.data)
        for seed in range(min(task.seeds, chosen.seeds or task.seeds))
        for link in task.links
        if chosen.links is None or link in chosen.links.split(",")
    ]


def untrained(run: Run) -> dict:
    """The line of the network before training, by all metrics, as other tasks share it."""
    recipe = find_recipe(run.recipe)(run.settings)
    recipe.load(run.data)
    return {**start_of(run), "link": UNTRAINED, "metrics": Training(run, recipe).evaluate()}


def is_untrained(line: dict, task: Task) -> bool:
    """Whether a line is of the task's network before training, which tasks of one recipe share."""
    return line["link"] == UNTRAINED and line["recipe"] == task.recipe and task.metric in line["metrics"]


def start_of(run: Run) -> dict:
    settings = distinguishing(run.recorded_settings)
    return {"recipe": run.recipe, "link": run.link, "seed": run.seed, "settings": settings}


def train(name: str, chosen: argparse.Namespace) -> None:
    """Do the runs of the task that are not in the results."""
    task, runs, there = TASKS[name], runs_of(name, chosen), read(chosen.results)
    begun = {(line["recipe"], line["seed"]) for line in there if is_untrained(line, task)}
    for run in {run.seed: run for run in runs if (run.recipe, run.seed) not in begun}.values():
        append_json(chosen.results, untrained(run))

    def failed(run: Run, why: str) -> None:
        say_failed(run, why)
        if NOT_FINITE.fullmatch(why):  # all else, such as too little memory, says nothing of the link
            append_json(chosen.results, {**start_of(run), "failed": why})

    complete(runs, chosen.results, chosen.runs, jobs=chosen.jobs, small=small, failed=failed)


def table(name: str, every: list[dict]) -> dict[str, float]:
    """Markdown: a row for each link. Gives each link's mean minus that of the best temperature."""
    task = TASKS[name]
    mine = [line for line in every if belongs(line, task)]
    lines = [line for line in mine if "metrics" in line]
    print(f"\n### {name}: {task.metric}, %\n")
    if not lines:
        print("*Not measured yet.*")
        return {}
    before = {line["seed"]: line["metrics"][task.metric] for line in every if is_untrained(line, task)}
    best = best_temperature(lines, task.metric)
    head(*COLUMNS)
    shortfalls = {}
    for link, found in spreads(lines).items():
        ended = [line for line in lines if line["link"] == link]
        lost = sum(line["metrics"][task.metric] < before[line["seed"]] + 1 for line in ended)
        lost += sum(line["link"] == link for line in mine) - len(ended)
        dimension = [
            mean(x) for x in zip(*(line["curves"]["effective_dimension"] for line in ended), strict=True)
        ]
        dimension = [dimension[0], dimension[len(dimension) // 2], dimension[-1]]
        taus = [line["curves"]["temperature_at_zero"][-1] for line in ended]
        tau = f"{mean(taus):.3f}" if min(taus) > 0 else "-"  # 0 stands for a link that is flat there
        gap = None if best is None else difference(lines, task.metric, link, best)
        cells = [
            describe(link),
            str(found[task.metric]),
            "" if gap is None or link == best else gap.brief() + ", within noise" * gap.within_noise,
        ]
        cells += [" / ".join(f"{x:.3g}" for x in dimension), tau, str(lost)]
        cells += [str(len(ended)), f"{mean(line['seconds'] for line in ended):.1f}"]
        row(*cells)
        if best is not None:
            shortfalls[link] = found[task.metric].mean - spreads(lines)[best][task.metric].mean
    print()
    for metric in last_metrics(lines):
        say_gaps(lines, metric, "calibrated", ["free"])
        say_gaps(lines, metric, "gain=2", ["calibrated"])
        if metric != task.metric:
            for link in ("free", "gain=2", "calibrated"):
                say_gaps(lines, metric, link, [best_temperature(lines, metric)])
    return shortfalls


def last_metrics(lines: list[dict]) -> list[str]:
    """What runs are judged by at last, and not after their best epoch."""
    return [metric for metric in (lines[0]["metrics"] if lines else ()) if not metric.startswith("best_")]


def say_gaps(lines: list[dict], metric: str, link: str, others: list[str | None]) -> None:
    """Markdown: a link minus each of the others that were run."""
    for other in others:
        if other and (gap := difference(lines, metric, link, other)):
            print(f"- {gap}")


def against_calibrated(name: str, every: list[dict]) -> None:
    """Markdown: each alternative minus the calibrated link and the best temperature, as judged at last."""
    lines = [line for line in every if belongs(line, TASKS[name]) and "metrics" in line]
    print()
    for metric, link in product(last_metrics(lines), ALTERNATIVE_LINKS[len(FEW_LINKS) :]):
        say_gaps(lines, metric, link, ["calibrated", best_temperature(lines, metric)])


def belongs(line: dict, task: Task) -> bool:
    """Whether a line is of the task, for which it need not have been trained: tasks share runs."""
    settings = {**distinguishing(asdict(task.settings)), "precision": line["settings"]["precision"]}
    same = line_key(line) == run_key(task.recipe, line["link"], line["seed"], settings)
    return same and line["link"] in task.links and line["seed"] < task.seeds


def draw(every: list[dict], folder: Path) -> None:
    """The pictures of tasks measured with all links, and of Imagenette by batch size and width."""
    measured = {
        name: found
        for name, task in TASKS.items()
        if (found := [line for line in every if belongs(line, task) and "metrics" in line])
    }
    whole = {
        name: (TASKS[name].metric, found)
        for name, found in measured.items()
        if {line["link"] for line in found} == set(LINKS) and "batch" not in name
    }
    if whole:
        overview(whole, folder / "calibration.png")
    panels = {
        what: {
            size: [line for line in measured[name] if line["link"] in FEW_LINKS]
            for size, name in names.items()
            if name in measured
        }
        for what, names in SIZES.items()
    }
    if all(len(panel) > 1 for panel in panels.values()):
        sizes(panels, "knn", folder / "calibration-sizes.png")


def everywhere(shortfalls: dict[str, dict[str, float]]) -> None:
    """Markdown: how far each link is from the best temperature of each whole task, and where it is worst."""
    tasks = {task: found for task, found in shortfalls.items() if set(found) == set(TASKS[task].links)}
    if not tasks:
        return
    print("\n### Everywhere: mean minus that of the task's best temperature\n")
    links = in_order({link for found in tasks.values() for link in found})
    head("task", *(describe(link) for link in links))

    def cells(found: dict[str, float]) -> list[str]:
        return [f"{found[link]:+.2f}" if link in found else "" for link in links]

    for task, found in tasks.items():
        row(task, *cells(found))
    full = [found for found in tasks.values() if len(found) == len(links)]
    for name, those in (("worst, tasks with all links", full), ("worst of all", list(tasks.values()))):
        common = set(links).intersection(*those) if those else set()
        row(name, *cells({link: min(found[link] for found in those) for link in common}))


def by_size(every: list[dict]) -> None:
    """Markdown: what each link comes to by batch size and by width, and with which effective dimension."""
    for what, names in SIZES.items():
        print(f"\n### imagenette by {what}: knn, %, and the effective dimension at the end\n")
        head(what, *(describe(link) for link in in_order(FEW_LINKS)))
        for size, name in names.items():
            cells = []
            for link in in_order(FEW_LINKS):
                lines = [x for x in every if belongs(x, TASKS[name]) and x["link"] == link and "metrics" in x]
                values = [(x["metrics"]["knn"], x["curves"]["effective_dimension"][-1]) for x in lines]
                cells.append("{:.2f}, {:.3g}".format(*map(mean, zip(*values, strict=True))) if values else "")
            row(f"{size:,}", *cells)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds planetoid and imagenette2-160")
    parser.add_argument(
        "--tasks", default="digits,citeseer,imagenette", help="tasks that begin so; no space after a comma"
    )
    parser.add_argument("--seeds", type=int, help="fewer seeds than the task's")
    parser.add_argument("--links", help="only these of the tasks' links, with commas")
    add_training_options(parser, "calibration")
    add_result_options(parser, "calibration")
    parser.add_argument("--cost", action="store_true", help="only time the loss")
    parser.add_argument("--cost-results", type=Path, default=RESULTS / "calibration-cost.jsonl")
    chosen = parser.parse_args()
    wanted = re.split(",(?! )", chosen.tasks)
    if nameless := [text for text in wanted if not any(name.startswith(text) for name in TASKS)]:
        parser.error(f"--tasks must be beginnings of {'; '.join(TASKS)}, got {nameless[0]!r}.")
    named = [name for name in TASKS if name.startswith(tuple(wanted))]
    known = {link for name in named for link in TASKS[name].links}
    if unknown := set((chosen.links or "").split(",")) - known - {""}:
        parser.error(f"--links must be of the tasks' {', '.join(sorted(known))}, got {unknown.pop()}.")
    if chosen.cost:
        cost(choose_device(chosen.device, "32-true"), chosen.cost_results)
        return
    try:
        with stopping(chosen.seconds):
            for name in [] if chosen.table else named:
                train(name, chosen)
    except KeyboardInterrupt:
        print("Stopped; give the same command again to go on.", file=sys.stderr)
    lines = read(chosen.results)
    everywhere({name: table(name, lines) for name in TASKS if TASKS[name].links != ALTERNATIVE_LINKS})
    by_size(lines)
    for name in TASKS:
        if TASKS[name].links == ALTERNATIVE_LINKS:
            table(name, lines)
            against_calibrated(name, lines)
    draw(lines, FIGURES)


if __name__ == "__main__":
    main()
