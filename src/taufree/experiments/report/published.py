"""Results as people publish them: a table of links in Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO

from taufree.experiments.link_names import describe, in_order
from taufree.experiments.report.about import about
from taufree.experiments.report.statistics import (
    Difference,
    against_best_temperature,
    interval_of_mean,
    values,
)
from taufree.experiments.report.sweeps import Sweep
from taufree.experiments.report.tables import metrics_of
from taufree.util.errors import BadInputError


@dataclass(frozen=True)
class Entry:
    """A link's figure by one metric of one sweep.

    Attributes:
        interval: the 95 % interval of the mean over seeds, None for one seed.
        best: whether no link of the sweep has a higher mean.
        lead: the paired difference from the best temperature, of links without a fixed one.
    """

    sweep: str
    metric: str
    link: str
    mean: float
    interval: tuple[float, float] | None
    seeds: int
    best: bool
    lead: Difference | None

    def __str__(self) -> str:
        half = "" if self.interval is None else f" ± {self.interval[1] - self.mean:.2f}"
        return f"{self.mean:.2f}{half}"


def entries(sweeps: Sequence[Sweep], metrics: Sequence[str] = ()) -> list[Entry]:
    """All figures of the sweeps; of these metrics, or all but the one that chooses a run's epoch."""
    found = []
    for sweep in sweeps:
        there = metrics_of(sweep.lines)
        if unknown := [metric for metric in metrics if metric not in there]:
            raise BadInputError(
                f"metric must be one of {', '.join(there)}, which {sweep.name} has, got {unknown[0]!r}."
            )
        criterion = about(sweep.lines).select_by
        leads = {(lead.metric, lead.first): lead for lead in against_best_temperature(sweep.lines)}
        for metric in metrics or [metric for metric in there if metric != criterion]:
            column = values(sweep.lines)[metric].dropna()
            means = column.groupby(level="link").mean()
            for link in in_order(set(means.index)):
                of_seeds = column[link].tolist()
                found.append(
                    Entry(
                        sweep.name,
                        metric,
                        link,
                        float(means[link]),
                        interval_of_mean(of_seeds),
                        len(of_seeds),
                        bool(means[link] == means.max()),
                        leads.get((metric, link)),
                    )
                )
    return found


def published(sweeps: Sequence[Sweep], metrics: Sequence[str] = (), format: str = "markdown") -> str:
    """The table in one of :data:`FORMATS`."""
    if format not in FORMATS:
        raise BadInputError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    return FORMATS[format](entries(sweeps, metrics))


def caption(found: Sequence[Entry]) -> str:
    """What the figures of the table are, in one or two sentences."""
    seeds = sorted({one.seeds for one in found})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    half = " ± half of its 95 % interval (Student's t)" * any(one.interval for one in found)
    lead = " In brackets: minus the best temperature, paired by seed, with its 95 % interval."
    return f"Mean over {count} seed{'s' * (seeds[-1] > 1)}{half}; higher is better." + lead * any(
        one.lead for one in found
    )


def _rows(found: Sequence[Entry], bold: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows: a column for each metric of each sweep, named as briefly as possible."""
    sweeps, metrics = ({getattr(one, name) for one in found} for name in ("sweep", "metric"))
    columns = list(dict.fromkeys((one.sweep, one.metric) for one in found))
    names = [
        sweep if len(metrics) == 1 < len(sweeps) else metric if len(sweeps) == 1 else f"{sweep}: {metric}"
        for sweep, metric in columns
    ]
    cells = {}
    for one in found:
        figure = bold(str(one)) if one.best else str(one)
        cells[one.link, one.sweep, one.metric] = figure + (f" [{one.lead.brief()}]" if one.lead else "")
    links = in_order({one.link for one in found})
    return ["link", *names], [
        [describe(link), *(cells.get((link, *column), "-") for column in columns)] for link in links
    ]


def _markdown(found: Sequence[Entry]) -> str:
    head, rows = _rows(found, lambda text: f"**{text}**")
    rule = ["---", *["---:"] * (len(head) - 1)]
    table = "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, rule, *rows)
    )
    return f"{table}\n\n{caption(found)}\n"


def _latex(found: Sequence[Entry]) -> str:
    head, rows = _rows(found, lambda text: f"\\textbf{{{text}}}")
    lines = [" & ".join(map(_tex, row)) + r" \\" for row in (head, *rows)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            f"% {caption(found)}",
            "",
        ]
    )


def _tex(text: str) -> str:
    for sign, written in {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$"}.items():
        text = text.replace(sign, written)
    return re.sub(r"(?<=[\[( ])-(?=\d)", "$-$", re.sub(r"\btau\b", r"$\\tau$", text))


def _csv(found: Sequence[Entry]) -> str:
    """A line for each figure, with numbers that are not rounded."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    figures = ("sweep", "metric", "link", "seeds", "mean", "low", "high", "best")
    writer.writerow([*figures, "minus", "difference", "difference_low", "difference_high"])
    for one in found:
        lead = ("", "", "", "")
        if one.lead:
            lead = (one.lead.second, one.lead.mean, *(one.lead.interval or ("", "")))
        ends = one.interval or ("", "")
        writer.writerow([one.sweep, one.metric, one.link, one.seeds, one.mean, *ends, int(one.best), *lead])
    return file.getvalue()


def _html(found: Sequence[Entry]) -> str:
    head, rows = _rows(found, lambda text: f"\0{text}\1")
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ).translate({0: "<b>", 1: "</b>"})
    return (
        f"<table>\n<caption>{escape(caption(found))}</caption>\n<thead><tr>{names}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>\n"
    )


FORMATS: dict[str, Callable[[Sequence[Entry]], str]] = {
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "html": _html,
}
