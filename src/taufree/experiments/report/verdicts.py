"""What a sweep says about its links, in sentences; none where it cannot say it."""

from __future__ import annotations

from collections.abc import Sequence

from taufree.experiments.report.about import about
from taufree.experiments.report.statistics import against_best_temperature
from taufree.experiments.sweep.results import Line

NO_VERDICT = (
    "No verdict: a quick run shows that everything works, and is too short to compare links. Run it without "
    "--preset quick."
)


def verdicts(lines: Sequence[Line], *, quick: bool | None = None) -> list[str]:
    """Each link that has no fixed temperature, compared with the best temperature, by each metric.

    The figure that chooses a run's epoch is no result of it and is not compared.

    Args:
        quick: whether the runs are those of the preset "quick", of which the one sentence says that they are.
            None: as their settings say.
    """
    found = about(lines)
    quick = found.preset == "quick" if quick is None else quick
    leads = [lead for lead in against_best_temperature(lines) if lead.metric != found.select_by]
    return [NO_VERDICT] if leads and quick else [str(lead) for lead in leads]
