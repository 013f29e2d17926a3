"""``taufree bench``: every method that is installed, at the sizes asked for, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from taufree.bench.measure import Row, StepTimer, about, matmul_tflops, pairs, short_reason
from taufree.bench.methods import LINKS, LOSSES, methods
from taufree.losses import InfoNCE

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_OPTIONS = {"cuda": ("4096,16384", "512", "bfloat16"), "cpu": ("1024,4096", "128", "float32")}


def bench(
    ns: Sequence[int],
    ds: Sequence[int],
    dtype: str,
    loss: str,
    device: str,
    watch: Callable[[int, int], None] = lambda done, total: None,
    links: Sequence[str | float] = LINKS,
) -> Row:
    """Measure every method at every N and D; ``watch`` is called with how many rows are done, of how many."""
    check(dtype, loss)
    torch.manual_seed(0)
    every = methods(device, loss, links)
    there = [method for method in every if method.installed()]
    sizes = [(n, d) for d in ds for n in ns]
    watch(0, len(sizes) * len(there))
    rate = matmul_tflops(device)
    rows: list[Row] = []
    for n, d in sizes:
        try:
            batch = StepTimer(loss, *pairs(n, d, device, getattr(torch, dtype)), rate)
        except Exception as error:  # rows that do not fit into memory: the other sizes are still measured
            size = {"loss": loss, "n": n, "d": d, "problem": short_reason(error)}
            rows += [{"method": method.name, **size} for method in there]
            watch(len(rows), len(sizes) * len(there))
            continue
        for method in there:
            rows.append(batch.row(method))
            watch(len(rows), len(sizes) * len(there))
    return {
        "what": "forward + backward; milliseconds, and MiB beyond the inputs",
        **about(device, [m.package for m in there if m.package]),
        "loss": loss,
        "dtype": dtype,
        "matmul_tflops": rate,
        "rows": rows,
        "not_installed": [m.package for m in every if not m.installed()],
    }


def check(dtype: str, loss: str) -> None:
    """Raise unless there are such a dtype and loss."""
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}.")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")


def numbers(name: str, text: str, least: int = 1) -> list[int]:
    """Comma-separated integers of at least ``least``.

    >>> numbers("n", "4096,16384")
    [4096, 16384]
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) >= least for word in words):
        raise ValueError(
            f"{name} must be integers of at least {least} with commas between them, got {text!r}."
        )
    return [int(word) for word in words]


def links_of(text: str) -> list[str | float]:
    """Comma-separated names of links and temperatures.

    >>> links_of("free, fitted,0.07")
    ['free', 'fitted', 0.07]
    """
    found: list[str | float] = []
    for word in text.split(","):
        try:
            link: str | float = float(word)
        except ValueError:
            link = word.strip()
        InfoNCE(link=link)  # which refuses what is no link
        found.append(link)
    return found


def table_row(row: Row) -> dict[str, str]:
    """A row as it is printed."""
    cells = {"N x D": f"{row['n']} x {row['d']}", "method": row["method"]}
    if "problem" in row:
        return cells | {"ms": "-", "of floor": "-", "MiB": "-", "note": row["problem"]}
    note = "" if row["agrees"] else f"off: loss {row['loss_error']:.0e}, gradient {row['gradient_error']:.0e}"
    return cells | {
        "ms": f"{row['ms']:.3g}" if row["ms"] < 100 else f"{row['ms']:.0f}",
        "of floor": f"{row['share_of_floor']:.0%}",
        "MiB": f"{row['extra_mib']:.0f}",
        "note": note,
    }


def remarks(result: Row) -> list[str]:
    """What stands below the table."""
    machine, rate = result["hardware"], result["matmul_tflops"]
    kind = "bfloat16" if machine["device"] == "cuda" else "float32"
    work = "16" if result["loss"] == "nt-xent" else "8"
    lines = [
        f"{machine.get('gpu', machine['cpu'])}. Floor: {work} N^2 D operations at {rate:.3g} TFLOP/s, "
        f"the {kind} matrix product measured here."
    ]
    if missing := result["not_installed"]:
        lines.append(f"Not installed: {', '.join(missing)}. To add them: pip install {' '.join(missing)}")
    return lines
