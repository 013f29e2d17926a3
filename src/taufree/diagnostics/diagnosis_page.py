"""A `Diagnosis` as a page to read and a file to compute with."""

from __future__ import annotations

import json
from pathlib import Path

from taufree.diagnostics.anchors import HARDEST_SHARE
from taufree.diagnostics.diagnosis import (
    COSINE_EDGES,
    DEFINITIONS,
    OPTIMAL_COSINE,
    SCALE_EDGES,
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

# Okabe and Ito's palette, distinct under every common colour blindness; black is kept for free.
_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")


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
        "Is my temperature hurting me?",
        f"What temperatures, and none, would do with these {d.rows:,} rows of {d.dimensions:,} dimensions.",
    )
    page.heading("In short")
    page.bullets(d.summary())
    page.text(
        "A contrastive loss takes one row, the anchor, moves it towards the row it belongs with, its "
        "positive, and away from all others, its negatives. A temperature decides how strongly, and which of "
        "them matter. If it is too low, the gradient vanishes for pairs that still have something to learn; "
        "if it is too high, a gradient stays where nothing is left to gain. The free loss scores a cosine c "
        "by log((1 + c) / (1 - c)) and has no temperature to choose."
    )
    page.text(
        "All rows are taken as one batch here. With fewer candidates, as in a smaller batch, every "
        "temperature's gradient vanishes earlier: to see your own batch size, give one batch."
    )

    page.heading("How similar are positives and negatives?")
    page.figure(
        _cosines(d),
        id="cosines",
        caption="Share of the positive and of the negative pairs at each cosine. The less the two "
        "overlap, the better the embeddings tell positives from negatives.",
    )

    page.heading("Who still gets a gradient?")
    page.figure(
        _by_cosine(d),
        id="by-cosine",
        caption="How strongly each scheme acts on an anchor, by the cosine of the anchor and its positive: "
        "the median gradient scale, 1 being the scheme's own scale at chance. Anchors below the dashed line "
        "have all but stopped training. Left of the dotted line there is still something to learn. Near "
        "cosine 1 a step of the embedding hardly changes the cosine: a large scale there is no large step.",
    )
    page.figure(
        _scales(d),
        id="scales",
        caption="Share of the anchors at each gradient scale. Left of the dashed line are the anchors whose "
        "gradient has vanished.",
    )
    page.table(
        [_row(scheme) for scheme in d.schemes],
        id="schemes",
        highlight={number for number, scheme in enumerate(d.schemes) if scheme.tau is None},
        caption=f"{d.non_optimal:.1%} of the anchors are non-optimal. Every word is defined below.",
    )

    page.heading("The temperature that free applies by itself")
    page.text(
        "The free loss has a different steepness at every cosine, so it acts like a different temperature on "
        "every pair: a high one on unrelated pairs, a low one on pairs that are already close."
    )
    page.table(
        [
            {
                "local temperature": f"at {which}",
                **{f"{level} of them below": f"{value:.3f}" for level, value in levels},
            }
            for which, levels in ((which, values.items()) for which, values in d.local_temperature.items())
        ],
        id="local",
    )

    page.text(
        f"The negatives spread over an effective dimension of {d.effective_dimension:.3g} out of "
        f"{d.dimensions:,}. CalibratedLogOdds() would measure that and stretch the free loss, so that on "
        f"unrelated pairs it acts like a temperature of {d.effective_temperature:.2g}; without it, like 0.5."
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


def _row(scheme: Scheme) -> dict[str, str]:
    return {
        "scheme": scheme.title,
        "non-optimal anchors whose gradient vanished": f"{scheme.vanished:.1%}",
        f"negatives' gradient spent on the hardest {HARDEST_SHARE:.0%}": f"{scheme.hardest:.1%}",
        "gradient scale at the optimum, of that at chance": f"{scheme.optimum:.2%}",
        "median gradient scale": f"{scheme.scale['50%']:.3g}",
        "gradient scale at chance": f"{scheme.chance:.3g}",
    }


def _lines(d: Diagnosis) -> list[tuple[Scheme, dict[str, object]]]:
    """Each scheme with its line: free black and thick, temperatures in colours."""
    colours = iter(_COLOURS * len(d.schemes))
    return [
        (
            scheme,
            {"color": "black", "width": 4} if scheme.tau is None else {"color": next(colours), "width": 2},
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
    floor = 10.0 ** SCALE_EDGES[0]
    for scheme, line in _lines(d):
        points = [
            (c, max(value, floor))
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


def _scales(d: Diagnosis) -> go.Figure:
    fig = go.Figure()
    centres = 10 ** ((SCALE_EDGES[1:] + SCALE_EDGES[:-1]) / 2)
    for scheme, line in _lines(d):
        fig.add_scatter(
            x=centres,
            y=100 * np.array(scheme.relative) / d.anchors,
            name=scheme.title,
            line={**line, "shape": "hvh"},
        )
    fig.add_vline(x=VANISHED_SHARE, line={"color": "#52606d", "dash": "dash", "width": 1})
    held = np.flatnonzero(np.sum([scheme.relative for scheme in d.schemes], axis=0))
    shown = [min(SCALE_EDGES[held[0]], -2.4), max(SCALE_EDGES[held[-1] + 1], 0.4)]
    fig.update_xaxes(
        title="gradient scale / at chance", type="log", exponentformat="power", dtick=1, range=shown
    )
    fig.update_yaxes(title="share of the anchors", ticksuffix=" %", rangemode="tozero")
    return fig
