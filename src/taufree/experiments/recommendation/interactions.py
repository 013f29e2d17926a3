"""Who did what in which order: the ``.inter`` files of next-item recommendation, as tables of item numbers.

``NAME.train.inter`` and ``NAME.test.inter`` have a header and one row for each user, tab-separated: the
user, the items before, with spaces between them, and the item that came next. In the training file that is
the user's last but one item, in the test file the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

COLUMNS = ("session_id:token", "item_id_list:token_seq", "item_id:token")
MAX_LISTED_LINES = 5


@dataclass(frozen=True)
class Histories:
    """Histories, and the item after each.

    Shape:
        items: [N, L + 1]; a history, its target after it, then the number of items, which is no item.
        lengths: [N], of the histories, each at least 1 and at most L.
        older: for each row the items, each once, that its history had before and was cut down from; or none.
    """

    items: Tensor
    lengths: Tensor
    older: Sequence[Tensor] = ()

    @property
    def targets(self) -> Tensor:
        """[N], the item after each history."""
        return self.items.gather(1, self.lengths[:, None]).squeeze(1)

    @property
    def known(self) -> Tensor:
        """[N, L + 1] booleans, where ``items`` are of the history."""
        return torch.arange(self.items.shape[1]) < self.lengths[:, None]

    def beginnings(self, *, whole: bool) -> Tensor:
        """[2, S], the row and the length of each history's beginnings, and of itself if ``whole``."""
        ends = self.known if whole else self.known & self.known.roll(-1, 1)
        row, last = ends.nonzero().T
        return torch.stack([row, last + 1])

    def seen(self, index: Tensor) -> Tensor:
        """[B, S], all items that some rows have had so far, older ones too, and their targets."""
        items, end = self.items[index], self.lengths[index][:, None]
        target = items.gather(1, end)  # also fills the place that shorter rows leave
        items = items.where(torch.arange(items.shape[1]) < end, target)
        if not self.older:
            return items
        older = pad_sequence([self.older[row] for row in index.tolist()], batch_first=True, padding_value=-1)
        return torch.cat([items, older.where(older >= 0, target)], dim=1)


@dataclass(frozen=True)
class Interactions:
    """A data set: the training and the test rows, how many items there are, and what is to be said of it."""

    train: Histories
    test: Histories
    item_count: int
    notes: Sequence[str]


class _Line(NamedTuple):
    user: str
    history: list[str]
    target: str


def read_interactions(folder: Path, *, longest: int = 50, users: int = 0) -> Interactions:
    """The data set in a folder.

    Args:
        folder: holds one ``*.train.inter`` and one ``*.test.inter``.
        longest: how many items a history has at most; the last ones are kept, others are ``older``.
        users: read so many users at most, those with the longest histories; 0 is all.

    Raises ValueError with one sentence where a file is missing, has other columns or no usable row. Histories
    that are malformed are left out and named in the notes.
    """
    notes: list[str] = []
    train, test = (_read(_find(folder, part), notes) for part in ("train", "test"))
    if 0 < users < len(test):
        chosen = {line.user for line in sorted(test, key=lambda line: -len(line.history))[:users]}
        train, test = ([line for line in lines if line.user in chosen] for lines in (train, test))
    number: dict[str, int] = {}
    for token in chain(_tokens(train, longest), _tokens(test, longest)):
        number.setdefault(token, len(number))
    train_rows, test_rows = (_table(lines, number, longest) for lines in (train, test))
    return Interactions(train_rows, test_rows, len(number), tuple(notes))


def _find(folder: Path, part: str) -> Path:
    found = sorted(folder.glob(f"*.{part}.inter"))
    if len(found) != 1:
        raise ValueError(f"{folder} must hold one file *.{part}.inter, found {len(found)}.")
    return found[0]


def _read(path: Path, notes: list[str]) -> list[_Line]:
    good: list[_Line] = []
    bad: list[int] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = [name.split(":")[0] for name in file.readline().rstrip("\n").split("\t")]
        wanted = [name.split(":")[0] for name in COLUMNS]
        if header != wanted:
            raise ValueError(
                f"{path} must begin with the columns {', '.join(wanted)}, got {', '.join(header)}."
            )
        for number, raw in enumerate(file, start=2):
            fields = raw.rstrip("\n").split("\t")
            history = fields[1].split() if len(fields) == 3 else []
            if history and len(fields[2].split()) == 1:
                good.append(_Line(fields[0], history, fields[2].strip()))
            elif raw.strip():
                bad.append(number)
    if bad:
        notes.append(left_out(path, bad, len(good) + len(bad)))
    if not good:
        raise ValueError(f"{path} must hold rows of a user, a list of items and an item, found none.")
    return good


def left_out(path: Path, lines: Sequence[int], rows: int) -> str:
    """The note about malformed rows.

    >>> left_out(Path("log.csv"), [3, 5], 9)
    '2 of 9 rows of log.csv are malformed and left out: lines 3, 5.'
    """
    shown = ", ".join(map(str, lines[:MAX_LISTED_LINES])) + (", ..." if len(lines) > MAX_LISTED_LINES else "")
    return f"{len(lines)} of {rows} rows of {path} are malformed and left out: lines {shown}."


def _tokens(lines: Iterable[_Line], longest: int) -> Iterable[str]:
    return chain.from_iterable((*line.history[-longest:], line.target) for line in lines)


def _table(lines: Sequence[_Line], number: dict[str, int], longest: int) -> Histories:
    if not lines:
        raise ValueError("the training file must have rows of the test file's users, found none.")
    lengths = torch.tensor([len(line.history) for line in lines])
    older: list[Tensor] = []
    if lengths.max() > longest:
        # Each once: the longest history, of a robot perhaps, says how much memory a thousand rows take.
        before = ({number[token] for token in line.history[:-longest] if token in number} for line in lines)
        older = [torch.tensor(sorted(items), dtype=torch.long) for items in before]
    lengths = lengths.clamp(max=longest)
    items = torch.full((len(lines), int(lengths.max()) + 1), len(number))
    filled = torch.arange(items.shape[1]) <= lengths[:, None]
    items[filled] = torch.tensor([number[token] for token in _tokens(lines, longest)])
    return Histories(items, lengths, older)
