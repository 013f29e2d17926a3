"""Embeddings and labels from files: .npy, .npz, .safetensors, .parquet and .csv.

A two-dimensional array of floating-point numbers (in a .parquet file a column of lists of them, all of one
length; in a .csv file that as well, or columns x0, x1, ...) is a table of embeddings, a one-dimensional array
(a column) of integers holds labels. float16, bfloat16, float32 and float64 are taken as they are. A
two-dimensional array of integers is refused: it is more often tokens or one-hot labels than embeddings;
quantised embeddings must be converted to float first.
Pickles are never opened: they can run any code.
"""

from __future__ import annotations

import csv
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taufree.diagnostics.diagnose import table
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet
    from numpy.typing import NDArray
    from safetensors import SafetensorError
    from safetensors.torch import load_file

_NEEDED = "needed are 2-D arrays of floating-point embeddings or a 1-D array of integer labels"
_UNREADABLE = (
    ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, pickle.UnpicklingError,
    SafetensorError, pyarrow.ArrowException, zlib.error, csv.Error, RecursionError,
)  # fmt: skip
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin", ".joblib")


def load_embeddings(
    path: Path,
    second: Path | None = None,
    labels: Path | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Read what `diagnose` takes: the anchors, and their pairs or labels or both.

    One file may hold everything: two tables of embeddings of any names (the first in the file is `first`; in
    a .safetensors file, which has no order, the first by name), or one table and labels. Otherwise the pairs
    are in the file `second` and the labels in the file `labels`. Where `path` holds more than that, `columns`
    names what to take of it, in this order: arrays, columns, or in a .csv the part before the numbers ("x"
    for the columns x0, x1, ...).

    Returns:
        first [N, D], second [N, D] or None, labels [N] or None; at least one of the last two is given.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file is not of a known kind, cannot be read, or does not hold what is needed.
    """
    tables, vectors = _contents(Path(path), columns)
    if second is not None:
        pairs, extra = _contents(Path(second))
        if len(tables) != 1 or len(pairs) != 1 or extra:
            raise ValueError(f"{path} and {second} must hold one table of embeddings each to be pairs")
        tables += pairs
    if labels is not None:
        extra, named = _contents(Path(labels))
        if vectors or extra or len(named) != 1:
            raise ValueError(f"{labels} must hold one 1-D array of integer labels, and {path} none")
        vectors = named
    if not 1 <= len(tables) <= 2 or len(vectors) > 1:
        names = ", ".join(name for name, _ in tables + vectors)
        raise ValueError(
            f"{path} must hold one or two tables of embeddings and at most one of labels, got {names}; "
            "columns says which to take"
        )
    if len(tables + vectors) < 2:
        raise ValueError(f"{path} holds embeddings alone; needed are their pairs or labels as well")
    (origin, first), *others = [(name, table(name, values)) for name, values in tables]
    for name, values in others + vectors:
        if values.shape not in (first.shape, first.shape[:1]):
            raise ValueError(
                f"{name} of shape {tuple(values.shape)} does not fit {origin} of shape {tuple(first.shape)}: "
                "needed are as many rows (and dimensions)"
            )
    return first, others[0][1] if others else None, vectors[0][1] if vectors else None


def _contents(
    path: Path, columns: Sequence[str] | None = None
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """The tables and the labels in a file, each with a name that says where it comes from."""
    kind = path.suffix.lower()
    if kind in _PICKLES:
        raise ValueError(f"{path} may hold a pickle, which can run any code: save it as .npz or .safetensors")
    if kind not in _READERS:
        raise ValueError(f"{path} is of no known kind: needed is one of {', '.join(_READERS)}")
    if not path.exists():
        raise FileNotFoundError(f"No such file: {path}, which must hold embeddings or labels")
    try:
        arrays = _READERS[kind](path, columns)
    except _UNREADABLE as error:
        objects = "Object arrays" in str(error)
        reason = "it holds Python objects, which need a pickle" if objects else error
        raise ValueError(f"{path} cannot be read as {kind}: {reason}") from error
    for name in columns or ():
        if not name or name not in arrays:
            raise ValueError(f"{path} has no array or column {name!r} that holds embeddings or labels")
    tables, labels = [], []
    for key, array in ((name, arrays[name]) for name in columns or arrays):
        name = f"{path}[{key}]" if key else str(path)
        values = array if isinstance(array, Tensor) else np.asarray(array)
        dtype = getattr(values.dtype, "name", str(values.dtype)).removeprefix("torch.")
        number = dtype.rstrip("0123456789")
        if values.ndim == 2 and number in ("float", "bfloat"):
            tables.append((name, values))
        elif values.ndim == 1 and number in ("int", "uint"):
            labels.append((name, torch.from_numpy(np.asarray(values).astype(np.int64))))
        else:
            raise ValueError(f"{name} is {dtype} of shape {tuple(values.shape)}; {_NEEDED}")
    if not arrays:
        raise ValueError(f"{path} is empty; {_NEEDED}")
    return tables, labels


def _numpy(path: Path, columns: Sequence[str] | None) -> Mapping[str, NDArray[Any]]:
    with path.open("rb") as file:
        if not file.read(6).startswith((b"\x93NUMPY", b"PK")):  # NumPy would take it for a pickle
            raise ValueError("it does not begin like a file of NumPy")
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {"": loaded}
    with loaded:
        return {name: loaded[name] for name in loaded.files if not columns or name in columns}


def _safetensors(path: Path, columns: Sequence[str] | None) -> Mapping[str, Tensor]:
    return dict(sorted(load_file(path).items()))


def _parquet(path: Path, columns: Sequence[str] | None) -> Mapping[str, NDArray[Any]]:
    """The columns of lists of floats and of integers; others, such as texts, are left alone."""
    schema = pyarrow.parquet.read_schema(path)
    kinds = pyarrow.types
    tables = [
        field.name
        for field in schema
        if (
            kinds.is_list(field.type)
            or kinds.is_large_list(field.type)
            or kinds.is_fixed_size_list(field.type)
        )
        and kinds.is_floating(field.type.value_type)
    ]
    vectors = [field.name for field in schema if kinds.is_integer(field.type)]
    if not tables and not vectors:
        raise ValueError("no column has lists of floating-point numbers, which are embeddings, or integers")
    wanted = [name for name in (*tables, *vectors) if not columns or name in columns]
    read = pyarrow.parquet.read_table(path, columns=wanted)
    return {name: _column(name, read[name], name in tables) for name in read.column_names}


def _csv(path: Path, columns: Sequence[str] | None) -> Mapping[str, NDArray[Any]]:
    """The columns x0, x1, ... as a table x, those of lists such as [0.1, 0.2] as tables, those of integers.

    Others are left alone, and so is one of integers without a name, pandas' index. Without a line of names
    all columns are one table, or labels if there is one column of integers.
    """
    with path.open(encoding="utf-8-sig", newline="") as lines:
        line = lines.readline()
    delimiter = max(",;\t", key=line.count)
    nameless = all(map(_is_number, next(csv.reader([line], delimiter=delimiter), [])))
    read = pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(autogenerate_column_names=nameless),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
    )
    kinds, numbered, arrays = pyarrow.types, dict[str, list[str]](), dict[str, NDArray[Any]]()
    for field in read.schema:
        stem = re.fullmatch(r"(.*?)[ _.-]?\d+", field.name)
        if stem and (kinds.is_floating(field.type) or kinds.is_integer(field.type)):
            numbered.setdefault("" if nameless else stem[1], []).append(field.name)
        elif field.name and kinds.is_integer(field.type):
            numbered[field.name] = [field.name]
        elif kinds.is_string(field.type) and str(read[field.name][0]).startswith("["):
            lists = pyarrow.chunked_array(
                [pyarrow.array([json.loads(text) for text in read[field.name].to_pylist()])]
            )
            arrays[field.name] = _column(field.name, lists, lists=True)
    for name, parts in numbered.items():
        if not columns or name in columns:
            table = np.stack([_column(part, read[part], lists=False) for part in parts], axis=1)
            if len(parts) > 1:
                arrays[name] = table
            elif table.dtype.kind != "f":  # a single column of fractions, such as score1, is left alone
                arrays[name] = table[:, 0]
    if not arrays and not columns:
        raise ValueError("no column is numbered (x0, x1, ...) or has lists, as embeddings have, or integers")
    return arrays


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(name: str, column: Any, lists: bool) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"column {name} has {column.null_count} missing values")
    if not lists:
        integers: NDArray[Any] = column.to_numpy()
        return integers
    flat = [chunk.flatten() for chunk in column.chunks]
    lengths = {length for chunk in column.chunks for length in chunk.value_lengths().unique().to_pylist()}
    if len(lengths) > 1 or any(values.null_count for values in flat):
        raise ValueError(f"column {name} must hold lists of one length without missing values")
    rows = np.concatenate([values.to_numpy(zero_copy_only=False) for values in flat] or [np.zeros(0)])
    return rows.reshape(len(column), max(lengths, default=0))


_READERS: dict[str, Callable[[Path, Sequence[str] | None], Mapping[str, Any]]] = {
    ".npz": _numpy,
    ".npy": _numpy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".csv": _csv,
}
