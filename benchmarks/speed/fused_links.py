"""What each link, each contrast and each precision costs on the fused kernels: parts of fused.py.

python -m benchmarks.speed.fused_links 16384x512 bfloat16    # compiles what ``links`` measures there
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor

import taufree
from taufree import LogOdds
from taufree.bench import measure
from taufree.bench.methods import TAU, Loss, over_tau
from taufree.links.named import LinkLike

BF16, FP32 = torch.bfloat16, torch.float32
LINKS: dict[str, Callable[[], LinkLike]] = {
    "free": lambda: "free",
    "tau": lambda: TAU,
    "gain 2": lambda: LogOdds(gain=2.0),
    "calibrated": lambda: "calibrated",
    "fitted": lambda: "fitted",
    "fitted-temperature": lambda: "fitted-temperature",
    "learnable": lambda: "learnable",
}
SIZES = [(256, 128), (1024, 512), (4096, 512), (16384, 128), (16384, 256), (16384, 512)]
SIZES += [(65536, 128), (65536, 512)]
CASES = [(*size, BF16) for size in SIZES] + [(4096, 512, FP32), (16384, 512, FP32)]
LARGEST_DENSE = 16384
LARGEST_COMPILED = 4096  # of our own loss in torch.compile, where the host counts
CONTRAST_CASES = [
    (256, 65536, 128, FP32), (256, 65536, 128, BF16), (1024, 1024, 128, BF16), (4096, 4096, 128, FP32),
    (4096, 4096, 512, BF16), (4096, 20480, 512, BF16), (16384, 16384, 512, BF16),
]  # fmt: skip
Step = Callable[[], Tensor]
Leaves = tuple[Tensor, Tensor]
Line = dict[str, object]
Keep = Callable[[str, list[Line]], None]


def dense(a: Tensor, b: Tensor) -> Tensor:
    """With a temperature, by hand."""
    scores = over_tau((F.normalize(a) @ F.normalize(b).T).float())
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def replayed_ms(step: Step) -> float:
    """Of the step in a CUDA graph, where the host does not count."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return measure.milliseconds(graph.replay, "cuda", 60)


def timed(name: str, step: Step, line: Line, leaves: Leaves) -> Line:
    """``line`` with what the step takes called plainly and replayed, or with ``problem``."""
    line = {"method": name, **line}
    try:
        line["ms"] = measure.milliseconds(step, "cuda", 60)
        line["extra_mib"] = measure.extra_mib(step, *leaves)
        line["graph_ms"] = replayed_ms(step)
    except Exception as problem:  # a method that fails is a row of the table
        line["problem"] = measure.short_reason(problem)
    torch.cuda.empty_cache()
    return line


def compile_ahead() -> None:
    """Each case in a process of its own, into the caches on disk: one after the other would take longer than
    all measurements."""
    command = [sys.executable, "-m", "benchmarks.speed.fused_links"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = [subprocess.Popen([*command, f"{n}x{d}", str(t)[6:]], **quiet) for n, d, t in CASES]
    for process in running:
        process.wait()


def main() -> None:
    n, d = map(int, sys.argv[1].split("x"))
    dtype = getattr(torch, sys.argv[2])
    for _, step in _steps(n, dtype, measure.pairs(n, d, "cuda", dtype)):
        with suppress(Exception):  # said when it is measured
            step()


def links(rate: float, say: Callable[[str], None], keep: Keep) -> list[Line]:
    """Every link at every size, beside dense code with a temperature; ``keep`` is given the rows so far."""
    compile_ahead()
    found = []
    for n, d, dtype in CASES:
        rows = measure.pairs(n, d, "cuda", dtype)
        about: Line = {"n": n, "d": d, "dtype": str(dtype)[6:]}
        floor = measure.floor_ms("symmetric", n, d, rate) if dtype == BF16 else None
        for name, step in _steps(n, dtype, rows):
            found.append(timed(name, step, about, rows))
            say(_shown(found[-1], floor))
        keep("links", found)
    return found


def _steps(n: int, dtype: torch.dtype, rows: tuple[Tensor, Tensor]) -> Iterator[tuple[str, Step]]:
    for name, link in LINKS.items():
        yield name, measure.stepper(taufree.InfoNCE(symmetric=True, link=link()).cuda(), *rows)
    if n <= LARGEST_COMPILED and dtype == BF16:
        for name in ("free", "fitted"):
            torch.compiler.reset()
            ours = torch.compile(taufree.InfoNCE(symmetric=True, link=LINKS[name]()).cuda(), dynamic=False)
            yield f"torch.compile {name}", measure.stepper(ours, *rows)
    if n <= LARGEST_DENSE:
        for name, precision in [("", "highest")] if dtype == BF16 else [("", "highest"), (", TF32", "high")]:
            torch.set_float32_matmul_precision(precision)
            yield f"dense{name}", measure.stepper(dense, *rows)
            torch.compiler.reset()
            compiled = torch.compile(dense, dynamic=False)
            yield f"torch.compile dense{name}", measure.stepper(compiled, *rows)
        torch.set_float32_matmul_precision("highest")


def contrasts(say: Callable[[str], None], keep: Keep) -> list[Line]:
    """A queue, labels, the sigmoid loss and several positives beside the plain loss of as many pairs."""
    found = []
    for n, m, d, dtype in CONTRAST_CASES:
        about: Line = {"n": n, "m": m, "d": d, "dtype": str(dtype)[6:]}
        for name, loss, leaves in _contrasts_of(n, m, d, dtype):
            found.append(timed(name, measure.stepper(loss, *leaves), about, leaves))
            say(_shown(found[-1], None))
        keep("contrasts", found)
    return found


def _contrasts_of(n: int, m: int, d: int, dtype: torch.dtype) -> Iterator[tuple[str, Loss, Leaves]]:
    """Each with its loss of two leaves."""
    a, b = measure.pairs(n, d, "cuda", dtype)
    own, labels = torch.arange(n, device="cuda"), torch.arange(n, device="cuda") // 4
    plain, sup = taufree.InfoNCE(), taufree.SupCon()
    if m > n:
        keys = torch.randn(m, d, device="cuda", dtype=dtype)
        yield "queue", lambda a, b: plain(a, b, keys), (a, b)
        yield "queue, dense", lambda a, b: _queue(a, b, keys), (a, b)
        each, keys = torch.arange(m, device="cuda") % n, keys.clone().requires_grad_()
        yield "several positives", lambda a, b: sup(a, own, b, each), (a, keys)
        yield "several positives, dense", lambda a, b: _labelled(a, b, own, each), (a, keys)
        return
    yield "one direction", plain, (a, b)
    yield "symmetric", taufree.InfoNCE(symmetric=True), (a, b)
    yield "sigmoid", taufree.SigmoidNCE(), (a, b)
    yield "sigmoid, dense", _sigmoid, (a, b)
    yield "NT-Xent of N rows", taufree.NTXent(), measure.pairs(n // 2, d, "cuda", dtype)
    yield "labels of N rows", lambda x, _: sup(x, labels), (a, b)
    yield "labels, dense", lambda x, _: _labelled(x, x, labels, labels), (a, b)


def _queue(a: Tensor, b: Tensor, keys: Tensor) -> Tensor:
    u, v = F.normalize(a), F.normalize(b)
    scores = over_tau(torch.cat([(u * v).sum(1, keepdim=True), u @ F.normalize(keys).T], 1).float())
    return F.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long, device=a.device))


def _sigmoid(a: Tensor, b: Tensor) -> Tensor:
    scores = 10 * (F.normalize(a) @ F.normalize(b).T).float() - 10
    signs = 2 * torch.eye(len(a), device=a.device) - 1
    return -F.logsigmoid(signs * scores).sum() / len(a)


def _labelled(x: Tensor, keys: Tensor, labels: Tensor, key_labels: Tensor) -> Tensor:
    scores = over_tau((F.normalize(x) @ F.normalize(keys).T).float())
    same = labels[:, None] == key_labels
    if x is keys:
        scores = scores - torch.diag(torch.full_like(scores[0], 1e9))
        same = same.fill_diagonal_(False)
    found = F.log_softmax(scores, 1)
    return -(torch.where(same, found, 0).sum(1) / same.sum(1).clamp(min=1)).mean()


def _shown(line: Line, floor: float | None) -> str:
    size = " x ".join(str(line[name]) for name in ("n", "m", "d") if name in line)
    if "ms" not in line or "graph_ms" not in line:
        return f"{size} {line['dtype']} {line['method']}: {line.get('ms')}, {line['problem']}"
    share = f", {floor / line['graph_ms']:.2f} of floor" if floor else ""
    return (
        f"{size} {line['dtype']} {line['method']:26} {line['ms']:8.3f} ms, "
        f"replayed {line['graph_ms']:8.3f}{share}, {line['extra_mib']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
