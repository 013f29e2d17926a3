"""The paper's recommendation benchmark on other data: DCRec with each link on Beauty and Reddit.

    python benchmarks/dcrec.py --data FOLDER --jobs 4 --seconds 540    # again, until all is done
    python benchmarks/dcrec.py --table                                 # the tables of docs/recommendation.md
    python benchmarks/dcrec.py --data FOLDER --speed                   # what takes how long

Writes benchmarks/results/dcrec.jsonl, the raw line of each run as soon as it is done, with every twentieth
epoch of its curves; --speed writes benchmarks/results/dcrec-speed.jsonl. Seeds are paired. The control has no
contrastive term; runs without ids have the negatives of the public code, where the same last item twice in a
batch is a negative equal to the positive.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import mean

from dcrec_speed import measure
from lines import append, complete, head, read, row, stopping, thinned

from taufree.experiments.environment import choose_device
from taufree.experiments.link_names import describe
from taufree.experiments.recipes.dcrec import NAMED, DCRecSettings
from taufree.experiments.run import Run
from taufree.experiments.summary import difference, free_against_best, spreads

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LINKS = ("free", "0.8", "0.1", "0.5", "1")
"""The paper's two first."""
FIRST = 3
"""Seeds that are done with everything before the others begin."""
BATCH = 2048  # as the public code for Beauty; for Reddit it has 128, which would take sixteen times the steps
# The control stands in the tables of links by a name that this benchmark has no other use for.
CONTROL = "learnable"
SHOWN = ("hr1", "hr5", "hr10", "ndcg5", "ndcg10", "full_hr10", "full_ndcg10")
# Kim and Kim, arXiv 2501.17683, on MovieLens-20M: means of ten runs, in %, with tau 0.8 and without.
PAPER = {
    "tau 0.8": {"hr1": 13.36, "hr5": 37.19, "hr10": 51.91, "ndcg5": 25.56, "ndcg10": 30.31},
    "free": {"hr1": 13.60, "hr5": 37.41, "hr10": 52.09, "ndcg5": 25.79, "ndcg10": 30.52},
}


def planned(chosen: argparse.Namespace, device: str) -> list[Run]:
    """All runs, seed by seed: the links and the control, then some with twins; a few seeds first."""
    links = [(link, {}) for link in LINKS]
    kinds = [*links[:2], ("free", {"contrast": 0.0}), *links[2:]]
    with_twins = [(link, {"ids": False}) for link in LINKS[:2]]
    order = [
        (seed, dataset, link, other)
        for seeds in (range(chosen.seeds)[:FIRST], range(chosen.seeds)[FIRST:])
        for some in (kinds, with_twins)
        for seed in seeds
        for dataset in chosen.datasets.split(",")
        for link, other in some
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
    small = partial(thinned, whole=("choice",))
    try:
        with stopping(chosen.seconds):
            complete(runs, chosen.results, chosen.runs, jobs=chosen.jobs, small=small)
    except KeyboardInterrupt:
        print("Stopped; the same command goes on.")


def table(lines: list[dict]) -> None:
    """Markdown: a row for each link and the control, then the paired differences."""
    with_links = [line for line in lines if line["settings"]["contrast"]]
    control = [{**line, "link": CONTROL} for line in lines if not line["settings"]["contrast"]]
    head("link", *SHOWN, "epoch", "seeds", "seconds a run")
    for link, found in spreads([*with_links, *control]).items():
        of_link = [line for line in (*with_links, *control) if line["link"] == link]
        name = "no contrastive term" if link == CONTROL else describe(link)
        epoch = mean(line["curves"]["choice"].index(max(line["curves"]["choice"])) + 1 for line in of_link)
        seconds = mean(line["seconds"] for line in of_link)
        cells = [name, *(str(found[metric]) for metric in SHOWN), f"{epoch:.0f}"]
        row(*cells, str(found["hr1"].seeds), f"{seconds:.0f}")
    print()
    for gap in free_against_best(with_links):
        if gap.metric in SHOWN:
            print(f"- {gap}")
    for metric in SHOWN:
        if gap := difference([*with_links, *control], metric, "free", CONTROL):
            print(f"- {str(gap).replace(describe(CONTROL), 'no contrastive term')}")


def twins(lines: list[dict]) -> None:
    """Markdown: each link with ``ids`` minus the same link without, where both are there."""
    for link in LINKS[:2]:
        of_link = [line for line in lines if line["link"] == link and line["settings"]["contrast"]]
        # The two sides are named as links, for the paired difference is one of links.
        sides = [{**line, "link": "free" if line["settings"]["ids"] else CONTROL} for line in of_link]
        for metric in ("hr10", "ndcg10", "full_ndcg10"):
            if gap := difference(sides, metric, "free", CONTROL):
                words = str(gap).replace(f"free minus {describe(CONTROL)}", "with ids minus without")
                print(f"- {describe(link)}, {words.replace('free is', 'with ids is')}")


def speed(chosen: argparse.Namespace, device: str) -> None:
    """Measure each data set, and write a line for it."""
    for dataset in chosen.datasets.split(","):
        settings = DCRecSettings(dataset=dataset, batch_size=chosen.batch_size)
        found = measure(settings, chosen.data, device, chosen.repeats)
        print(json.dumps(found, indent=1), flush=True)
        append(chosen.speed_results, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder that holds dcrec/beauty and dcrec/reddit")
    parser.add_argument("--datasets", default=",".join(NAMED))
    parser.add_argument("--protocol", default="validation", help="validation, or public")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=DCRecSettings.epochs, help="at most")
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long; 0 is never")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "dcrec", help="where the runs go on")
    parser.add_argument("--results", type=Path, default=RESULTS / "dcrec.jsonl")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--speed", action="store_true", help="measure times instead")
    parser.add_argument("--repeats", type=int, default=50, help="measurements of --speed")
    parser.add_argument("--speed-results", type=Path, default=RESULTS / "dcrec-speed.jsonl")
    chosen = parser.parse_args()
    if chosen.speed:
        speed(chosen, choose_device(chosen.device, "32-true"))
        return
    if not chosen.table:
        train(chosen)
    lines = read(chosen.results)
    kinds = sorted({(line["settings"]["dataset"], line["settings"]["protocol"]) for line in lines})
    for dataset, protocol in kinds:
        part = [
            line
            for line in lines
            if (line["settings"]["dataset"], line["settings"]["protocol"]) == (dataset, protocol)
        ]
        print(f"\n### {dataset.capitalize()}" + (", the public protocol" * (protocol == "public")) + "\n")
        table([line for line in part if line["settings"]["ids"]])
        print()
        twins(part)
    print("\n### The paper, on MovieLens-20M: another data set, for the order of magnitude alone\n")
    head("link", *SHOWN[:5])
    for name, found in PAPER.items():
        row(name, *(f"{found[metric]:.2f}" for metric in SHOWN[:5]))


if __name__ == "__main__":
    main()
