"""The page that compares sweeps: another batch size, another recipe, another choice of any setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from taufree.experiments.link_names import describe, temperature_of
from taufree.experiments.report.about import about
from taufree.experiments.report.published import Entry, entries
from taufree.experiments.report.sweeps import Sweep, show_value
from taufree.experiments.report.verdicts import verdicts
from taufree.util.html_page import Page, word_of

_COLOURS = ("#3182bd", "#d1495b", "#2a9d8f", "#e08e1b", "#7b5ea7", "#8c6d31", "#d66ba0", "#5f7d4f")


def write_comparison(sweeps: Sequence[Sweep], path: Path) -> Path:
    """Write the page of several sweeps and return its path."""
    found = entries(sweeps)
    page = Page(
        "With and without a temperature: sweeps compared",
        f"{len(sweeps)} sweeps side by side: {'; '.join(sweep.name for sweep in sweeps)}.",
    )
    page.heading("Each link minus the best temperature")
    page.text(
        "Within a sweep every link of a seed begins with the same weights and sees the same data, so links "
        "are compared seed by seed: each link that has no fixed temperature minus the best temperature of "
        "its sweep, with the 95 % interval. An interval that holds 0 means that the seeds cannot tell the "
        "two apart. The best temperature was picked after the fact, sweep by sweep; the other links were not."
    )
    for metric in dict.fromkeys(one.metric for one in found if one.lead):
        leads = _leads([one for one in found if one.metric == metric], metric)
        page.figure(leads, id=f"leads-{word_of(metric)}")
    page.heading("Results")
    for metric in dict.fromkeys(one.metric for one in found):
        of_metric = [one for one in found if one.metric == metric]
        rows = [
            {"sweep": one.sweep, "link": describe(one.link), metric: str(one), "seeds": str(one.seeds)}
            | {"minus the best temperature": one.lead.brief() if one.lead else ""}
            for one in of_metric
        ]
        text = {about(sweep.lines).metrics.get(metric) for sweep in sweeps} - {None, ""}
        page.table(
            rows,
            id=f"results-{word_of(metric)}",
            highlight={number for number, one in enumerate(of_metric) if one.best},
            caption="Mean ± half of its 95 % interval over seeds, higher is better; the best link of each "
            f"sweep is marked.{''.join(f' {metric}: {one}.' for one in sorted(map(str, text)))}",
            file=f"{word_of(metric)}.csv",
        )
        if any(temperature_of(one.link) is not None for one in of_metric):
            page.figure(
                _by_temperature(of_metric, metric),
                id=f"accuracy-{word_of(metric)}",
                caption="By temperature, a colour for each sweep; the dashed line of the same colour is its "
                "free link. Where the highest point moves from sweep to sweep, so does the temperature to "
                "search for.",
            )
    page.heading("What was found")
    for sweep in sweeps:
        page.text(f"{sweep.name}:")
        page.bullets(verdicts(sweep.lines) or ["Nothing to compare: it has no fixed temperature."])
    page.heading("The sweeps")
    page.table(
        [{"sweep": sweep.name} | _settings(sweep) for sweep in sweeps],
        id="sweeps",
        caption="Links, seeds and settings of each.",
    )
    return page.write(path)


def _settings(sweep: Sweep) -> dict[str, str]:
    links = ", ".join(dict.fromkeys(describe(line["link"]) for line in sweep.lines))
    seeds = ", ".join(map(str, sorted({line["seed"] for line in sweep.lines})))
    settings = sweep.lines[-1]["settings"]
    said = ", ".join(f"{name} {show_value(value)}" for name, value in settings.items())
    return {"links": links, "seeds": seeds, "settings": said}


def _leads(found: Sequence[Entry], metric: str) -> go.Figure:
    """A dot with its interval for each link of each sweep."""
    leads = [(one, one.lead) for one in found if one.lead]
    names = [f"{one.sweep}<br>{describe(one.link)} - {describe(lead.second)}" for one, lead in leads]
    ends = [lead.interval or (lead.mean, lead.mean) for _, lead in leads]
    fig = go.Figure(
        go.Scatter(
            x=[lead.mean for _, lead in leads],
            y=names,
            mode="markers",
            marker={"size": 10, "color": _COLOURS[0]},
            error_x={
                "array": [high - lead.mean for (_, lead), (_, high) in zip(leads, ends, strict=True)],
                "arrayminus": [lead.mean - low for (_, lead), (low, _) in zip(leads, ends, strict=True)],
            },
            showlegend=False,
        )
    )
    fig.add_vline(x=0, line={"color": "#1f2933", "width": 1})
    fig.update_xaxes(title=f"{metric}, difference")
    fig.update_yaxes(autorange="reversed", tickfont={"size": 11})
    fig.update_layout(height=110 + 46 * len(leads))
    return fig


def _by_temperature(found: Sequence[Entry], metric: str) -> go.Figure:
    fig = go.Figure()
    taus = sorted({tau for one in found if (tau := temperature_of(one.link)) is not None})
    ends = [taus[0] / 1.3, taus[-1] * 1.3]
    for number, sweep in enumerate(dict.fromkeys(one.sweep for one in found)):
        mine = [one for one in found if one.sweep == sweep]
        colour = _COLOURS[number % len(_COLOURS)]
        fixed = [one for one in mine if temperature_of(one.link) is not None]
        fig.add_scatter(
            x=[float(one.link) for one in fixed],
            y=[one.mean for one in fixed],
            error_y={"array": [one.interval[1] - one.mean if one.interval else 0.0 for one in fixed]},
            mode="lines+markers",
            marker={"size": 8},
            line={"color": colour},
            name=sweep,
        )
        for free in (one for one in mine if one.link == "free"):
            fig.add_scatter(
                x=ends,
                y=[free.mean] * 2,
                mode="lines",
                line={"color": colour, "dash": "dash"},
                name=f"{sweep}: free",
            )
    fig.update_xaxes(
        type="log", title="temperature (log scale)", tickvals=taus, ticktext=[f"{tau:g}" for tau in taus]
    )
    fig.update_yaxes(title=metric)
    return fig
