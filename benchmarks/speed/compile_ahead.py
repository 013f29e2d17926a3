"""Compile ahead what benchmarks/speed/fused.py measures: torch.compile and Triton fill their caches on disk.

Each size has a process of its own; one after the other would take longer than all the measurements.

    python -m benchmarks.speed.compile_ahead 16384x512
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import suppress

import torch

from taufree.bench.measure import pairs, stepper
from taufree.bench.methods import methods

NT_XENT = [(4096, 512), (16384, 512)]  # pairs, so twice as many rows
SECONDS = 120  # then what is not ready is compiled when it is measured


def wanted(sizes: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """The symmetric loss at all sizes, and NT-Xent at two."""
    symmetric = [("symmetric", n, d) for n, d in sizes]
    return symmetric + [("nt-xent", n, d) for n, d in sizes if (n, d) in NT_XENT]


def compile_ahead(sizes: list[tuple[int, int]]) -> None:
    command = [sys.executable, "-m", "benchmarks.speed.compile_ahead"]
    options = {
        "env": {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    running = [subprocess.Popen([*command, f"{n}x{d}"], **options) for n, d in sizes]
    deadline = time.monotonic() + SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> None:
    """One step of everything that compiles for a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", metavar="NxD", help="pairs and columns")
    n_and_d = tuple(map(int, parser.parse_args().size.split("x")))
    for loss, n, d in wanted([n_and_d]):
        rows = pairs(n, d, "cuda", torch.bfloat16)
        for method in methods("cuda", loss):
            if method.devices == ("cuda",) and method.installed():
                with suppress(Exception):  # said when it is measured
                    stepper(method.make(loss), *rows)()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
