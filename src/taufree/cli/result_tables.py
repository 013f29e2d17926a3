"""The results of a sweep in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from taufree.experiments.sweep.results import Line


def show_results(
    lines: Sequence[Line], console: Console, *, quick: bool | None = None, name: str | None = None
) -> None:
    """Print the table, and each link that has no fixed temperature minus the best temperature."""
    from taufree.experiments.report.verdicts import verdicts

    for table in result_tables(lines, console.width, name):
        console.print(table)
    for sentence in verdicts(lines, quick=quick):
        console.print(sentence, highlight=False, markup=False)


def result_tables(lines: Sequence[Line], width: int, name: str | None = None) -> list[Table]:
    """The result table; what is too wide for the terminal goes on in further ones, so that no word is cut."""
    from taufree.experiments.report.tables import result_table

    shown, title = result_table(lines), name or lines[0]["recipe"]
    rows = [*shown.rows, shown.notes] if shown.notes else shown.rows
    first, *names = rows[0]

    def needed(name: str) -> int:
        texts = [name, *(row[name] for row in rows)]
        return max(len(text) for cell in texts for text in (cell.split() if name == "note" else [cell])) + 3

    parts: list[list[str]] = [[]]
    for name in names:
        if parts[-1] and 1 + sum(map(needed, [first, *parts[-1], name])) > width:
            parts.append([])
        parts[-1].append(name)
    tables: list[Table] = []
    for part in parts:
        table = Table(title=None if tables else f"{title}: mean ± std over seeds, higher is better")
        for name in [first, *part]:
            side: Literal["left", "right"] = "left" if name in ("link", "metric", "note") else "right"
            table.add_column(name, justify=side, overflow="fold")  # nothing is cut off
        for number, row in enumerate(rows):
            bold = {name for name in [first, *part] if {number, (number, name)} & shown.stressed}
            table.add_row(*(Text(row[name], "bold" * (name in bold)) for name in [first, *part]))
        tables.append(table)
    return tables
