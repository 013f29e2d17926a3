"""How long a step takes, how much memory, and what it could be at best.

A step is a forward and a backward. The floor counts what every exact way must compute if it does not keep
the N x N similarities: each similarity for the sums and once more for the gradient (2 + 2 N^2 D operations)
and two products of coefficients with rows (4 N^2 D), together 8 N^2 D, for one direction as for both.
NT-Xent's matrix over its 2N rows is symmetric, so half of 8 (2N)^2 D suffices. The operations are divided
by the rate of a large matrix product measured in the same run: bfloat16 on a GPU, float32 on a CPU.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from taufree.bench.methods import Logits, Loss, Method, logits_of, truth
from taufree.util.files import write_text
from taufree.util.machine import hardware, versions

MIB = 2**20
MAX_ERRORS = (2e-2, 5e-2)  # relative errors of loss and gradient above which a method was called wrongly
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces its start and stop otherwise

Row = dict[str, Any]
Step = Callable[[], object]


def pairs(n: int, d: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random rows and their positives, at a cosine of about 0.7."""
    a, noise = torch.randn(2, n, d, device=device).unbind()
    rows, keys = a.to(dtype), (a + noise).to(dtype)
    return rows.requires_grad_(), keys.requires_grad_()


def stepper(loss: Loss, a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """A forward and a backward from fresh gradients."""

    def step() -> Tensor:
        a.grad = b.grad = None
        value = loss(a, b)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    return step


def milliseconds(step: Step, device: str, budget: float = 100) -> float:
    """The median over repeats that take about ``budget`` milliseconds (ten times that on a CPU), at least 3.

    On a GPU, by events, with the cache emptied in between.
    """
    if device == "cuda":
        from triton.testing import do_bench

        found: float = do_bench(step, warmup=25, rep=budget, return_mode="median")
        return found
    step()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget / 100 and len(times) < 100):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def extra_mib(step: Step, *leaves: Tensor) -> float:
    """The peak of what PyTorch allocates in a step, beyond its inputs, their gradients included."""
    for leaf in leaves:
        leaf.grad = None
    if leaves[0].is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    held = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak / MIB


def matmul_tflops(device: str) -> float:
    """TFLOP/s of a large product of random matrices: bfloat16 on a GPU, float32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (2048, torch.float32)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype).unbind()
    return 2 * size**3 / milliseconds(lambda: a @ b, device, 300 if device == "cuda" else 50) / 1e9


def floor_ms(loss: str, n: int, d: int, tflops: float) -> float:
    """The time of the operations that the loss cannot do without.

    >>> floor_ms("symmetric", 16384, 512, 1000.0)
    1.0995...
    >>> floor_ms("nt-xent", 16384, 512, 1000.0)
    2.1990...
    """
    return (16 if loss == "nt-xent" else 8) * n * n * d / tflops / 1e9


class StepTimer:
    """Steps of one loss on one batch: a row for each method, and truth once for each link."""

    def __init__(self, loss: str, a: Tensor, b: Tensor, tflops: float) -> None:
        self.loss, self.a, self.b = loss, a, b
        self.device = a.device.type
        self.floor = floor_ms(loss, a.shape[0], a.shape[1], tflops)
        self.truths: dict[str, tuple[Tensor, Tensor]] = {}

    def row(self, method: Method) -> Row:
        """What a method takes, and whether it computes the loss; or ``problem``, why it could not."""
        n, d = self.a.shape
        row: Row = {"method": method.name, "loss": self.loss, "n": n, "d": d}
        try:
            with warnings.catch_warnings():  # those of compilers and libraries
                warnings.simplefilter("ignore")
                loss = method.make(self.loss)
                step = stepper(loss, self.a, self.b)
                value = step()
                row |= self._agreement(value, logits_of(method, loss), method.link)
                row["ms"] = milliseconds(step, self.device)
                row |= {"floor_ms": self.floor, "share_of_floor": self.floor / row["ms"]}
                row["extra_mib"] = extra_mib(step, self.a, self.b)
        except Exception as problem:  # a method that fails is one row of the table
            row["problem"] = short_reason(problem)
        self.a.grad = self.b.grad = None
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return row

    def _agreement(self, value: Tensor, logits: Logits, link: str) -> Row:
        """``link`` is its name: on one batch, one that measures is the same with every method."""
        assert self.a.grad is not None
        assert self.b.grad is not None
        grad = torch.cat([self.a.grad, self.b.grad])
        if link not in self.truths:
            self.truths[link] = truth(self.loss, logits, self.a, self.b)
        errors = [relative(found, true) for found, true in zip((value, grad), self.truths[link], strict=True)]
        agrees = all(error <= most for error, most in zip(errors, MAX_ERRORS, strict=True))
        return {"loss_error": errors[0], "gradient_error": errors[1], "agrees": agrees}


def relative(found: Tensor, true: Tensor) -> float:
    """|found - true| / |true|."""
    return float((found.double() - true.double()).norm() / true.double().norm())


def short_reason(problem: Exception) -> str:
    """One short line for a table.

    >>> short_reason(RuntimeError("no kernel\\nfor this"))
    'RuntimeError: no kernel for this'
    """
    if isinstance(problem, torch.OutOfMemoryError) or "allocate memory" in str(problem):
        return "out of memory"
    words = " ".join(f"{type(problem).__name__}: {problem}".split())
    return words if len(words) <= 90 else words[:87] + "..."


def about(device: str, packages: Sequence[str] = ()) -> Row:
    """The date, the machine, and the versions of what was measured."""
    found = versions(("torch", "triton", *packages))
    date = datetime.date.today().isoformat()
    return {"date": date, "hardware": hardware(torch.device(device)), "versions": found}


def save(result: Row, path: Path) -> None:
    """Write JSON, whole or not at all, with null for NaN and infinity, which it has no words for."""
    finite = json.loads(json.dumps(result), parse_constant=lambda _: None)
    write_text(path, json.dumps(finite, indent=1, allow_nan=False) + "\n")
