"""Interaction logs into sequences of items, in seconds for millions of rows.

A log has a row for each interaction: a user, an item, a time. Users and items with few interactions are
left out until none is left (the k-core), each user's items are put in the order of time, and the last two
of them become the targets of the training and of the test file.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taufree.experiments.recommendation.interactions import COLUMNS, left_out
from taufree.util.files import atomic_write, check_file
from taufree.util.optional import needs

with needs("taufree[rec]"):
    import polars as pl

NAMES = {
    "user": ("user", "user_id", "userid", "session_id"),
    "item": ("item", "item_id", "itemid", "movieid", "movie_id", "product_id"),
    "time": ("time", "timestamp", "date", "datetime"),
}
"""What a column is called, in small letters, if the caller names none."""
SHORTEST = 3


@dataclass(frozen=True)
class Summary:
    """What has become of a log."""

    rows: int
    kept: int
    users: int
    items: int
    notes: tuple[str, ...]


def build_sequences(
    log: Path,
    out: Path,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    core: int = 5,
) -> Summary:
    """Write ``out/NAME.train.inter`` and ``out/NAME.test.inter``, with NAME that of the folder.

    Args:
        log: MovieLens's ``ratings.csv``, ``ratings.dat`` or ``u.data``, RecBole's ``NAME.inter``, or any CSV,
            TSV or Parquet file; a CSV may have commas, semicolons or tabs.
        user, item, time: names of the columns; None stands for the usual ones.
        core: users and items have at least so many interactions; users at least three in any case.

    Raises ValueError with one sentence where the log has no such columns, or nothing is left of it.
    """
    if core < 1:
        raise ValueError(f"core must be at least 1, got {core}.")
    check_file(log, "interactions: users, items and times")
    frame, first = _read(log)
    given = (("user", user), ("item", item), ("time", time))
    names = [_column(frame, log, kind, name) for kind, name in given]
    frame = _plain(frame.select(pl.col(name).alias(kind) for kind, name in zip(NAMES, names, strict=True)))
    written = frame["time"]
    frame = frame.with_columns(_moments(written, log))
    dates = written.filter(frame["time"].is_not_null() & frame["time"].dtype.is_temporal())
    total = frame.height
    frame, notes = _without_missing(frame, log, first)
    if len(dates) and dates.dtype == pl.String and not dates.str.contains(r"^\d{4}").any():
        notes = (*notes, f"Times such as {dates[0]!r} are read with the day before the month.")
    _check_names(frame["user"], log, r"[\t\r\n]", "tabs and line breaks")
    _check_names(frame["item"], log, r"\s", "spaces")
    frame = frame.with_columns(_ids(frame[name]) for name in ("user", "item"))
    who, what = (frame[name].rank("dense").to_numpy().astype(np.int64) - 1 for name in ("user", "item"))
    least = max(core, SHORTEST)
    frame = frame.filter(pl.Series(k_core(who, what, least, core), dtype=pl.Boolean))
    rows = (
        frame.sort("user", "time", maintain_order=True)
        .group_by("user", maintain_order=True)
        .agg(pl.col("item").cast(pl.String))
    )
    if not rows.height:
        why = f": {' '.join(notes)}" if notes else "."
        raise ValueError(f"{log} must have users with {least} interactions, but none are left{why}")
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as both:  # they appear when both are whole: one alone would belong to other data
        for part, held_out in (("train", 2), ("test", 1)):
            history = pl.col("item").list.head(pl.col("item").list.len() - held_out).list.join(" ")
            target = pl.col("item").list.get(-held_out)
            parts = (pl.col("user"), history, target)
            table = rows.select(column.alias(name) for column, name in zip(parts, COLUMNS, strict=True))
            draft = both.enter_context(atomic_write(out / f"{out.resolve().name}.{part}.inter"))
            table.write_csv(draft, separator="\t", quote_style="never")
    kept = rows["item"].list.len().sum()
    return Summary(total, int(kept), rows.height, rows["item"].explode().n_unique(), notes)


def k_core(user: NDArray[np.int64], item: NDArray[np.int64], users: int, items: int) -> NDArray[np.bool_]:
    """Which rows are left when users with fewer than ``users`` rows, and items with fewer than ``items``, are
    taken out again and again.

    >>> k_core(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2]), 2, 2).tolist()
    [True, True, True, True, False]
    """
    kept = np.arange(len(user))
    while True:
        often = [
            np.bincount(column[kept], minlength=1) >= least
            for column, least in ((user, users), (item, items))
        ]
        good = often[0][user[kept]] & often[1][item[kept]]
        if good.all():
            break
        kept = kept[good]
    mask = np.zeros(len(user), dtype=bool)
    mask[kept] = True
    return mask


def _read(log: Path) -> tuple[pl.DataFrame, int]:
    """The log as it is, all texts if it is no Parquet file, and the number of its first row's line."""
    # Without glob: a name with brackets or stars is that of one file.
    options: dict[str, Any] = {"infer_schema_length": 0, "truncate_ragged_lines": True, "glob": False}
    old = ["user", "item", "rating", "time"]  # MovieLens before it had headers
    kind = Path(log.name.lower().removesuffix(".gz")).suffix  # polars unpacks
    try:
        if kind == ".parquet":
            return pl.read_parquet(log, glob=False), 1
        if kind == ".dat":  # fields between two colons, which leave an empty column between each other
            table = pl.read_csv(log, separator=":", has_header=False, **options)
            names = dict(zip(table.columns[::2], old, strict=False))
            return table.select(*names).rename(names), 1
        if kind == ".data":
            return pl.read_csv(log, separator="\t", has_header=False, new_columns=old, **options), 1
        separator = "\t" if kind == ".tsv" else _separator(log, options)
        return pl.read_csv(log, separator=separator, **options), 2
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{log} cannot be read as a table: {reason}.") from error


def _separator(log: Path, options: dict[str, Any]) -> str:
    """What stands between the names of the columns: commas or, where there are more of them, semicolons, as
    spreadsheets write where numbers have decimal commas, or tabs."""
    # Read by polars, which unpacks: a separator that no text has leaves the line whole.
    first = pl.read_csv(log, has_header=False, n_rows=1, separator="\1", quote_char=None, **options)
    return max(",;\t", key=first.item().count)


def _column(frame: pl.DataFrame, log: Path, kind: str, name: str | None) -> str:
    # RecBole's names have a type behind: user_id:token.
    usual = [column for column in frame.columns if column.lower().partition(":")[0] in NAMES[kind]]
    found = [name] if name in frame.columns else usual if name is None else []
    if len(found) != 1:
        wanted = repr(name) if name else f"called {' or '.join(NAMES[kind])}"
        raise ValueError(f"{log} must have one column {wanted} for --{kind}, got {', '.join(frame.columns)}.")
    if (dtype := frame[found[0]].dtype).is_nested():
        raise ValueError(f"{log} must have names, numbers or times in column {found[0]!r}, got {dtype}.")
    return str(found[0])


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Texts, however they are stored, as texts; empty ones, and what is not a number, are missing."""
    stored = [name for name, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum, pl.Binary)]
    frame = frame.with_columns(pl.col(stored).cast(pl.String, strict=False))
    return frame.with_columns(
        pl.col(pl.String).replace("", None), pl.col(pl.Float32, pl.Float64).fill_nan(None)
    )


def _moments(times: pl.Series, log: Path) -> pl.Series:
    """The times, of which texts are read as numbers or dates: by their letters 9 would come after 10."""
    there = times.drop_nulls()
    if times.dtype != pl.String or there.is_empty():
        return times
    numbers: pl.Series = times.cast(pl.Float64, strict=False).fill_nan(None)
    if 2 * numbers.count() > len(there):  # a word among the first of them makes texts of all
        return numbers
    try:
        dates: pl.Series = times.str.to_datetime(strict=False)
    except pl.exceptions.PolarsError:
        dates = pl.Series(dtype=pl.Datetime)
    if not dates.count():
        raise ValueError(
            f"{log} must have times that are numbers or dates such as 2024-01-31, got {there[0]!r}."
        )
    return dates


def _ids(names: pl.Series) -> pl.Series:
    """Whole numbers as numbers, which are sorted sooner, unless they are written otherwise: 007 is not 7."""
    if names.dtype != pl.String:
        return names
    numbers: pl.Series = names.cast(pl.Int64, strict=False)
    return numbers if numbers.cast(pl.String).eq_missing(names).all() else names


def _check_names(names: pl.Series, log: Path, between: str, what: str) -> None:
    """Items are written with spaces between them, and users with tabs, so that they can have none."""
    if names.dtype == pl.String and len(torn := names.filter(names.str.contains(between))):
        kind = names.name
        raise ValueError(f"{log} must have {kind}s without {what} in them for --{kind}, got {torn[0]!r}.")


def _without_missing(frame: pl.DataFrame, log: Path, first: int) -> tuple[pl.DataFrame, tuple[str, ...]]:
    bad = frame.select(pl.any_horizontal(pl.all().is_null())).to_series()
    if not bad.any():
        return frame, ()
    lines = (bad.arg_true() + first).to_list()
    return frame.filter(~bad), (left_out(log, lines, frame.height),)
