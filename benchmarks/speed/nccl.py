"""Losses over ranks on one GPU against one process: NCCL with one rank, and two ranks that share the GPU.

    python -m benchmarks.speed.nccl

Every loss with gather_distributed=True, by gather and by ring, blockwise and by the fused kernels, in float32
and bfloat16, loss and gradients, against the dense reference on the whole batch. One rank alone would take
the plain loss; here it is made to go through NCCL all the same. NCCL refuses two ranks on one GPU, and gloo
moves CUDA tensors in few collectives, so with two ranks the exchange goes through the CPU and the kernels
are what is tested. Exit code 1 on a mismatch. Without a GPU it is a rehearsal of blockwise on two ranks.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from taufree import distributed
from tests.support import ranks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ("blockwise", "triton") if DEVICE == "cuda" else ("blockwise",)
DTYPES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
WORLDS = {1: ([321], [134], torch.float32), 2: ([190, 131], [70, 64], torch.float32)}
LEARNED = ("symmetric", "nt_xent")  # tried with a link that learns, too
LIMIT = 300  # seconds


class Done:
    def wait(self) -> None:
        """It is."""


def through_cpu(real: Callable[..., Any]) -> Callable[..., Any]:
    """A collective whose first argument is its result, on copies in the CPU's memory."""

    def call(result: torch.Tensor, *rest: Any, async_op: bool = False, group: Any = None) -> Done:
        copies = [x.cpu() if isinstance(x, torch.Tensor) else x for x in (result, *rest)]
        real(*copies, group=group)
        result.copy_(copies[0])
        return Done()

    return call


def messages_through_cpu(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(operations: list[dist.P2POp]) -> list[Done]:
        copies = [dist.P2POp(one.op, one.tensor.cpu(), one.peer, one.group) for one in operations]
        for work in real(copies):
            work.wait()
        for one, copy in zip(operations, copies, strict=True):
            if one.op is dist.irecv:
                one.tensor.copy_(copy.tensor)
        return []

    return call


def begin(world: int) -> str:
    """Join the other ranks; what carries the messages."""
    if world <= torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return "NCCL"
    dist.init_process_group("gloo")
    if DEVICE == "cpu":
        return "gloo"
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "all_reduce"):
        setattr(dist, name, through_cpu(getattr(dist, name)))
    dist.batch_isend_irecv = messages_through_cpu(dist.batch_isend_irecv)
    return "gloo through the CPU"


def check(rank: int, world: int) -> int:
    """Print a table of the worst relative errors of loss and gradients; how many are too large."""
    carrier, wrong = begin(world), 0
    distributed.active = lambda gather=True: gather is not False  # with one rank too
    ranks.WORLDS.update(WORLDS)
    if rank == 0:
        gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU"
        print(f"{gpu}, torch {torch.__version__}, {datetime.date.today()}")
        print(f"World size {world} on {DEVICE}, {carrier}: worst relative error of loss and gradients\n")
        print("| loss, link | backend | dtype | gather | ring | |\n|---|---|---|---|---|---|")
    cases = [(call, link) for call in ranks.CALLS for link in ("odds", "learned")]
    cases = [(call, link) for call, link in cases if link == "odds" or call in LEARNED]
    for (call, link), backend, dtype in itertools.product(cases, BACKENDS, DTYPES):
        worst = []
        for way in ranks.WAYS:
            with ranks.forced(way):
                found = ranks.compare(call, link, "mean", rank, world, backend, dtype, DEVICE)
            # NaN is larger than everything here.
            worst.append(max(found, key=lambda error: (error != error, error)))
        told = torch.tensor(worst, device=DEVICE, dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        good = bool((told < DTYPES[dtype]).all())
        wrong += not good
        if rank == 0:
            figures = " | ".join(f"{error:.1e}" for error in told.tolist())
            verdict = "" if good else f"more than {DTYPES[dtype]:g}"
            print(f"| {call}, {link} | {backend} | {str(dtype)[6:]} | {figures} | {verdict} |", flush=True)
    dist.destroy_process_group()
    return wrong


def main() -> int:
    if "RANK" in os.environ:
        return int(check(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) > 0)
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    # At the same time, since most of it is compiling kernels.
    begun = [
        subprocess.Popen(
            [*launcher, str(world), "-m", "benchmarks.speed.nccl"], stdout=subprocess.PIPE, text=True
        )
        for world in (WORLDS if DEVICE == "cuda" else (2,))
    ]
    for process in begun:
        print(process.communicate(timeout=LIMIT)[0], flush=True)
    good = not any(process.returncode for process in begun)
    print("All losses agree with one process." if good else "Some losses do not agree, see above.")
    return int(not good)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # gloo's threads may outlive their group, and then abort an orderly end of the process
