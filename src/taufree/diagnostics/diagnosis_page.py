"""A `Diagnosis` as a page to read and a file to compute with."""

from __future__ import annotations

import json
from pathlib import Path

from taufree.diagnostics.diagnosis import (
    COSINE_EDGES,
    DEFINITIONS,
    OPTIMAL_COSINE,
    VANISHED_SHARE,
    Diagnosis,
    Scheme,
)
from taufree.util.files import write_text
from taufree.util.html_page import Page
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np
    import plotly.graph_objects as go

# Okabe and Ito's palette, distinct under every common colour blindness; black is kept for the log-odds links.
_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")
_DASHES = {"free": "solid", "calibrated": "dot", "fitted": "dash"}
_LOWEST_SHOWN = 1e-8


def write_diagnosis(d: Diagnosis, out: Path) -> Path:
    """Write `diagnosis.html` and `diagnosis.json` into the folder `out`, made if absent.

    Returns:
        The path of the page.
    """
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"out must be a folder, but {out} is a file or lies below one") from None
    write_text(out / "diagnosis.json", json.dumps(d.to_dict(), indent=1, allow_nan=False) + "\n")

    page = Page(
        "What would each link do with my embeddings?",
        f"Links without a temperature and temperatures side by side, on these {d.rows:,} rows of "
        f"{d.dimensions:,} dimensions.",
    )
    page.heading("In short")
    page.bullets(d.summary())

    page.heading("The links side by side")
    page.table(
        d.table(),
        id="schemes",
        highlight={number for number, scheme in enumerate(d.schemes) if scheme.name == "fitted"},
        caption=d.caption,
    )

    page.heading("What to try")
    page.bullets(d.advice())
    page.text(
        "A contrastive loss takes one row, the anchor, moves it towards the row it belongs with, its "
        "positive, and away from all others, its negatives. The link turns their cosines into logits, and "
        "its steepness decides when an anchor counts as learned and which negatives matter. All rows are one "
        "batch here. The number of candidates matters: to see your own batch size, give one batch."
    )

    page.heading("How similar are positives and negatives?")
    page.figure(
        _cosines(d),
        id="cosines",
        caption="Share of the positive and of the negative pairs at each cosine. The less the two "
        "overlap, the better the embeddings tell positives from negatives.",
    )

    page.heading("Where does each link still act?")
    page.figure(
        _by_cosine(d),
        id="by-cosine",
        caption="How strongly each link acts on an anchor, by the cosine of the anchor and its positive: the "
        "median gradient scale, 1 being the link's own scale at chance. Below the dashed line the link is "
        f"done with the anchor: it counts as learned. The dotted line is at cosine {OPTIMAL_COSINE}. Near "
        "cosine 1 a step of the embedding hardly changes the cosine: a large scale there is no large step.",
    )

    page.heading("Rows that deserve a look")
    counted = {
        "rows of the first table that equal another of its rows": d.duplicates["first"],
        "rows of the second table that equal another of its rows": d.duplicates.get("second"),
        "rows of the first table that equal a row of the second other than their own": d.duplicates.get(
            "across"
        ),
        "anchors with a copy of themselves or of their positive among their negatives": d.duplicates[
            "false_negatives"
        ],
        "all-zero rows": sum(d.zero_rows.values()),
    }
    page.table(
        [{"what": what, "rows": f"{count:,}"} for what, count in counted.items() if count is not None],
        id="rows",
        caption=f"Of {d.rows:,} rows. Copies are exact: every number is equal.",
    )

    page.heading("What the words mean")
    page.bullets([f"{word}: {meaning}" for word, meaning in DEFINITIONS.items()])
    return page.write(out / "diagnosis.html")


def _lines(d: Diagnosis) -> list[tuple[Scheme, dict[str, object]]]:
    """Each link with its line: temperatures in colours, the others black."""
    colours = iter(_COLOURS * len(d.schemes))
    return [
        (
            scheme,
            {"color": "black", "width": 3, "dash": _DASHES[scheme.name]}
            if scheme.tau is None
            else {"color": next(colours), "width": 2},
        )
        for scheme in d.schemes
    ]


def _cosines(d: Diagnosis) -> go.Figure:
    fig = go.Figure()
    centres = (COSINE_EDGES[1:] + COSINE_EDGES[:-1]) / 2
    for name, counts, colour in (
        ("negatives", d.negative_counts, "#D55E00"),
        ("positives", d.positive_counts, "#0072B2"),
    ):
        share = 100 * np.array(counts) / max(1, sum(counts))
        fig.add_bar(x=centres, y=share, name=name, marker_color=colour, opacity=0.65, marker_line_width=0)
    fig.update_layout(barmode="overlay", bargap=0)
    fig.update_xaxes(title="cosine", range=[-1.01, 1.01])
    fig.update_yaxes(title="share of the pairs", ticksuffix=" %")
    return fig


def _by_cosine(d: Diagnosis) -> go.Figure:
    fig = go.Figure()
    centres = (COSINE_EDGES[1:] + COSINE_EDGES[:-1]) / 2
    for scheme, line in _lines(d):
        points = [
            (c, max(value, _LOWEST_SHOWN))
            for c, value in zip(centres, scheme.by_cosine, strict=True)
            if value is not None
        ]
        fig.add_scatter(
            x=[c for c, _ in points],
            y=[value for _, value in points],
            name=scheme.title,
            line=line,
            mode="lines+markers",
        )
    fig.add_hline(y=VANISHED_SHARE, line={"color": "#52606d", "dash": "dash", "width": 1})
    fig.add_vline(x=OPTIMAL_COSINE, line={"color": "#52606d", "dash": "dot", "width": 1})
    fig.update_xaxes(title="cosine of the anchor and its positive")
    fig.update_yaxes(title="gradient scale / at chance", type="log", exponentformat="power", dtick=1)
    return fig
