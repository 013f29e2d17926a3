from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

from taufree.diagnostics.embedding_files import load_embeddings

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 6, 3)).astype(np.float32)
LABELS = np.array([5, 5, -2, -2, 9, 9])


def column(values: np.ndarray, kind: Callable[[pa.DataType], pa.DataType] = pa.list_) -> pa.Array:
    return pa.array(values.tolist(), type=kind(pa.from_numpy_dtype(values.dtype)))


def pairs_npz(path: Path) -> None:
    np.savez(path, zebra=A, ant=B)


def labelled_npz(path: Path) -> None:
    np.savez_compressed(path, y=LABELS, x=A)


def pairs_safetensors(path: Path) -> None:
    save_file({"view_b": torch.tensor(B), "view_a": torch.tensor(A)}, path)


def labelled_safetensors(path: Path) -> None:
    save_file({"x": torch.tensor(A), "y": torch.tensor(LABELS, dtype=torch.int32)}, path)


def pairs_parquet(path: Path) -> None:
    fixed = column(B, lambda element: pa.list_(element, 3))
    columns = {"text": ["a"] * 6, "query": column(A), "document": fixed}
    pa.parquet.write_table(pa.table(columns), path, row_group_size=4)


def labelled_parquet(path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": column(A, pa.large_list), "y": LABELS}), path)


@pytest.mark.parametrize("write", [pairs_npz, pairs_safetensors, pairs_parquet])
def test_pairs_in_one_file(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / write.__name__.replace("pairs_", "x.")
    write(path)
    first, second, labels = load_embeddings(path)
    assert labels is None
    torch.testing.assert_close(first, torch.tensor(A))
    torch.testing.assert_close(second, torch.tensor(B))


@pytest.mark.parametrize("write", [labelled_npz, labelled_safetensors, labelled_parquet])
def test_labels_in_one_file(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / write.__name__.replace("labelled_", "x.")
    write(path)
    first, second, labels = load_embeddings(path)
    assert second is None
    torch.testing.assert_close(first, torch.tensor(A))
    assert labels is not None
    assert labels.tolist() == LABELS.tolist()


def test_separate_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    np.save(tmp_path / "y.NPY", LABELS.astype(np.uint8) % 7)
    (tmp_path / "y.NPY.npy").rename(tmp_path / "y.NPY")
    first, second, labels = load_embeddings(tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "y.NPY")
    torch.testing.assert_close(first, torch.tensor(A))
    torch.testing.assert_close(second, torch.tensor(B))
    assert labels is not None
    assert labels.tolist() == (LABELS.astype(np.uint8) % 7).tolist()
    # The same file twice is a pair, if a dull one.
    same, again, _ = load_embeddings(tmp_path / "a.npy", tmp_path / "a.npy")
    torch.testing.assert_close(same, again)


@pytest.mark.parametrize("dtype", ["float16", ">f4", "float64", "longdouble"])
def test_every_float(dtype: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=A.astype(dtype), b=B.astype(dtype))
    first, _, _ = load_embeddings(tmp_path / "x.npz")
    torch.testing.assert_close(first.float(), torch.tensor(A), rtol=1e-3, atol=1e-3)


def test_bfloat16(tmp_path: Path) -> None:
    save_file({"a": torch.tensor(A).bfloat16(), "b": torch.tensor(B).bfloat16()}, tmp_path / "x.safetensors")
    assert load_embeddings(tmp_path / "x.safetensors")[0].dtype == torch.bfloat16


def broken(value: float) -> np.ndarray:
    table = A.copy()
    table[4, 1] = value
    return table


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": A}, "x.npz holds embeddings alone; needed are their pairs or labels"),
        ({}, "x.npz is empty"),
        ({"y": LABELS}, "must hold one or two tables of embeddings"),
        ({"a": A, "b": B, "c": A}, r"must hold one or two tables of embeddings .*x.npz\[a\], .*x.npz\[b\]"),
        ({"a": A, "b": B[:5]}, r"x.npz\[b\] of shape \(5, 3\) does not fit .*x.npz\[a\] of shape \(6, 3\)"),
        ({"a": A, "b": B[:, :2]}, r"x.npz\[b\] of shape \(6, 2\) does not fit"),
        ({"a": A, "y": LABELS[:5]}, r"x.npz\[y\] of shape \(5,\) does not fit"),
        ({"a": A[:0], "b": B[:0]}, r"x.npz\[a\] must .* at least two rows, got shape \(0, 3\)"),
        ({"a": A[:1], "b": B[:1]}, r"x.npz\[a\] must .* at least two rows, got shape \(1, 3\)"),
        ({"a": A[:, :0], "b": B[:, :0]}, r"x.npz\[a\] must be rows x dimensions"),
        ({"a": A, "b": broken(np.nan)}, r"x.npz\[b\] must be finite, but row 4 holds NaN or infinity"),
        ({"a": broken(np.inf), "b": B}, r"x.npz\[a\] must be finite, but row 4"),
        (
            {"a": A, "b": (B * 9).astype(int)},
            r"x.npz\[b\] is int64 of shape \(6, 3\); needed are 2-D arrays of fl",
        ),
        ({"a": A[None], "b": B}, r"x.npz\[a\] is float32 of shape \(1, 6, 3\)"),
        ({"a": A, "y": LABELS > 5}, r"x.npz\[y\] is bool of shape"),
        ({"a": A, "y": np.array(["u"] * 6)}, r"x.npz\[y\] is str"),
        ({"a": A, "b": A + 1j}, r"x.npz\[b\] is complex64"),
        ({"a": A, "y": np.array([{}] * 6)}, "x.npz cannot be read as .npz: it holds Python objects"),
    ],
)
def test_wrong_contents(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        load_embeddings(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"no such format", pickle.dumps(A)])
def test_unreadable(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"x{suffix} cannot be read as {suffix}"):
        load_embeddings(path)


def test_what_is_no_file_of_numpy_is_not_taken_for_python_objects(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_text("1.0 2.0")
    with pytest.raises(ValueError, match=r"x.npy cannot be read as .npy: it does not begin like"):
        load_embeddings(path)
    np.save(path, np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"it holds Python objects, which need a pickle"):
        load_embeddings(path)


@pytest.mark.parametrize("name", ["x.pkl", "x.pt", "x.PTH"])
def test_pickles_are_not_opened(name: str, tmp_path: Path) -> None:
    torch.save({"a": torch.tensor(A)}, tmp_path / name)
    with pytest.raises(ValueError, match=r"can run any code: save it as .npz or .safetensors"):
        load_embeddings(tmp_path / name)


def test_damaged_archive(tmp_path: Path) -> None:
    labelled_npz(tmp_path / "x.npz")
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[80:120] = bytes(40)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"x.npz cannot be read as .npz"):
        load_embeddings(tmp_path / "x.npz")


def test_a_head_that_promises_more_than_memory_holds(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        head = {"descr": "<f4", "fortran_order": False, "shape": (2**45, 8)}
        np.lib.format.write_array_header_1_0(file, head)
    with pytest.raises(ValueError, match=r"x.npy cannot be read as .npy: Unable to allocate"):
        load_embeddings(tmp_path / "x.npy")


def test_missing_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file: .*x\.npz, which must hold"):
        load_embeddings(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x.txt is of no known kind: needed is one of .npz"):
        load_embeddings(tmp_path / "x.txt")


def test_two_files_that_hold_too_much(tmp_path: Path) -> None:
    pairs_npz(tmp_path / "pairs.npz")
    labelled_npz(tmp_path / "labelled.npz")
    np.save(tmp_path / "a.npy", A)
    with pytest.raises(ValueError, match="one table of embeddings each"):
        load_embeddings(tmp_path / "pairs.npz", tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"a.npy must hold one 1-D array of integer labels"):
        load_embeddings(tmp_path / "pairs.npz", labels=tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"labelled.npz must hold one 1-D array"):
        load_embeddings(tmp_path / "pairs.npz", labels=tmp_path / "labelled.npz")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [[1.0, 2.0], [1.0]], "y": [0, 1]}, "column x must hold lists of one length"),
        ({"x": [[1.0, 2.0], None], "y": [0, 1]}, "column x has 1 missing values"),
        ({"x": [[1.0, 2.0], [1.0, None]], "y": [0, 1]}, "column x must hold lists of one length"),
        ({"x": [[1.0, 2.0], [1.0, 3.0]], "y": [0, None]}, "column y has 1 missing values"),
        ({"text": ["a", "b"], "x": [1.0, 2.0]}, "x.parquet cannot .* no column has lists of floating-point"),
    ],
)
def test_wrong_parquet(columns: dict[str, list[object]], words: str, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=words):
        load_embeddings(tmp_path / "x.parquet")


def test_parquet_without_rows(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.list_(pa.float32()), "y": pa.int64()})
    pa.parquet.write_table(schema.empty_table(), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x.parquet\[x\] must .* at least two rows"):
        load_embeddings(tmp_path / "x.parquet")


def extra_npz(path: Path) -> None:
    np.savez(path, query=B, document=A, text=np.array(["u"] * 6), extra=A, y=LABELS)


def extra_safetensors(path: Path) -> None:
    tensors = {"query": B, "document": A, "extra": A, "y": LABELS}
    save_file({name: torch.tensor(values) for name, values in tensors.items()}, path)


def extra_parquet(path: Path) -> None:
    columns = {"id": range(6), "query": column(B), "document": column(A), "extra": column(A), "y": LABELS}
    pa.parquet.write_table(pa.table(columns), path)


def extra_csv(path: Path) -> None:
    tables = {name: list(map(list, values.tolist())) for name, values in (("query", B), ("extra", A))}
    frame = pd.DataFrame(
        {f"document_{i}": A[:, i] for i in range(3)} | tables | {"id": range(6), "y": LABELS}
    )
    frame.to_csv(path)


@pytest.mark.parametrize("write", [extra_npz, extra_safetensors, extra_parquet, extra_csv])
def test_columns_are_taken_by_name(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / write.__name__.replace("extra_", "x.")
    write(path)
    first, second, labels = load_embeddings(path, columns=["document", "query"])
    assert labels is None
    assert second is not None
    torch.testing.assert_close(first.float(), torch.tensor(A))
    torch.testing.assert_close(second.float(), torch.tensor(B))
    first, second, labels = load_embeddings(path, columns=["y", "query"])
    assert second is None
    assert labels is not None
    assert labels.tolist() == LABELS.tolist()
    with pytest.raises(ValueError, match=r"has no array or column 'absent' that holds"):
        load_embeddings(path, columns=["query", "absent"])
    with pytest.raises(ValueError, match=r"columns says which to take|x.npz\[text\] is str"):
        load_embeddings(path)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_with_and_without_names(separator: str, tmp_path: Path) -> None:
    lines = [[*map(str, row), "some text", str(label)] for row, label in zip(A, LABELS, strict=True)]
    names = ["x0", "x1", "x2", "note", "label"]
    path, bare, ids = (tmp_path / name for name in ("named.csv", "bare.csv", "labels.csv"))
    path.write_text("\n".join(separator.join(line) for line in [names, *lines]))
    bare.write_text("\n".join(separator.join(line[:3]) for line in lines))
    ids.write_text("\n".join(line[-1] for line in lines))
    for found in (load_embeddings(path), load_embeddings(bare, labels=ids)):
        first, second, labels = found
        assert second is None
        assert labels is not None
        torch.testing.assert_close(first.float(), torch.tensor(A))
        assert labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "x.csv cannot be read as .csv: "),
        ("name,score1\nu,0.5\nv,0.1\n", "no column is numbered"),
        ("x0,x1,y\n1.5,,0\n2.5,1.0,1\n", "column x1 has 1 missing values"),
        ("x0,x1,y\n1,2,0\n2,1,1\n", r"x.csv\[x\] is int64 of shape \(2, 2\)"),
        ('x,y\n"[1.0, 2.0]",0\n"[1.0]",1\n', "column x must hold lists of one length"),
        ('x,y\n"[1.0, 2.0]",0\n"[1.0, ",1\n', "x.csv cannot be read as .csv: "),
        ("x0,x1,y\n1.5,2.5\n", "x.csv cannot be read as .csv: "),
        pytest.param("x,y\n" + "[" * 100_000 + ",0\n", "x.csv cannot be read as .csv: ", id="nested lists"),
        pytest.param("x" * 140_000 + ",y\n1.5,0\n", "x.csv cannot be read as .csv: ", id="a long name"),
        ("x0,x1,y\n1.5,nan,0\n2.5,1.0,1\n", r"x.csv\[x\] must be finite|column x1 has 1 missing values"),
    ],
)
def test_wrong_csv(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        load_embeddings(tmp_path / "x.csv")
