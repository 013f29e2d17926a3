"""The tables and the picture of benchmarks/paper/dcrec.py, from its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from benchmarks.support.markdown import head, row
from benchmarks.support.pictures import colour, finish
from taufree.experiments.link_names import describe
from taufree.experiments.recommendation.dcrec import DCRecSettings
from taufree.experiments.report.statistics import Difference, difference, spreads

# The control and the runs without ids stand among the links by names that the benchmark has no other use for.
CONTROL = "learnable"
TWINS = "calibrated"
SHOWN = ("hr1", "hr5", "hr10", "ndcg5", "ndcg10", "full_hr10", "full_ndcg10")
DRAWN = {"ndcg10": "NDCG@10 among 100 drawn items", "full_ndcg10": "NDCG@10 among all items"}
# Kim and Kim, arXiv 2501.17683, on MovieLens-20M: means of ten runs, in %, with tau 0.8 and without.
PAPER = {
    "tau 0.8": {"hr1": 13.36, "hr5": 37.19, "hr10": 51.91, "ndcg5": 25.56, "ndcg10": 30.31},
    "free": {"hr1": 13.60, "hr5": 37.41, "hr10": 52.09, "ndcg5": 25.79, "ndcg10": 30.52},
}


def apart(lines: Sequence[dict], usual_batch: int) -> dict[str, list[dict]]:
    """The lines by data set, and by whatever else of the settings no table may mix; with a title for each."""
    found: dict[str, list[dict]] = {}
    for line in lines:
        about = line["settings"]
        title = about["dataset"].capitalize()
        title += ", the public protocol" * (about["protocol"] == "public")
        title += f", batches of {about['batch_size']:,}" * (about["batch_size"] != usual_batch)
        title += f", {about['epochs']} epochs at most" * (about["epochs"] != DCRecSettings.epochs)
        found.setdefault(title, []).append(line)
    return dict(sorted(found.items()))


def named(lines: Sequence[dict]) -> list[dict]:
    """The lines with ids, the control by its name."""
    kept = [line for line in lines if line["settings"]["ids"]]
    return [line if line["settings"]["contrast"] else {**line, "link": CONTROL} for line in kept]


def name(link: str) -> str:
    return "no contrastive term" if link == CONTROL else describe(link)


def table(lines: Sequence[dict]) -> None:
    """Markdown: a row for each link and the control, over its seeds."""
    head("link", *SHOWN, "epoch", "seeds", "seconds a run")
    lines = named(lines)
    for link, found in spreads(lines).items():
        of_link = [line for line in lines if line["link"] == link]
        epoch = mean(line["curves"]["choice"].index(max(line["curves"]["choice"])) + 1 for line in of_link)
        seconds = mean(line["seconds"] for line in of_link)
        cells = [name(link), *(str(found[metric]) for metric in SHOWN), f"{epoch:.0f}"]
        row(*cells, str(found["hr1"].seeds), f"{seconds:.0f}")


def comparisons(lines: Sequence[dict], metric: str) -> Iterator[tuple[str, str, Difference]]:
    """What is compared, the other link, and the paired difference, of all that there is."""
    for other in spreads(named(lines)):
        if gap := difference(named(lines), metric, "free", other) if other != "free" else None:
            yield f"free minus {name(other)}", other, gap
    for link in ("free", "0.8"):
        of_link = [line for line in lines if line["link"] == link and line["settings"]["contrast"]]
        sides = [{**line, "link": link if line["settings"]["ids"] else TWINS} for line in of_link]
        if gap := difference(sides, metric, link, TWINS):
            yield f"{name(link)}, with ids minus without", TWINS, gap


def differences(lines: Sequence[dict]) -> None:
    """Markdown: the paired differences, each with its interval; bold where that leaves 0 out."""
    rows: dict[str, list[str]] = {}
    seeds: dict[str, str] = {}
    for metric in SHOWN:
        for words, _, gap in comparisons(lines, metric):
            rows.setdefault(words, []).append(f"**{gap.brief()}**" if gap.clear else gap.brief())
            seeds[words] = str(len(gap.per_seed))
    if rows:
        head("paired difference, 95 % interval", *SHOWN, "seeds")
        for words, cells in rows.items():
            row(words, *cells, seeds[words])
        print("\nBold: 0 is outside. Of 20 such intervals one leaves the true difference out, by chance.")


def paper() -> None:
    print("\n### The paper, on MovieLens-20M: another data set, for the order of magnitude alone\n")
    head("link", *SHOWN[:5])
    for link, found in PAPER.items():
        row(link, *(f"{found[metric]:.2f}" for metric in SHOWN[:5]))


def draw(parts: dict[str, list[dict]], path: Path) -> None:
    """Free minus each other link and minus the control, a panel for each data set and metric."""
    figure = Figure(figsize=(9, 0.4 + 2.2 * len(parts)), layout="constrained")
    panels = figure.subplots(len(parts), len(DRAWN), squeeze=False)
    for across, (title, lines) in zip(panels, parts.items(), strict=True):
        for axes, metric in zip(across, DRAWN, strict=True):
            found = [(other, gap) for _, other, gap in comparisons(lines, metric) if other != TWINS][::-1]
            axes.axvline(0, color="0.7", lw=1, zorder=0)
            for height, (other, gap) in enumerate(found):
                if gap.interval is not None:
                    axes.plot(gap.interval, [height] * 2, color=colour(other), lw=2)
                axes.plot(gap.mean, height, "o", color=colour(other))
            axes.set_yticks(range(len(found)), [name(other) for other, _ in found])
            axes.set(title=f"{title}: {DRAWN[metric]}", ylim=(-0.6, max(len(found), 1) - 0.4))
    for axes in panels[-1]:
        axes.set_xlabel("free minus this, points, 95 % interval")
    finish(figure, path)
