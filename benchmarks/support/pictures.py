"""What the benchmarks' pictures have in common: a link's colour, and how they are finished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from taufree.experiments.link_names import temperature_of

FREE = "#d55e00"
COLOURS = {
    "free": FREE,
    "gain=2": "#e69f00",
    "calibrated": "#009e73",
    "learnable": "#888888",
    "alternatives:Coarse": "#cc79a7",
}


def colour(link: str) -> str | tuple[float, ...]:
    """Blue for temperatures, the darker the lower, from 1 to 0.05; other links have their own."""
    tau = temperature_of(link)
    return COLOURS[link] if tau is None else colormaps["Blues"](0.35 - 0.5 * np.log10(tau))


def finish(figure: Figure, path: Path, columns: int = 0) -> None:
    """Write it, without frames, and with a legend of so many columns below, that of the first axes."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if columns:
        first = figure.axes[0].get_legend_handles_labels()
        figure.legend(*first, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=150)
