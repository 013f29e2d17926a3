"""What does each temperature scheme of the field gain over the free link? On digits, with published defaults.

    python -m benchmarks.studies.temperature_schemes # an hour of one core; what was interrupted goes on
    python -m benchmarks.studies.temperature_schemes --cost # measures the time of losses again
    python -m benchmarks.studies.temperature_schemes --table # only the table, from the results

The recipe is `taufree run digits`, paired seeds. Writes benchmarks/results/temperature-schemes.jsonl, the raw
lines with every twentieth epoch of their curves, and a line for the cost of each scheme.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmarks.support.lines import read, thinned
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_result_options, add_training_options, parser_of
from benchmarks.support.training import device_and_precision, train_missing
from taufree.experiments.digits import Digits
from taufree.experiments.link_names import (
    SCHEMES,
    describe,
    in_order,
    is_scheme,
    make_link,
    parse_links,
    scheme_needs,
    scheme_settings,
    temperature_of,
)
from taufree.experiments.recipe import choose_settings
from taufree.experiments.report.statistics import difference, spreads
from taufree.experiments.training.run import Run
from taufree.util.json_lines import append_json

LINKS = ("free", "fitted", "learnable", "0.1", "0.25", "0.5", "1", *SCHEMES)
USUAL_NUMBERS = {"free": 0, "fitted": 0, "learnable": 2}
"""That a user chooses; a fixed temperature is one, and schemes have their settings."""


def numbers_of(link: str) -> int:
    """How many numbers a user of the link chooses."""
    if is_scheme(link):
        return len(scheme_settings(link))
    return 1 if temperature_of(link) is not None else USUAL_NUMBERS[link]


def milliseconds(link: str, pairs: int = 1024, columns: int = 128, repeats: int = 9) -> float:
    """The processor's time for a loss and its gradient, on one thread, the median of several."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made, took = make_link(link, samples=pairs), []
    inputs = {"index": torch.arange(pairs), "uncertainty": torch.zeros(2 * pairs, requires_grad=True)}
    recipe = Digits(Digits.settings_type())
    for _ in range(repeats):
        a, b = (torch.randn(pairs, columns, requires_grad=True) for _ in range(2))
        start = time.process_time()
        recipe.loss(a, b, made, **inputs).backward()
        took.append(1000 * (time.process_time() - start))
    return median(took)


def table(lines: list[dict], costs: dict[str, float]) -> None:
    """Markdown: each link's metrics and what it costs; then its paired lead over free and over fitted."""
    found, metrics = spreads(lines), list(Digits.metrics)
    links = in_order({line["link"] for line in lines})
    head("scheme", "numbers to choose", *metrics, "seeds", "ms", "state")
    for link in links:
        needs = scheme_needs(link)
        row(
            describe(link),
            str(numbers_of(link)),
            *(str(found[link][metric]) for metric in metrics),
            str(found[link][metrics[0]].seeds),
            f"{costs[link]:.0f}" if link in costs else "-",
            "12 bytes a sample" if needs and "index" in needs else "none",
        )
    print()
    others = [(metric, other) for other in ("free", "fitted") for metric in metrics]
    head("scheme", *(f"{metric} minus {other}" for metric, other in others))
    for link in links:
        leads = [difference(lines, metric, link, other) for metric, other in others]
        row(describe(link), *("" if one is None or link == one.second else one.brief() for one in leads))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--links", type=parse_links, default=LINKS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cost", action="store_true", help="measure the costs instead of training")
    add_training_options(parser, "temperature-schemes")
    add_result_options(parser, "temperature-schemes")
    chosen = parser.parse_args()
    if chosen.cost:
        for link in chosen.links:
            append_json(chosen.results, {"cost": link, "milliseconds": round(milliseconds(link), 1)})
    elif not chosen.table:
        device, precision = device_and_precision(chosen, Digits)
        settings, _ = choose_settings(Digits, "full")
        runs = [
            Run("digits", link, seed, settings, precision, device)
            for seed in range(chosen.seeds)
            for link in chosen.links
        ]
        train_missing(runs, chosen, thinned)
    lines = read(chosen.results)
    costs = {line["cost"]: line["milliseconds"] for line in lines if "cost" in line}
    if trained := [line for line in lines if "seed" in line]:
        table(trained, costs)


if __name__ == "__main__":
    main()
