"""One self-contained HTML page: text, tables and Plotly figures that open offline, on a desk or a phone.

Every string given to a `Page` is escaped, so file names and labels may hold any character. Plotly's
script is written into the page once, so the page needs no network: a report must still open years later,
or on a cluster without internet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path

from taufree.util.files import write_text
from taufree.util.optional import needs
from taufree.util.page_style import CSS, FONT, TABLE_SCRIPT

with needs("taufree[cli]"):
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

_NUMBER = re.compile(r"[-+\u2212]?[\d.]")


class Page:
    """A page that grows from top to bottom and is then written in one go.

    Args:
        title: the page's heading and the browser tab's name.
        lead: one or two sentences below the heading that say what the page answers.

    Example:
        >>> page = Page("A report", "Two rows.")
        >>> page.heading("Results")
        >>> page.table([{"link": "free", "kNN": "69.1"}, {"link": "0.5", "kNN": "65.1"}], id="results")
    """

    def __init__(self, title: str, lead: str) -> None:
        self._title = escape(title)
        self._blocks = [f"<h1>{self._title}</h1>", f'<p class="lead">{escape(lead)}</p>']
        self._ids: set[str] = set()
        self._has_figure = False
        self._has_buttons = False

    def heading(self, text: str) -> None:
        """Start a section."""
        self._blocks.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._blocks.append(f"<p>{escape(text)}</p>")

    def bullets(self, lines: Sequence[str]) -> None:
        """Add a list, one line an entry."""
        self._blocks.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")

    def table(
        self,
        rows: Sequence[Mapping[str, str]],
        *,
        id: str,
        highlight: Collection[int | tuple[int, str]] = frozenset(),
        footer: Mapping[str, str] | None = None,
        caption: str = "",
        file: str = "",
    ) -> None:
        """Add a table. On a phone, rows of more than two cells are lists of them with their columns' names;
        on other screens that are narrower than the table, it scrolls within its box, shaded at the right.

        Args:
            rows: one mapping of column name to text per row; the columns stand in the order in which they
                first appear, a missing one is an empty cell, a column of numbers is set flush right.
            id: the table's id in the page.
            highlight: the rows to stress, by their numbers from 0, and the cells, by number and column.
            footer: a last row of remarks, set smaller.
            caption: a sentence below the table.
            file: the name of a CSV file; the table gets a button that saves it so, and one that copies it.
        """
        self._claim(id)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        numeric = {name for name in columns if all(_NUMBER.match(row.get(name) or "0") for row in rows)}

        def cells(row: Mapping[str, str], number: int | None = None) -> str:
            found = ""
            for name in columns:
                kinds = ["number"] * (name in numeric) + ["highlight"] * ((number, name) in highlight)
                look = f' class="{" ".join(kinds)}"' if kinds else ""
                found += f'<td{look} data-column="{escape(name)}">{escape(row.get(name, ""))}</td>'
            return found

        head = "".join(
            f"<th{' class=number' if name in numeric else ''}>{escape(name)}</th>" for name in columns
        )
        body = "".join(
            f"<tr{' class=highlight' if number in highlight else ''}>{cells(row, number)}</tr>"
            for number, row in enumerate(rows)
        )
        foot = f"<tfoot><tr>{cells(footer)}</tr></tfoot>" if footer else ""
        buttons = ""
        if file:
            self._has_buttons = True
            buttons = (
                f'<div class="buttons"><button data-table="{id}">Copy table</button>'
                f'<button data-table="{id}" data-file="{escape(file)}">Download CSV</button></div>'
            )
        self._blocks.append(
            f'<figure>{buttons}<div class="scroll{" wide" * (len(columns) > 2)}"><table id="{escape(id)}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table></div>"
            + (f"<figcaption>{escape(caption)}</figcaption></figure>" if caption else "</figure>")
        )

    def figure(self, fig: go.Figure, *, id: str, caption: str = "") -> None:
        """Add an interactive figure that follows the screen's width, its legend below the plot.

        Args:
            fig: a Plotly figure; it is copied, and the copy gets the page's fonts, margins and legend.
            id: the id of the figure's div.
            caption: what the figure shows and how to read it, unless a text before it does.
        """
        self._claim(id)
        fig = go.Figure(fig)
        height = fig.layout.height or 460
        fig.update_layout(
            template="plotly_white",
            paper_bgcolor="rgba(0,0,0,0)",  # the page's own, light or dark
            plot_bgcolor="rgba(0,0,0,0)",
            autosize=True,
            width=None,
            height=height,
            font={"family": FONT, "size": 13, "color": "#1f2933"},
            margin={"l": 8, "r": 12, "t": 40 if fig.layout.title.text else 16, "b": 8},
            legend={
                "orientation": "h",
                "font": {"size": 12},
                "x": 0,
                "xanchor": "left",
                "y": -0.2 * 460 / height,  # of the plot's height: the same distance for all
                "yanchor": "top",
                "title": None,
            },
        )
        fig.update_xaxes(automargin=True, title_standoff=8, ticklabelstandoff=4)  # off the other axis's 0
        fig.update_yaxes(automargin=True, title_standoff=8)
        drawing = fig.to_html(
            full_html=False,
            include_plotlyjs=False,
            div_id=id,
            default_width="100%",
            config={"responsive": True, "displayModeBar": False},
        )
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        kind = "picture" if any(trace.type == "image" for trace in fig.data) else "drawing"
        self._blocks.append(f'<figure><div class="{kind}">{drawing}</div>{below}</figure>')
        self._has_figure = True

    def write(self, path: Path) -> Path:
        """Write the page to `path`, whole or not at all, and return `path`; missing folders are made."""
        script = f"<script>{get_plotlyjs()}</script>" if self._has_figure else ""
        html = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<link rel="icon" href="data:,"><title>{self._title}</title><style>{CSS}</style>{script}'
            f"</head><body><main>\n"
            + "\n".join(self._blocks)
            + "\n</main>"
            + (f"<script>{TABLE_SCRIPT}</script>" if self._has_buttons else "")
            + "</body></html>\n"
        )
        return write_text(path, html)

    def _claim(self, id: str) -> None:
        """Ids are words: see :func:`word_of` for names that need not be."""
        if not re.fullmatch(r"[A-Za-z][\w-]*", id) or id in self._ids:
            raise ValueError(f"id must be a word that this page does not use yet, got {id!r}")
        self._ids.add(id)


def word_of(name: str) -> str:
    """A name as a part of an id or of a file's name: recall@10 is recall_40_10."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"_{ord(found[0]):x}_", name)
