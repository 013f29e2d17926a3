"""The results of several folders in one, with what the report shows beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from taufree.experiments.sweep.results import KEYS, Line, Results, line_key, read_results, results_file
from taufree.experiments.training.run import run_slug
from taufree.util.files import atomic_write, writing_to

KEPT = ("embeddings", "scores", "models")
"""The folders beside the results that have a file for each run."""


def merge(outs: Sequence[Path], out: Path, warn: Callable[[str], None]) -> tuple[int, int]:
    """Add the runs of ``outs`` that are not in ``out`` yet; returns how many were added, and how many it has.

    A run that is in several of them with other metrics, such as from another machine, is taken from the first
    that has it, and named.

    Args:
        out: the folder, made if it is not there; it may be one of ``outs``.
        warn: called with a sentence for each damaged line, and where folders disagree.
    """
    sources = [(one, read_results(one, warn)) for one in outs]
    added = 0
    with Results(out, warn) as results:
        there = {line_key(line): line for line in results.read()}
        for one, lines in sources:
            other = 0
            for line in lines:
                known = there.setdefault(line_key(line), line)
                other += known["metrics"] != line["metrics"]
                if known is line:
                    _copy_files(line, results_file(one).parent, out)
                    results.append({name: line[name] for name in KEYS})
                    added += 1
            if other:
                warn(f"{other} runs of {one} were there with other metrics, which are kept.")
    return added, len(there)


def _copy_files(line: Line, source: Path, out: Path) -> None:
    slug = run_slug(line["recipe"], line["link"], line["seed"], line["settings"])
    with writing_to(out):
        for file in (found for kind in KEPT for found in (source / kind).glob(f"{slug}.*")):
            with atomic_write(out / file.parent.name / file.name) as draft:
                shutil.copyfile(file, draft)
