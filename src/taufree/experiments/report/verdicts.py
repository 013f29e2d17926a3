"""What a sweep says about its links, in sentences; none where it cannot say it."""

from __future__ import annotations

from collections.abc import Sequence

from taufree.experiments.registry import find_recipe
from taufree.experiments.report.statistics import against_best_temperature
from taufree.experiments.sweep.results import Line

NO_VERDICT = (
    "No verdict: a quick run shows that everything works, and is too short to compare links. Run it without "
    "--preset quick."
)


def verdicts(lines: Sequence[Line], *, quick: bool = False) -> list[str]:
    """Each link that has no fixed temperature, compared with the best temperature, by each metric.

    The figure that chooses a run's epoch is no result of it and is not compared.

    Args:
        quick: the runs are those of the preset "quick", about which the one sentence says that they are.
    """
    criterion = find_recipe(lines[0]["recipe"]).select_by
    leads = [lead for lead in against_best_temperature(lines) if lead.metric != criterion]
    return [NO_VERDICT] if leads and quick else [str(lead) for lead in leads]
