"""Losses over several ranks: a plan of the exchange, and a measurement.

    python -m benchmarks.speed.distributed plan --gpus 1024 --rows 1048576 --columns 512
    torchrun --nproc-per-node 2 -m benchmarks.speed.distributed measure --rows 4096 --columns 128

The plan is arithmetic: bytes and memory from the exchange as taufree.backends.sharded.step describes it,
seconds of the kernels from a step measured on one GPU (benchmarks/results/fused-h200.json, 65,536 x 512),
seconds of the network from --bandwidth and --latency. The measurement compares a step on all ranks with one
process that has the whole batch; on a CPU every process has one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import taufree
from benchmarks.support.paths import RESULTS
from taufree import distributed

RESULTS_FILE = RESULTS / "fused-h200.json"
GIB, MIB = 2**30, 2**20


def measured_rate() -> float:
    """Operations a second of the fused symmetric step, of the 8 N^2 D that it needs."""
    steps = json.loads(RESULTS_FILE.read_text())["steps"]
    step = next(s for s in steps if (s["method"], s["n"], s["d"]) == ("taufree triton, free", 65536, 512))
    return float(8 * step["n"] ** 2 * step["d"] / (step["ms"] / 1e3))


def plan(gpus: int, rows: int, columns: int, bandwidth: float, latency: float) -> list[tuple[str, str, str]]:
    """What a rank does in one symmetric bfloat16 step: (what, gathered, by the ring)."""
    own = rows // gpus
    x, grad = rows * columns * 2, rows * columns * 4
    vectors = 4 * rows + 8 * rows  # column sums, normalisers
    compute = 8 * own * rows * columns / measured_rate()
    gathered, ring = x + grad + vectors, 2 * x + grad + vectors
    messages = 3 * (gpus - 1)
    seconds = [b / (bandwidth * 1e9) for b in (gathered, ring)]
    own_share = (2 * x + 2 * grad) / gpus
    memory = [2 * x + 2 * grad + vectors, 3 * own_share + vectors]
    return [
        ("embeddings received", f"{x / GIB:.2f} GiB, once", f"{x / GIB:.2f} GiB, twice"),
        ("gradients reduced or passed on", *[f"{grad / GIB:.2f} GiB"] * 2),
        ("sums and normalisers", *[f"{vectors / MIB:.0f} MiB"] * 2),
        ("messages", "6 collectives", f"{messages}, and 4 collectives"),
        ("kernels", *[f"{1e3 * compute:.1f} ms"] * 2),
        (f"network at {bandwidth:g} GB/s", *(f"{1e3 * s:.0f} ms" for s in seconds)),
        (f"at {latency:g} us a message", "not counted", f"{messages * latency / 1e3:.0f} ms"),
        ("memory for the exchange", *(f"{m / GIB:.2f} GiB" for m in memory)),
    ]


def median_ms(step: Callable[[], None], repeats: int, device: str) -> float:
    found = []
    for _ in range(repeats + 1):
        if dist.is_initialized():
            dist.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found[1:])


def measure(rows: int, columns: int, repeats: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    else:
        torch.set_num_threads(1)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(rows, columns, generator=generator).to(device, dtype) for _ in range(2)]
    whole = [x.requires_grad_() for x in whole]
    own = [x.detach().chunk(world)[rank].clone().requires_grad_() for x in whole]
    for name, loss in {
        "info_nce": taufree.info_nce,
        "info_nce, symmetric": lambda a, b, **options: taufree.info_nce(a, b, symmetric=True, **options),
        "nt_xent": taufree.nt_xent,
    }.items():
        times = {}
        for way, limit in (("gather", 2**60), ("ring", -1)):
            distributed.MAX_GATHERED_BYTES = limit
            step = lambda loss=loss: loss(*own, gather_distributed=True).backward()  # noqa: E731
            times[way] = median_ms(step, repeats, device)
        step = lambda loss=loss: loss(*whole).backward() if rank == 0 else None  # noqa: E731
        one = median_ms(step, repeats, device)
        if rank == 0:
            told = ", ".join(f"{way} {ms:.0f} ms" for way, ms in times.items())
            print(f"{name}, {rows} x {columns}, {world} ranks on {device}: {told}; one process {one:.0f} ms")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("plan", "measure"))
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=2**20, help="of all ranks together")
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--bandwidth", type=float, default=50.0, help="GB/s that a rank receives")
    parser.add_argument("--latency", type=float, default=20.0, help="microseconds a message takes")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.what == "measure":
        measure(chosen.rows, chosen.columns, chosen.repeats)
        return
    print(f"| {chosen.gpus} GPUs, {chosen.rows} x {chosen.columns}, per rank and step | gather | ring |")
    print("|---|---|---|")
    for row in plan(chosen.gpus, chosen.rows, chosen.columns, chosen.bandwidth, chosen.latency):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
