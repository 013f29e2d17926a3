"""The fused kernels on a GPU: error against float64, time against the floor and against peers, memory.

    python benchmarks/fused.py                  # everything; some minutes on an H200
    python benchmarks/fused.py --only error     # or: steps, graphs, symmetry, million; tune: tile shapes

A step is a forward and a backward of the symmetric loss on bfloat16 rows. The floor is 8 N^2 D
operations (the similarities twice, two gradients) at the bfloat16 matmul rate measured in the same
run. Peers are timed if they can be imported. Writes benchmarks/results/fused-<gpu>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

import taufree
from taufree.backends import reference
from taufree.backends import triton as fused
from taufree.backends.triton import launch
from taufree.backends.triton.launch import Config
from taufree.contrast import Contrast

TAU = 0.07
MIB = 2**20
SIZES = [(4096, 512), (16384, 128), (16384, 512), (65536, 128), (65536, 512), (32768, 1024)]
PARTS = ("error", "steps", "graphs", "symmetry", "million")
CONFIGS = (Config(), Config(stages=2, registers=168), Config(128, 256, 64, 8, 3), Config(64, 128, 64, 4, 3))
LINK = taufree.LogOdds()


def pairs(n: int, d: int, kind: str = "random", dtype: torch.dtype = torch.bfloat16):
    """Rows and their positives. "clustered": most cosines above 0.9; "duplicates": repeated rows, and
    positives at an angle of 1e-3."""
    a, noise = torch.randn(2, n, d, device="cuda").unbind()
    if kind == "clustered":
        a, noise = a * 0.2 + torch.randn(1, d, device="cuda"), noise * 0.2
    if kind == "duplicates":
        a[n // 2 :] = a[: n - n // 2].clone()
        noise = noise * 1e-3
    return tuple(x.to(dtype).requires_grad_() for x in (a, a + noise))


def symmetric(backend):
    return lambda a, b: backend(Contrast(a, b, symmetric=True), LINK, _mean(len(a)))


def nt_xent(backend):
    def loss(a, b):
        return backend(Contrast(torch.cat([a, b]), shift=len(a)), LINK, _mean(2 * len(a)))

    return loss


def _mean(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, device="cuda")


def dense_free(a, b):
    """The temperature-free loss as one writes it by hand, in the inputs' precision."""
    c = (F.normalize(a) @ F.normalize(b).T).float() / (1 + LINK.resolution)
    logits = torch.log1p(c) - torch.log1p(-c)
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def dense_tau(a, b):
    logits = (F.normalize(a) @ F.normalize(b).T).float() / TAU
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def peers() -> dict[str, Callable]:
    """Every other implementation at hand, by name."""
    found = {
        "dense eager, free": dense_free,
        "dense eager, tau": dense_tau,
        "torch.compile, dense, free": torch.compile(dense_free),
        "torch.compile, dense, tau": torch.compile(dense_tau),
    }
    try:
        from open_clip.loss import ClipLoss

        clip = ClipLoss()
        scale = torch.tensor(1 / TAU, device="cuda", dtype=torch.bfloat16)
        found["open_clip ClipLoss"] = lambda a, b: clip(F.normalize(a), F.normalize(b), scale)
    except ImportError:
        pass
    try:
        from lightly.loss import NTXentLoss

        found["lightly NTXentLoss (2N rows)"] = NTXentLoss(TAU)
    except ImportError:
        pass
    try:
        from cut_cross_entropy import linear_cross_entropy

        def cut(a, b):
            u, v, own = F.normalize(a), F.normalize(b), torch.arange(len(a), device=a.device)
            return (
                sum(linear_cross_entropy(x / TAU, y, own, filter_eps=None) for x, y in ((u, v), (v, u))) / 2
            )

        found["cut-cross-entropy x2, no filter"] = cut
    except ImportError:
        pass
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()

        def both(a, b):
            u, v, own = F.normalize(a), F.normalize(b), torch.arange(len(a), device=a.device)
            return (liger(v, u / TAU, own) + liger(u, v / TAU, own)) / 2

        found["Liger fused linear CE x2"] = both
    except ImportError:
        pass
    return found


def stepper(loss: Callable, a: torch.Tensor, b: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        a.grad = b.grad = None
        loss(a, b).backward()

    return step


def milliseconds(step: Callable[[], object], rep: int = 100) -> float:
    return triton.testing.do_bench(step, warmup=25, rep=rep, return_mode="median")


def extra_mib(step: Callable[[], object], *leaves: torch.Tensor) -> float:
    """Peak memory of a step beyond its inputs, gradients included."""
    for leaf in leaves:
        leaf.grad = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def matmul_rate() -> float:
    """TFLOP/s of a large bfloat16 product on random data."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind()
    return 2 * 8192**3 / milliseconds(lambda: a @ b, 300) / 1e9


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


def error(say: Callable[[str], None]) -> list[dict]:
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kind in ("random", "clustered", "duplicates"):
            for n, d in ((1537, 200), (4096, 512)):
                a, b = pairs(n, d, kind, dtype)
                results = {}
                for name, loss, wide in (
                    ("truth", symmetric(reference.loss), True),
                    ("dense", dense_free, False),
                    ("fused", symmetric(fused.loss), False),
                ):
                    x, y = ((t.detach().double() if wide else t.detach()).requires_grad_() for t in (a, b))
                    value = loss(x, y)
                    grads = torch.autograd.grad(value * 1024, (x, y))  # scaled, or float16 underflows
                    results[name] = value.detach(), torch.cat(grads)
                row = {"dtype": str(dtype)[6:], "rows": kind, "n": n, "d": d}
                for name in ("fused", "dense"):
                    row[f"{name}_loss"] = relative(results[name][0], results["truth"][0])
                    row[f"{name}_gradient"] = relative(results[name][1], results["truth"][1])
                rows.append(row)
                say(
                    f"{row['dtype']:9} {kind:11} {n}x{d}, fused (dense): loss {row['fused_loss']:.1e} "
                    f"({row['dense_loss']:.1e}), gradient {row['fused_gradient']:.1e} "
                    f"({row['dense_gradient']:.1e})"
                )
    return rows


def steps(say: Callable[[str], None], rate: float, sizes: list[tuple[int, int]], largest: int) -> list[dict]:
    rows = []
    for n, d in sizes:
        a, b = pairs(n, d)
        floor = 8 * n * n * d / rate / 1e9
        others = peers() if n <= largest else {}
        for name, loss in {"taufree, fused": symmetric(fused.loss), **others}.items():
            step = stepper(loss, a, b)
            try:
                step()
                row = {"method": name, "n": n, "d": d, "ms": milliseconds(step), "floor_ms": floor}
                row |= {"share_of_floor": floor / row["ms"], "extra_mib": extra_mib(step, a, b)}
            except Exception as problem:  # a peer that fails must not take the table with it
                say(f"{n} x {d} {name}: {type(problem).__name__} {str(problem)[:200]}")
                if name.startswith("taufree"):
                    raise
                continue
            rows.append(row)
            say(
                f"{n:>6} x {d:<5}{name:32}{row['ms']:9.3f} ms  floor {floor:7.3f} "
                f"({row['share_of_floor']:4.0%}){row['extra_mib']:9.0f} MiB"
            )
    return rows


def graphs(say: Callable[[str], None]) -> list[dict]:
    """The whole step replayed from a CUDA graph, where the host no longer counts."""
    rows = []
    methods = {"taufree, fused": symmetric(fused.loss), "dense eager, free": dense_free}
    for n, d in ((512, 128), (1024, 512), (4096, 512)):
        for name, loss in methods.items():
            a, b = pairs(n, d)
            step = stepper(loss, a, b)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.synchronize()
            a.grad = b.grad = None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss(a, b).backward()
            rows.append({"method": name, "n": n, "d": d, "ms": milliseconds(graph.replay)})
            rows[-1]["host_bound_ms"] = milliseconds(step)
            say(f"{n} x {d} {name}: graph {rows[-1]['ms']:.3f} ms, plain {rows[-1]['host_bound_ms']:.3f} ms")
    return rows


def symmetry(say: Callable[[str], None]) -> list[dict]:
    rows = []
    for n, d in ((16384, 512), (32768, 512)):
        whole = milliseconds(stepper(symmetric(fused.loss), *pairs(n, d)))
        half = milliseconds(stepper(nt_xent(fused.loss), *pairs(n // 2, d)))
        rows.append(
            {"rows": n, "d": d, "nt_xent_ms": half, "without_symmetry_ms": whole, "share": half / whole}
        )
        say(f"NT-Xent of {n} rows x {d}: {half:.2f} ms, {half / whole:.2f} of the matrix without symmetry")
    return rows


def million(say: Callable[[str], None]) -> list[dict]:
    n, d = 2**20, 512
    a, b = pairs(n, d)
    step = stepper(symmetric(fused.loss), a, b)
    memory = extra_mib(step, a, b)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    row = {"n": n, "d": d, "seconds": begin.elapsed_time(end) / 1e3, "extra_mib": memory}
    say(f"{n} x {d}: {row['seconds']:.2f} s, {memory:.0f} MiB")
    return [row]


def passes(n: int, d: int) -> list[Callable[[], None]]:
    """The sums, the coefficients, and the coefficients with their two products, each on its own."""
    mode = launch.Mode(torch.bfloat16, split=False, tf32=False)
    link = launch.Link(launch.ODDS, _mean(1), LINK.resolution)
    u, v = (launch.Rows(x.detach(), mode) for x in pairs(n, d))
    positive = launch.fill_pairs(u, v, mode, 0)
    block = launch.Block(u, v, None, labels=False, shift=0, cols=True, positives=True)
    rows, cols = torch.zeros(2, 1, n, device="cuda").unbind()
    grads = torch.zeros(2, n, u.pad, device="cuda")
    sides = (_mean(n), _mean(n), _mean(n), positive)
    return [
        lambda: launch.add_sums(block, mode, link, rows, cols),
        lambda: launch.add_gradients(block, mode, link, sides, (None, None), None),
        lambda: launch.add_gradients(block, mode, link, sides, (grads[0], grads[1]), None),
    ]


def tune(say: Callable[[str], None], sizes: list[tuple[int, int]]) -> list[dict]:
    """TFLOP/s of the two passes over the tiles and of the products, for a few tile shapes."""
    rows, chosen = [], launch.tile_config
    for n, d in sizes:
        work = 2 * n * n * d / 1e9
        for config in CONFIGS:
            launch.tile_config = lambda kind, labels, config=config: config
            sums, coefficients, products = (milliseconds(run, 40) for run in passes(n, d))
            row = {"n": n, "d": d, "config": config._asdict(), "sums_tflops": work / sums}
            row["coefficients_tflops"] = work / coefficients
            row["products_tflops"] = 2 * work / (products - coefficients)
            rows.append(row)
            say(
                f"{n} x {d} {tuple(config)}: sums {row['sums_tflops']:.0f}, coefficients "
                f"{row['coefficients_tflops']:.0f}, products {row['products_tflops']:.0f} TFLOP/s"
            )
    launch.tile_config = chosen
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=(*PARTS, "tune"), default=PARTS)
    parser.add_argument("--sizes", nargs="+", metavar="NxD", default=[f"{n}x{d}" for n, d in SIZES])
    parser.add_argument("--peers-up-to", type=int, default=16384, metavar="N", help="largest N of the peers")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/fused.py needs a CUDA device.")

    def say(line: str) -> None:
        print(line, flush=True)

    torch.manual_seed(0)
    gpu = torch.cuda.get_device_name()
    rate = matmul_rate()
    say(f"{gpu}, bfloat16 matmul {rate:.0f} TFLOP/s")
    result: dict = {
        "what": "forward + backward of the symmetric loss, bfloat16; milliseconds and MiB beyond the inputs",
        "command": "python benchmarks/fused.py",
        "date": datetime.date.today().isoformat(),
        "gpu": gpu,
        "matmul_tflops": rate,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "taufree": taufree.__version__,
        },
    }
    out = options.out or Path(__file__).parent / "results" / f"fused-{gpu.split()[-1].lower()}.json"
    sizes = [(int(n), int(d)) for n, d in (size.split("x") for size in options.sizes)]
    parts: dict[str, Callable[[], list[dict]]] = {
        "error": lambda: error(say),
        "steps": lambda: steps(say, rate, sizes, options.peers_up_to),
        "graphs": lambda: graphs(say),
        "symmetry": lambda: symmetry(say),
        "million": lambda: million(say),
        "tune": lambda: tune(say, sizes),
    }
    for name in options.only:
        result[name] = parts[name]()
        torch.cuda.empty_cache()
        out.parent.mkdir(exist_ok=True)
        # After each part, since a later one may fail.
        out.write_text(json.dumps(result, indent=1).replace("NaN", "null") + "\n")
    say(f"wrote {out}")


if __name__ == "__main__":
    main()
