"""The figures of the theory, drawn from its closed forms."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taufree.diagnostics.theory import closed_forms as theory
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure

TEMPERATURES = (0.1, 0.25, 0.5, 1.0)
CANDIDATES = (2, 4, 8, 16)
# Four colours of Okabe and Ito's palette, distinct under every common colour blindness; the dashes
# distinguish the lines in black and white too.
LINE_STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#000000", ":"))
PUBLISHED_TEMPERATURES = {
    0.5: "SimCLR (CIFAR-10), free",
    0.3: "BYOL's study",
    0.25: "MSC",
    0.2: "MoCo v2",
    0.1: "SimCLR, SwAV",
    0.07: "MoCo, CLIP's start",
    0.05: "SimCSE, MABEL",
}
"""Temperatures of InfoNCE that others found best or chose."""
COSINE_LABEL = "cosine C of the positive (negatives at -C)"
STYLE = {
    "figure.dpi": 150,
    "figure.figsize": (6.4, 4.0),
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.wspace": 0.06,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "lines.linewidth": 2,
    "legend.framealpha": 1,
    "legend.edgecolor": "none",
}


def draw_figures(out: Path, *, watch: Callable[[int, int], None] = lambda done, total: None) -> list[Path]:
    """Draw every figure as PNG and PDF into the folder `out`, made if absent, and return the files' paths.

    `watch` is called after each figure with how many are done, of how many.
    A file appears only when it is complete: all are drawn in a hidden folder beside, then moved.
    The caller's matplotlib settings neither show in the figures nor change.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"out must be a folder, but {out} is a file or lies below one.") from None
    with matplotlib.rc_context(), tempfile.TemporaryDirectory(dir=out, prefix=".drawing-") as scratch:
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        drawn = []
        for number, (name, draw) in enumerate(FIGURES.items(), start=1):
            figure = draw()
            for suffix, metadata in ((".png", None), (".pdf", {"CreationDate": None})):
                drawn.append(Path(scratch, name + suffix))
                figure.savefig(drawn[-1], dpi="figure", metadata=metadata)
            watch(number, len(FIGURES))
        return [path.replace(out / path.name) for path in drawn]


def draw_links() -> Figure:
    """The idea: logits by cosine (left) and gradient scales (right), for three temperatures and none."""
    c = 1 - np.geomspace(1, 1e-5, 1001)
    cosine = np.concatenate([-c[::-1], c])
    figure = Figure(figsize=(8.4, 3.5))
    logits, scales = figure.subplots(1, 2)
    taus = (0.1, 0.5, 1.0)
    _curves(logits, cosine, {f"c/τ, τ = {tau:g}": cosine / tau for tau in taus})
    _curves(scales, c, {f"τ = {tau:g}": theory.temperature_scale(c, tau) for tau in taus})
    free = [("#000000", "-")]
    _curves(logits, cosine, {"log((1+c)/(1-c))": 2 * np.arctanh(cosine)}, free)
    _curves(scales, c, {"no temperature": theory.free_scale(c)}, free)
    logits.set(title="A link turns a cosine into a logit", xlabel="cosine c", ylabel="logit")
    logits.set(xlim=(-1, 1), ylim=(-12, 12))
    scales.set(
        title="What it does to the gradient", xlabel=COSINE_LABEL, ylabel="gradient scale |∂L/∂C|  (N = 2)"
    )
    scales.set(xlim=(0, 1), yscale="log", ylim=(1e-3, 30))
    for axes in (logits, scales):
        axes.legend(loc="best", handlelength=2.6)
    return figure


def draw_scale_by_cosine() -> Figure:
    """`temperature_scale` against C for four temperatures, with a dot where it vanishes."""
    c = np.linspace(0, 1, 501)
    figure, axes = _figure("A low τ loses the gradient early, a high τ keeps it at the optimum")
    _curves(axes, c, {f"τ = {tau:g}": theory.temperature_scale(c, tau) for tau in TEMPERATURES})
    _mark_vanishing(axes, [(tau, 2) for tau in TEMPERATURES], note=(0.03, 0.2))
    axes.set(yscale="log", ylim=(1e-4, 30), ylabel="gradient scale |∂L/∂C|  (N = 2)")
    _finish(axes)
    return figure


def draw_scale_by_temperature() -> Figure:
    """`temperature_scale` against tau for four cosines."""
    tau = np.geomspace(0.02, 5, 501)
    figure, axes = _figure("No one temperature has the largest gradient at every cosine")
    _curves(axes, tau, {f"C = {c:g}": theory.temperature_scale(c, tau) for c in (0.25, 0.5, 0.75, 1.0)})
    ticks = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
    axes.set(xscale="log", xlim=(0.02, 5), ylim=0, ylabel="gradient scale |∂L/∂C|  (N = 2)")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    _finish(axes, "temperature τ (log scale)")
    return figure


def draw_scale_by_candidates() -> Figure:
    """`temperature_scale` at tau = 0.25 against C for four N, with a dot where it vanishes."""
    c = np.linspace(0, 1, 501)
    figure, axes = _figure("The same temperature acts differently with more candidates")
    _curves(axes, c, {f"N = {n}": theory.temperature_scale(c, 0.25, n) for n in CANDIDATES})
    _mark_vanishing(axes, [(0.25, n) for n in CANDIDATES], note=(0.64, 0.2))
    axes.set(ylim=0, ylabel="gradient scale |∂L/∂C|  (τ = 0.25)")
    _finish(axes)
    return figure


def draw_learnable_scale() -> Figure:
    """`learnable_scale` against C for four t, the one of tau = 0.07 (CLIP's start) among them."""
    c = np.linspace(0, 1, 501)
    figure, axes = _figure("A learned temperature gets no gradient at C = 0, whatever t is")
    ts = {tau: math.log(1 / tau) for tau in (1.0, 0.5, 0.25, 0.07)}
    _curves(axes, c, {f"t = {t:.2f}  (τ = {tau:g})": theory.learnable_scale(c, t) for tau, t in ts.items()})
    axes.set(ylim=(0, 0.4), ylabel="gradient scale |∂L/∂t|  (N = 2)")
    _finish(axes, columns=2)
    return figure


def draw_free_scale() -> Figure:
    """`free_scale` against C for four N."""
    c = np.linspace(0, 1, 501)
    figure, axes = _figure("Without a temperature the gradient is zero only at the optimum")
    _curves(axes, c, {f"N = {n}": theory.free_scale(c, n) for n in CANDIDATES})
    axes.set(ylim=0, ylabel="gradient scale |∂L/∂C|")
    _finish(axes)
    return figure


def draw_overview() -> Figure:
    """Loss (above) and gradient scale (below), with a temperature (left) and without (right)."""
    # Dense towards C = 1, where the free curves turn; zero itself has no place on a logarithmic axis.
    c = 1 - np.geomspace(1, 1e-6, 1001)
    figure = Figure(figsize=(7.0, 5.2))
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    figure.suptitle("With a temperature the gradient ends too early or too late; without one, at C = 1")
    _curves(panels[0, 0], c, {f"τ = {tau:g}": theory.temperature_loss(c, tau) for tau in TEMPERATURES})
    _curves(panels[1, 0], c, {f"τ = {tau:g}": theory.temperature_scale(c, tau) for tau in TEMPERATURES})
    _curves(panels[0, 1], c, {f"N = {n}": theory.free_loss(c, n) for n in CANDIDATES})
    _curves(panels[1, 1], c, {f"N = {n}": theory.free_scale(c, n) for n in CANDIDATES})
    panels[0, 0].set(title="with a temperature (N = 2)", ylabel="loss L", yscale="log", ylim=(1e-5, 10))
    panels[0, 1].set(title="free of temperature")
    panels[1, 0].set(ylabel="gradient scale |∂L/∂C|", yscale="log", ylim=(1e-4, 30))
    for axes in panels[1]:  # a column shares the legend below it
        axes.set(xlabel="cosine C of the positive", xlim=(0, 1))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, handlelength=2.6)
    return figure


def draw_temperature_by_dimension() -> Figure:
    """`dimension_temperature` against nu, with the temperatures that others found or chose."""
    nu = np.geomspace(2, 4000, 501)
    figure, axes = _figure("A temperature is a dimension in disguise")
    _curves(axes, nu, {"as steep as the log-odds in nu dimensions": theory.dimension_temperature(nu)})
    axes.set(
        xscale="log", yscale="log", xlim=(2, 4000), ylim=(0.017, 0.95), ylabel="temperature τ (log scale)"
    )
    for tau, who in PUBLISHED_TEMPERATURES.items():
        place = theory.temperature_dimension(tau)
        axes.plot([2, place, place], [tau, tau, 0.017], color="#999999", linewidth=0.8, label="_")
        axes.scatter(place, tau, color=LINE_STYLES[1][0], zorder=3)
        axes.annotate(
            f"τ = {tau:g}, nu = {place:.3g}: {who}", (place, tau), (7, 3), textcoords="offset points"
        )
    ticks = {"x": (2, 3, 6, 10, 20, 40, 100, 200, 500, 1000, 4000), "y": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)}
    axes.set_xticks(ticks["x"], [f"{tick:g}" for tick in ticks["x"]])
    axes.set_yticks(ticks["y"], [f"{tick:g}" for tick in ticks["y"]])
    axes.minorticks_off()
    axes.grid(False)
    axes.set_xlabel("dimension nu (log scale)")
    axes.legend(loc="upper right", handlelength=2.6)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "0-links": draw_links,
    "1-scale-by-cosine": draw_scale_by_cosine,
    "2-scale-by-temperature": draw_scale_by_temperature,
    "3-scale-by-candidates": draw_scale_by_candidates,
    "4-learnable-scale": draw_learnable_scale,
    "5-free-scale": draw_free_scale,
    "6-overview": draw_overview,
    "7-temperature-by-dimension": draw_temperature_by_dimension,
}


def _figure(title: str) -> tuple[Figure, Any]:
    # A Figure of its own, not pyplot's: no window, no backend choice, no global list of open figures.
    figure = Figure()
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    return figure, axes


def _curves(
    axes: Any,
    x: Iterable[float],
    curves: Mapping[str, Iterable[float]],
    lines: Sequence[tuple[str, str]] = LINE_STYLES,
) -> None:
    """A line for each of the curves, by its label."""
    for (label, y), (color, dashes) in zip(curves.items(), lines, strict=False):
        axes.plot(x, y, color=color, linestyle=dashes, label=label)


def _mark_vanishing(axes: Any, settings: Iterable[tuple[float, int]], note: tuple[float, float]) -> None:
    """A dot on each (tau, N) curve where it falls below 1% of its maximum, if it does, and a note on that."""
    for (tau, n), (color, _) in zip(settings, LINE_STYLES, strict=True):
        interval = theory.vanishing_interval(tau, n)
        if interval is not None:
            height = theory.temperature_scale(interval[0], tau, n)
            axes.scatter(interval[0], height, color=color, zorder=3, clip_on=False)
    axes.text(*note, "dot: from here on below\n1% of the curve's maximum", transform=axes.transAxes)


def _finish(axes: Any, xlabel: str = COSINE_LABEL, columns: int = 1) -> None:
    axes.set_xlabel(xlabel)
    if axes.get_xscale() == "linear":
        axes.set_xlim(0, 1)
    axes.legend(loc="upper right", ncols=columns, handlelength=2.6)
