"""The result table of a sweep, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from taufree.experiments.link_names import describe
from taufree.experiments.report.about import about
from taufree.experiments.report.curves import final_temperature
from taufree.experiments.report.statistics import best_temperature, common_seeds, spreads
from taufree.experiments.sweep.results import Line

MAX_METRIC_COLUMNS = 6  # metrics beside each other
ENDED = {
    "calibrated": "ended like",
    "fitted": "ended like",
    "fitted-temperature": "ended at",
    "learnable": "ended at",
}


def table_rows(lines: Sequence[Line]) -> list[dict[str, str]]:
    """The result table, a row per link: mean ± std of every metric, seeds, seconds a run, what stands out."""
    found, metrics, best = spreads(lines), metrics_of(lines), _best_temperatures(lines)
    rows = []
    for link, of_link in found.items():
        leads = [metric for metric, tau in best.items() if tau == link]
        note = f"best tau{_of_some_seeds(lines, leads[0])}: {', '.join(leads)}" if leads else ""
        if link == "free":
            note = "no temperature"
        elif link in ENDED and (tau := final_temperature(lines, link)) is not None:
            note = f"{ENDED[link]} tau {tau:.3f}"
        figures = {metric: str(of_link.get(metric, "-")) for metric in metrics}
        seconds = [line["seconds"] for line in lines if line["link"] == link]
        counts = {"seeds": str(len(seconds)), "seconds": f"{mean(seconds):.1f}"}
        rows.append({"link": describe(link), **figures, **counts, "note": note})
    return rows


@dataclass(frozen=True)
class ResultTable:
    """:func:`table_rows` as they are shown.

    Attributes:
        stressed: rows, by their numbers, or cells, by number and column: free and the best temperatures.
        notes: a last row, where links have the columns.
    """

    rows: list[dict[str, str]]
    stressed: set[int | tuple[int, str]]
    notes: dict[str, str]


def result_table(lines: Sequence[Line]) -> ResultTable:
    """The result table. Where the metrics are too many to stand beside each other, links have the columns."""
    rows, best = table_rows(lines), _best_temperatures(lines)
    stressed: set[int | tuple[int, str]]
    if len(metrics_of(lines)) <= MAX_METRIC_COLUMNS:
        shown = {"free", *map(describe, best.values())}
        return ResultTable(rows, {i for i, row in enumerate(rows) if row["link"] in shown}, {})
    names, compared = [name for name in rows[0] if name not in ("link", "note")], _compared(lines)
    turned = [{"metric": name, **{row["link"]: row[name] for row in rows}} for name in names]
    stressed = {(i, "free") for i, name in enumerate(names) if name in compared}
    stressed |= {(i, describe(best[name])) for i, name in enumerate(names) if name in best}
    # The marks in its column say of which metrics a temperature is the best.
    notes = {row["link"]: row["note"].partition(":")[0] for row in rows}
    return ResultTable(turned, stressed, {"metric": "note", **notes})


def _best_temperatures(lines: Sequence[Line]) -> dict[str, str]:
    """The best one of each metric."""
    found = {metric: best_temperature(lines, metric) for metric in _compared(lines)}
    return {metric: tau for metric, tau in found.items() if tau is not None}


def _compared(lines: Sequence[Line]) -> list[str]:
    """The metrics but the one that chooses the epoch, which is no result."""
    criterion = about(lines).select_by
    return [metric for metric in metrics_of(lines) if metric != criterion]


def _of_some_seeds(lines: Sequence[Line], metric: str) -> str:
    """On how many seeds temperatures are compared, if some of them or free have more."""
    compared = len(common_seeds(lines, metric))
    most = max(found[metric].seeds for found in spreads(lines).values() if metric in found)
    return "" if compared == most else f" of {compared} common seed{'s' * (compared > 1)}"


def metrics_of(lines: Sequence[Line]) -> list[str]:
    """Those that any line has."""
    return list(dict.fromkeys(metric for line in lines for metric in line["metrics"]))
