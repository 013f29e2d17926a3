"""The figures of the training report, each from the lines of one sweep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from taufree.diagnostics.theory.closed_forms import free_scale, temperature_scale
from taufree.experiments.link_names import GAIN, OWN, describe, in_order, is_scheme, temperature_of
from taufree.experiments.report.statistics import spreads
from taufree.experiments.sweep.results import Line

_NAMED_COLOURS = {
    "free": "#d1495b", "calibrated": "#e08e1b", "learnable": "#2a9d8f", "fitted": "#7b5ea7",
    "fitted-temperature": "#b07aa1",
}  # fmt: skip
_OTHER_COLOURS = ("#8c6d31", "#d66ba0", "#5f7d4f", "#a0522d")
_BLUES = ("#74b3d8", "#4f9bcb", "#3182bd", "#08519c", "#08306b")  # also the lightest is seen in the dark


def accuracy_figure(lines: Sequence[Line], metric: str) -> go.Figure:
    """A metric by temperature; free as a line with its spread across, the others where they ended."""
    found = {link: of_link for link, of_link in spreads(lines).items() if metric in of_link}
    colours = link_colours(lines)
    fig = go.Figure()
    fixed = [link for link in found if temperature_of(link) is not None]
    others = [link for link in found if link not in ("free", *fixed)]
    ended = {link: tau for link in others if (tau := final_temperature(lines, link)) is not None}
    marks = [*(float(link) for link in fixed), *ended.values()] or [0.1, 1.0]
    ends = [min(marks) / 1.3, max(marks) * 1.3]
    if free := found.get("free"):
        mean, std = free[metric].mean, free[metric].std
        if std is not None:
            fig.add_scatter(
                x=[*ends, *reversed(ends)],
                y=[mean - std] * 2 + [mean + std] * 2,
                fill="toself",
                fillcolor="rgba(209,73,91,0.15)",
                mode="lines",
                line={"width": 0},
                hoverinfo="skip",
                name="free, ± 1 std",
            )
        fig.add_scatter(
            x=ends, y=[mean] * 2, mode="lines", name="free", line={"color": colours["free"], "width": 2}
        )
    if fixed:
        fig.add_scatter(
            x=[float(link) for link in fixed],
            y=[found[link][metric].mean for link in fixed],
            error_y={"array": [found[link][metric].std or 0.0 for link in fixed]},
            mode="lines+markers",
            marker={"size": 9},
            line={"color": _BLUES[2]},
            name="fixed tau",
        )
    for link, tau in ended.items():
        fig.add_scatter(
            x=[tau],
            y=[found[link][metric].mean],
            error_y={"array": [found[link][metric].std or 0.0]},
            mode="markers",
            marker={"size": 11, "symbol": "diamond", "color": colours[link]},
            name=f"{describe(link)}, where it ended",
        )
    fig.update_xaxes(
        type="log",
        range=[float(np.log10(end)) for end in ends],
        title="temperature (log scale)",
        tickvals=[float(link) for link in fixed] or None,  # without any, Plotly's own
        ticktext=fixed or None,
    )
    fig.update_yaxes(title=metric)
    return fig


def curve_figure(
    lines: Sequence[Line], curves: dict[str, str], title: str, *, log: bool = False
) -> go.Figure:
    """Curves of training, the mean over the seeds of each link that are still training and have the curve.

    Args:
        curves: names of curves, each with the line style it is drawn in; links have the colours.
        title: the title of the y axis.
    """
    fig = go.Figure()
    named = set()
    for link, colour in link_colours(lines).items():
        for curve, dash in curves.items():
            of_link = [_by_epoch(line, curve) for line in _having(lines, link, curve)]
            if not of_link:
                continue
            mean = pd.concat(of_link, axis=1).mean(axis=1)  # where a shorter curve has ended, of the others
            fig.add_scatter(
                x=mean.index.tolist(),
                y=mean.tolist(),
                mode="lines" if len(mean) > 1 else "markers",
                name=describe(link),
                legendgroup=link,
                showlegend=link not in named,
                line={"color": colour, "dash": dash, "width": 3 if link == "free" else 1.8},
            )
            named.add(link)
    longest = max((trace.x[-1] for trace in fig.data), default=0)
    fig.update_xaxes(title="epoch", dtick=1 if longest <= 10 else None)  # no half epochs
    fig.update_yaxes(title=title)
    if log:
        fig.update_yaxes(type="log")
        drawn = [value for trace in fig.data for value in trace.y if value > 0]
        ticks = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
        # Plotly's own ticks are good between close values; over a wide range they are powers of ten alone.
        if drawn and sum(min(drawn) <= tick <= max(drawn) for tick in ticks) > 1:
            fig.update_yaxes(tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks])
    return fig


def cosine_figure(lines: Sequence[Line]) -> go.Figure:
    """For each link a panel: where the cosines ended, and the gradient scale that the link has there."""
    kinds = {"negative": "negative_histogram", "positive": "positive_histogram"}
    lines = [line for line in lines if all(line["curves"].get(name) for name in kinds.values())]
    if not lines:
        return go.Figure()
    colours = link_colours(lines)
    scales = {link: found for link in colours if (found := _scale_curve(lines, link)) is not None}
    fig = make_subplots(
        rows=len(colours),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.28 / len(colours),
        subplot_titles=[describe(link) for link in colours],
        specs=[[{"secondary_y": True}]] * len(colours),
    )
    for row, (link, colour) in enumerate(colours.items(), start=1):
        for kind, fill in (("negative", "#b8c0c8"), ("positive", colour)):
            histograms = _curves(lines, link, kinds[kind])
            # Another version may have had other bins.
            counts = np.sum([one for one in histograms if len(one) == len(histograms[-1])], axis=0)
            edges = np.linspace(-1, 1, len(counts) + 1)
            fig.add_bar(
                x=((edges[1:] + edges[:-1]) / 2).tolist(),
                y=(100 * counts / counts.sum()).tolist(),
                width=2 / len(counts),
                marker={"color": fill, "line": {"width": 0}},
                opacity=0.75,
                name=f"{kind} pairs, % (left axis)",
                legendgroup=kind,
                showlegend=row == 1,
                row=row,
                col=1,
            )
        if link not in scales:
            continue
        c, scale = scales[link]
        fig.add_scatter(
            x=c.tolist(),
            y=scale.tolist(),
            mode="lines",
            line={"color": "#1f2933", "width": 2},
            name="gradient scale (right axis)",
            legendgroup="scale",
            showlegend=link == next(iter(scales)),
            row=row,
            col=1,
            secondary_y=True,
        )
    fig.update_layout(
        title=" ",  # the page leaves room above a figure with a title, which the first panel's name needs
        barmode="overlay",
        bargap=0,
        height=150 * len(colours) + 150,
    )
    fig.update_yaxes(rangemode="tozero", nticks=4)
    fig.update_yaxes(secondary_y=True, showgrid=False, tickmode="auto", nticks=3)
    fig.update_xaxes(range=[-1, 1])
    fig.update_xaxes(title="cosine of a pair", row=len(colours), col=1)
    return fig


def link_colours(lines: Sequence[Line]) -> dict[str, str]:
    """A colour for each link, in order; temperatures go from light to dark blue."""
    links = in_order({line["link"] for line in lines})
    fixed = [link for link in links if temperature_of(link) is not None]
    places = np.linspace(0, len(_BLUES) - 1, max(len(fixed), 2)).round().astype(int)
    blues = {link: _BLUES[place] for link, place in zip(fixed, places, strict=False)}
    others = [link for link in links if link not in blues and link not in _NAMED_COLOURS]
    more = dict(zip(others, itertools.cycle(_OTHER_COLOURS), strict=False))
    return {link: {**blues, **_NAMED_COLOURS, **more}[link] for link in links}


def final_temperature(lines: Sequence[Line], link: str) -> float | None:
    """The mean over seeds of 1 / link'(0) at the end of training; None where one is flat or falls at 0."""
    ended = [curve[-1] for curve in _curves(lines, link, "temperature_at_zero")]
    return float(np.mean(ended)) if ended and min(ended) > 0 else None


def _by_epoch(line: Line, curve: str) -> pd.Series[float]:
    """A curve that not every epoch need have a part in."""
    values, every = line["curves"][curve], line["settings"].get(f"{curve}_every", 1)
    return pd.Series(values, index=range(every, every * len(values) + 1, every))


def _having(lines: Sequence[Line], link: str, curve: str) -> list[Line]:
    """The lines of the link that have the curve: another version may not have written it."""
    return [line for line in lines if line["link"] == link and line["curves"].get(curve)]


def _curves(lines: Sequence[Line], link: str, curve: str) -> list[Any]:
    return [line["curves"][curve] for line in _having(lines, link, curve)]


def _scale_curve(lines: Sequence[Line], link: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The link's gradient scale in the paper's scenario by C, if it has a closed form and all is known."""
    candidates, tau = _curves(lines, link, "candidates"), final_temperature(lines, link)
    if OWN in link or is_scheme(link) or not candidates or tau is None:
        return None
    c = np.linspace(0, 1, 201)
    if link in ("free", "calibrated", "fitted") or link.startswith(GAIN):
        gain = max(0.5, 0.5 / tau)  # the resolution takes 1e-4 of it
        return c, free_scale(c, int(candidates[0]), gain=gain)
    return c, temperature_scale(c, tau, int(candidates[0]))
