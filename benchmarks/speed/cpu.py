"""Blockwise against dense InfoNCE on the CPU: time and peak memory of forward and backward.

    python -m benchmarks.speed.cpu                  # N from 256 to 32,768, D 128 and 512; ten minutes
    python -m benchmarks.speed.cpu --sizes 2048 --dims 128
    python -m benchmarks.speed.cpu --table          # the table of the README, from the results

Every measurement runs in a process of its own, so that its peak memory is its own; methods of one
size follow each other, and the fastest step of two seconds counts. Writes benchmarks/results/cpu.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import taufree
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree.bench.measure import MIB, about, save

TAU = 0.1
OUT = RESULTS / "cpu.json"


def dense(query, key):
    logits = F.normalize(query) @ F.normalize(key).T / TAU
    return F.cross_entropy(logits, torch.arange(len(query)))


def dense_nt_xent(a, b):
    z = F.normalize(torch.cat([a, b]))
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(a)))


def fused_linear(query, key):
    """torch's own chunked cross-entropy over a linear layer, where this torch has it."""
    return F.linear_cross_entropy(F.normalize(query) / TAU, F.normalize(key), torch.arange(len(query)))


def free(backend, loss=taufree.info_nce, **options):
    return lambda a, b: loss(a, b, backend=backend, **options)


# name: (loss, the dense method it is compared with, the largest N it is run at)
METHODS = {
    "dense, tau": (dense, "dense, tau", 32768),
    "blockwise, free": (free("blockwise"), "dense, tau", 32768),
    "blockwise, tau": (free("blockwise", link=taufree.Temperature(TAU)), "dense, tau", 32768),
    "reference, free": (free("reference"), "dense, tau", 4096),
    "F.linear_cross_entropy, tau": (fused_linear, "dense, tau", 32768),
    "dense NT-Xent, tau": (dense_nt_xent, "dense NT-Xent, tau", 8192),
    "blockwise NT-Xent, free": (free("blockwise", taufree.nt_xent), "dense NT-Xent, tau", 8192),
}
if not hasattr(F, "linear_cross_entropy"):
    del METHODS["F.linear_cross_entropy, tau"]


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(name: str, n: int, d: int) -> dict[str, float]:
    """Seconds of a step (best of several) and the MiB it needs beyond its inputs, gradients included."""
    loss = METHODS[name][0]
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(n, d, generator=generator)
    key = (query + torch.randn(n, d, generator=generator)).requires_grad_()
    query.requires_grad_()
    small = [x.detach()[:64].clone().requires_grad_() for x in (query, key)]
    loss(*small).backward()  # libraries loaded, threads started
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak_mib()
    seconds: list[float] = []
    extra = 0.0
    while sum(seconds) < 2 and len(seconds) < 50:
        query.grad = key.grad = None
        start = time.perf_counter()
        loss(query, key).backward()
        seconds.append(time.perf_counter() - start)
        extra = extra or peak_mib() - before  # of the first step
    return {"seconds": min(seconds), "extra_mib": extra}


def table(rows: list[dict]) -> None:
    """Markdown: one row for each size, milliseconds and MiB of five methods."""
    found = {(one["d"], one["n"], one["method"]): one for one in rows}
    names = (
        "dense, tau",
        "blockwise, free",
        "blockwise, tau",
        "dense NT-Xent, tau",
        "blockwise NT-Xent, free",
    )
    head("N x D", *names)
    for d, n in sorted({(one["d"], one["n"]) for one in rows}):
        row(f"{n:,} x {d}", *(cell(found.get((d, n, name))) for name in names))


def cell(row: dict | None) -> str:
    if row is None:
        return "-"
    ms = 1e3 * row["seconds"]
    return f"{ms:{',.1f' if ms < 10 else ',.0f'}} ms, {row['extra_mib']:,.0f} MiB"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**k for k in range(8, 16)])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "N", "D"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, n, d = options.one
        print(json.dumps(measure(name, int(n), int(d))))
        return
    if options.table:
        table(json.loads(OUT.read_text())["rows"])
        return
    rows = []
    for d in options.dims:
        for n in options.sizes:
            found: dict[str, dict[str, float]] = {}
            for name in (name for name, (_, _, most) in METHODS.items() if n <= most):
                command = [sys.executable, "-m", "benchmarks.speed.cpu", "--one", name, str(n), str(d)]
                run = subprocess.run(command, capture_output=True, text=True)
                if run.returncode:
                    reason = (run.stderr.strip() or "killed").splitlines()[-1]
                    print(f"{name} at {n} x {d} failed: {reason}")
                else:
                    found[name] = json.loads(run.stdout)
            for name, result in found.items():
                peer = found.get(METHODS[name][1])
                share = result["seconds"] / peer["seconds"] if peer else None
                allowed = 3 * 4 * n * d * 4 / MIB + 64 - 2 * n * d * 4 / MIB
                rows.append(
                    {
                        "method": name,
                        "n": n,
                        "d": d,
                        **result,
                        "share_of_dense": share,
                        "allowed_mib": allowed,
                    }
                )
                print(
                    f"{n:>6} x {d:<4} {name:28} {result['seconds'] * 1e3:>10.1f} ms "
                    f"{'' if share is None else f'{share:6.2f} x dense':14} {result['extra_mib']:>9.0f} MiB",
                    flush=True,
                )
    result = {
        "what": "forward + backward, float32, seconds per step and MiB beyond the inputs",
        "command": "python -m benchmarks.speed.cpu",
        **about("cpu"),
        "rows": rows,
    }
    save(result, OUT)
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
