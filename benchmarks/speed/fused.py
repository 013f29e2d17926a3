"""The fused kernels on a GPU: error against float64, time against the floor and against peers, memory.

    python -m benchmarks.speed.fused                  # everything but tune; some minutes on an H200
    python -m benchmarks.speed.fused --only error     # or: steps, links, contrasts, graphs, symmetry, ...
    python -m benchmarks.speed.fused --only steps --sizes 16384x512
    python -m benchmarks.speed.fused --table FILE     # the tables of docs/explanation/kernels.md from it

A step is a forward and a backward on bfloat16 rows; taufree.bench says what the floor counts and how each
library is called. Writes benchmarks/results/fused-<gpu>.json after every part; parts that --only leaves out
stay there as they were, each with the run it comes from.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import taufree
from benchmarks.speed import fused_links, tile_shapes
from benchmarks.speed.compile_ahead import compile_ahead, wanted
from benchmarks.speed.fused_tables import tables
from benchmarks.studies.train_fused import Task
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree.bench import measure
from taufree.bench.compare import table_row
from taufree.bench.methods import LINKS, PEERS, backends, methods

SIZES = [
    "1024x512",
    "4096x512",
    "16384x128",
    "16384x256",
    "16384x512",
    "32768x1024",
    "65536x128",
    "65536x512",
]
PARTS = ("error", "steps", "links", "contrasts", "graphs", "symmetry", "million", "profile")
BF16 = torch.bfloat16
BY_NAME = {method.name: method for method in (*backends(LINKS), *PEERS)}
FUSED = BY_NAME["taufree triton, free"]


def say(line: str) -> None:
    print(line, flush=True)


def inputs(kind: str, n: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and their positives.

    "clustered": most cosines above 0.9. "duplicates": exact copies among the negatives, and positives at an
    angle of 1e-3. "trained": what a small encoder makes of its data when positives have come close.
    """
    if kind == "trained":
        a, b = trained(n, d)
        return a.to(dtype), b.to(dtype)
    a, noise = torch.randn(2, n, d, device="cuda").unbind()
    if kind == "clustered":
        a, noise = a * 0.2 + torch.randn(1, d, device="cuda"), noise * 0.2
    if kind == "duplicates":
        a[n // 2 :] = a[: n - n // 2].clone()
        noise = noise * 1e-3
    return a.to(dtype), (a + noise).to(dtype)


@functools.cache
def trained(n: int, d: int) -> tuple[Tensor, Tensor]:
    task = Task(0, d, "cuda")
    task.train("reference", torch.float32)
    with torch.no_grad():
        return task.batch(n)


def error() -> list[dict]:
    """Relative errors of the fused and the dense loss in each precision, against the reference in float64."""
    rows = []
    for kind in ("random", "clustered", "duplicates", "trained"):
        for dtype in (BF16, torch.float16, torch.float32):
            for n, d in ((1537, 200), (4096, 512)):
                given = inputs(kind, n, d, dtype)
                results = {}
                for name, loss, wide in (
                    ("truth", lambda a, b: taufree.info_nce(a, b, symmetric=True, backend="reference"), True),
                    ("dense", BY_NAME["dense eager, free"].make("symmetric"), False),
                    ("fused", FUSED.make("symmetric"), False),
                ):
                    a, b = ((x.double() if wide else x.clone()).requires_grad_() for x in given)
                    value = loss(a, b)
                    grads = torch.autograd.grad(value * 1024, (a, b))  # scaled, or float16 underflows
                    results[name] = value.detach(), torch.cat(grads)
                row = {"dtype": str(dtype)[6:], "rows": kind, "n": n, "d": d}
                for name in ("fused", "dense"):
                    row[f"{name}_loss"] = measure.relative(results[name][0], results["truth"][0])
                    row[f"{name}_gradient"] = measure.relative(results[name][1], results["truth"][1])
                rows.append(row)
                say(
                    f"{row['dtype']:9} {kind:11} {n}x{d}, fused (dense): loss {row['fused_loss']:.1e} "
                    f"({row['dense_loss']:.1e}), gradient {row['fused_gradient']:.1e} "
                    f"({row['dense_gradient']:.1e})"
                )
    return rows


def steps(
    rate: float, sizes: list[tuple[int, int]], largest: int, keep: Callable[[str, list[dict]], None]
) -> list[dict]:
    """Every method that is installed; ``keep`` is given the rows so far after each size."""
    compile_ahead([(n, d) for n, d in sizes if n <= largest])
    rows = []
    for loss, n, d in wanted(sizes):
        batch = measure.StepTimer(loss, *measure.pairs(n, d, "cuda", BF16), rate)
        for method in methods("cuda", loss):
            ours = method.name.startswith("taufree triton")
            if not method.installed() or "blockwise" in method.name or (n > largest and not ours):
                continue
            rows.append(batch.row(method))
            cells = table_row(rows[-1])
            say(
                f"{loss:10}{cells['N x D']:>14}  {cells['method']:28}{cells['ms']:>8} ms"
                f"{cells['of floor']:>6} of floor{cells['MiB']:>8} MiB  {cells['note']}"
            )
        keep("steps", rows)
    return rows


def graphs() -> list[dict]:
    """The whole step replayed from a CUDA graph, where the host no longer counts."""
    rows = []
    names = ["taufree triton, free", "taufree triton, tau"]
    names += [f"{how}, {link}" for how in ("dense eager", "torch.compile dense") for link in ("free", "tau")]
    for n, d in ((512, 128), (1024, 512), (4096, 512)):
        for name in names:
            a, b = measure.pairs(n, d, "cuda", BF16)
            loss = BY_NAME[name].make("symmetric")
            step = measure.stepper(loss, a, b)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.synchronize()
            a.grad = b.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss(a, b).backward()
            row = {"method": name, "n": n, "d": d, "ms": measure.milliseconds(graph.replay, "cuda")}
            row["plain_ms"] = measure.milliseconds(step, "cuda")
            rows.append(row)
            say(f"{n} x {d} {name:28} graph {row['ms']:.3f} ms, plain {row['plain_ms']:.3f} ms")
    return rows


def symmetry() -> list[dict]:
    """NT-Xent of N rows beside the symmetric loss of N pairs: the same N x N, with and without symmetry."""
    rows = []
    for n, d in ((16384, 512), (32768, 512)):
        whole = measure.stepper(FUSED.make("symmetric"), *measure.pairs(n, d, "cuda", BF16))
        half = measure.stepper(FUSED.make("nt-xent"), *measure.pairs(n // 2, d, "cuda", BF16))
        row = {"rows": n, "d": d, "nt_xent_ms": measure.milliseconds(half, "cuda")}
        row["without_symmetry_ms"] = measure.milliseconds(whole, "cuda")
        row["share"] = row["nt_xent_ms"] / row["without_symmetry_ms"]
        rows.append(row)
        say(f"NT-Xent of {n} rows x {d}: {row['nt_xent_ms']:.2f} ms, {row['share']:.2f} of the whole matrix")
    return rows


def million() -> list[dict]:
    n, d = 2**20, 512
    a, b = measure.pairs(n, d, "cuda", BF16)
    step = measure.stepper(FUSED.make("symmetric"), a, b)
    memory = measure.extra_mib(step, a, b)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    row = {"n": n, "d": d, "seconds": begin.elapsed_time(end) / 1e3, "extra_mib": memory}
    say(f"{n} x {d}: {row['seconds']:.2f} s, {memory:.0f} MiB")
    return [row]


def profile_kernels() -> list[dict]:
    """Microseconds of each kernel in a step, by the profiler."""
    rows = []
    for loss, n, d in (("symmetric", 16384, 128), ("symmetric", 16384, 512), ("nt-xent", 8192, 512)):
        step = measure.stepper(FUSED.make(loss), *measure.pairs(n, d, "cuda", BF16))
        for _ in range(2):
            step()
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            for _ in range(5):
                step()
            torch.cuda.synchronize()
        found = {e.key: e.device_time_total / 5 for e in watched.key_averages() if e.device_time_total}
        rows.append({"loss": loss, "n": n, "d": d, "microseconds": found})
        for name, us in sorted(found.items(), key=lambda item: -item[1]):
            say(f"{loss} {n} x {d} {name[:70]:70} {us:8.1f} us")
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", metavar="PART", choices=(*PARTS, "tune"), default=PARTS)
    parser.add_argument("--sizes", nargs="+", metavar="NxD", default=SIZES, help="of steps")
    parser.add_argument("--peers-up-to", type=int, default=65536, metavar="N", help="largest N of the peers")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print the tables of these results")
    options = parser.parse_args()
    if options.table:
        tables(json.loads(options.table.read_text(encoding="utf-8")))
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/speed/fused.py needs a CUDA device.")
    sizes = [(int(n), int(d)) for n, d in (size.split("x") for size in options.sizes)]
    torch.manual_seed(0)
    rate = measure.matmul_tflops("cuda")
    result: dict = {
        "what": "forward + backward, bfloat16; milliseconds, and MiB beyond the inputs",
        "command": "python -m benchmarks.speed.fused",
        **measure.about("cuda", [m.package for m in PEERS if m.package and m.installed()]),
        "matmul_tflops": rate,
    }
    gpu = str(result["hardware"]["gpu"])
    say(f"{gpu}, bfloat16 matmul {rate:.0f} TFLOP/s")
    out = options.out or RESULTS / f"fused-{gpu.split()[-1].lower()}.json"
    earlier = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    result["runs"] = {name: run for name, run in earlier.get("runs", {}).items() if name not in options.only}
    result |= {name: earlier[name] for name in result["runs"]}
    begin = datetime.datetime.now().isoformat(timespec="seconds")

    def keep(name: str, rows: list[dict]) -> None:
        """Write what there is, since what follows may fail."""
        result[name] = rows
        result["runs"][name] = {"began": begin, "matmul_tflops": rate}
        measure.save(result, out)

    parts: dict[str, Callable[[], list[dict]]] = {
        "error": error,
        "steps": lambda: steps(rate, sizes, options.peers_up_to, keep),
        "links": lambda: fused_links.links(rate, say, keep),
        "contrasts": lambda: fused_links.contrasts(say, keep),
        "graphs": graphs,
        "symmetry": symmetry,
        "million": million,
        "profile": profile_kernels,
        "tune": lambda: tile_shapes.tune(say),
    }
    for name in options.only:
        start = time.perf_counter()
        keep(name, parts[name]())
        torch.cuda.empty_cache()
        say(f"{name}: {time.perf_counter() - start:.0f} s")
    say(f"wrote {out}")
    if broken := [row for row in result.get("steps", []) if "problem" in row and "taufree" in row["method"]]:
        raise SystemExit(f"taufree itself failed: {broken[0]['problem']}")


if __name__ == "__main__":
    main()
