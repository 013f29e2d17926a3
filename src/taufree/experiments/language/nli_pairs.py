"""Pairs of sentences from the files of natural language inference, SNLI and MNLI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from taufree.experiments.language.gender_swap import is_gendered, swapped
from taufree.util.files import refuse_file

CORPORA = ("snli", "mnli")
LAYOUT = "s1.*, s2.* and labels.* with a sentence a line, or the official *.jsonl"


@dataclass(frozen=True)
class SwappedPairs:
    """Entailment pairs and their swapped copies.

    Attributes:
        quadruples: premise, hypothesis, swapped premise, swapped hypothesis of each pair.
        left_out: gendered pairs that cannot be swapped back and forth, see :func:`.gender_swap.swapped`.
    """

    quadruples: list[tuple[str, str, str, str]]
    left_out: int


def read_entailments(data: Path | None) -> list[tuple[str, str]]:
    """Premise and hypothesis of every entailment pair in ``data/snli`` and ``data/mnli``, each once.

    Raises ValueError with one sentence where there are none.
    """
    rows = read_pairs(data)
    return list(dict.fromkeys((first, second) for first, second, label in rows if label == "entailment"))


def find_corpora(data: Path | None) -> list[Path]:
    """The folders of sentence pairs in ``data``; ValueError with one sentence if there is none."""
    if data is not None:
        refuse_file(data, f"{' or '.join(CORPORA)} ({LAYOUT})")
    folders = [data / name for name in CORPORA if (data / name).is_dir()] if data is not None else []
    if not folders:
        raise ValueError(
            f"the sentence pairs need --data FOLDER with {' or '.join(CORPORA)} in it ({LAYOUT}), "
            f"got {data or 'no --data'}."
        )
    return folders


def read_pairs(data: Path | None) -> Iterator[tuple[str, str, str]]:
    """Premise, hypothesis and label of all pairs."""
    for folder in find_corpora(data):
        labels, lines = sorted(folder.glob("labels.*")), sorted(folder.glob("*.jsonl"))
        if not labels and not lines:
            raise ValueError(f"{folder} must hold {LAYOUT}.")
        for path in labels:
            yield from _read_columns(*(path.with_name(name + path.suffix) for name in ("s1", "s2", "labels")))
        for path in lines:
            yield from _read_json(path)


def swap_pairs(pairs: list[tuple[str, str]]) -> SwappedPairs:
    """The pairs in which the premise or the hypothesis is gendered, with their swapped copies.

    >>> swap_pairs([("A man naps .", "He sleeps ."), ("A dog naps .", "It sleeps .")]).quadruples
    [('A man naps .', 'He sleeps .', 'A woman naps .', 'She sleeps .')]
    """
    gendered = [pair for pair in pairs if any(map(is_gendered, pair))]
    quadruples = []
    for premise, hypothesis in gendered:
        other, another = swapped(premise), swapped(hypothesis)
        if other is not None and another is not None:
            quadruples.append((premise, hypothesis, other, another))
    return SwappedPairs(quadruples, len(gendered) - len(quadruples))


def lines_of(path: Path) -> list[str]:
    """The lines of a text in UTF-8; str.splitlines would also cut sentences at characters such as U+2028."""
    with path.open(encoding="utf-8") as file:
        return list(file)


def _read_columns(*paths: Path) -> Iterator[tuple[str, str, str]]:
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ValueError(f"{paths[0].parent} must hold {LAYOUT}; missing: {', '.join(missing)}.")
    try:
        premises, hypotheses, labels = (lines_of(path) for path in paths)
    except UnicodeError as error:
        raise ValueError(f"the files of {paths[0].parent} must be text in UTF-8: {error}.") from error
    if not len(premises) == len(hypotheses) == len(labels):
        counts = ", ".join(
            f"{path.name} {len(lines)}"
            for path, lines in zip(paths, (premises, hypotheses, labels), strict=True)
        )
        raise ValueError(
            f"the files of {paths[0].parent} must have as many lines as each other, got {counts}."
        )
    for premise, hypothesis, label in zip(premises, hypotheses, labels, strict=True):
        yield premise.strip(), hypothesis.strip(), label.strip()


def _read_json(path: Path) -> Iterator[tuple[str, str, str]]:
    with path.open("rb") as lines:  # json decodes them, so that what is no UTF-8 has a line's number too
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                yield row["sentence1"].strip(), row["sentence2"].strip(), row["gold_label"]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number} must be JSON in UTF-8 with sentence1, sentence2 and gold_label "
                    f"({type(error).__name__})."
                ) from error
