"""Which shape of a tile is fastest for which loss and link: the part ``tune`` of fused.py.

python -m benchmarks.speed.tile_shapes 3/16     # compiles the third of sixteen parts of what is measured
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

import taufree
from taufree import LogOdds
from taufree.backends.fused import tile_passes
from taufree.bench import measure

SHAPES = [
    usual := tile_passes.Config(),
    usual._replace(warps=8),
    usual._replace(bn=64),
    usual._replace(bn=64, warps=8),
    usual._replace(bm=64),
    usual._replace(bn=64, stages=4),
]
SIZES = [(16384, 512, torch.bfloat16), (16384, 128, torch.bfloat16), (8192, 512, torch.float32)]
PARTS = 16  # processes that compile
Step = Callable[[], Tensor]


def steps(n: int, d: int, dtype: torch.dtype) -> Iterator[tuple[str, Step]]:
    """Each loss with links of different arithmetic."""
    a, b = measure.pairs(n, d, "cuda", dtype)
    labels = torch.arange(n, device="cuda") // 4
    links = {"free": LogOdds(), "gain": LogOdds(gain=2.0)}
    for name, link in links.items():
        yield f"sigmoid, {name}", measure.stepper(taufree.SigmoidNCE(link=link), a, b)
    for name, link in links.items():
        loss = taufree.SupCon(link=link)
        yield f"labels, {name}", measure.stepper(lambda x, _, loss=loss: loss(x, labels), a, b)
    for name, link in {**links, "learnable": taufree.LearnableTemperature().cuda()}.items():
        yield f"symmetric, {name}", measure.stepper(taufree.InfoNCE(symmetric=True, link=link), a, b)


def shaped(step: Step, shape: tile_passes.Config) -> Step:
    """The step with all its tiles of this shape."""

    def call() -> Tensor:
        chosen, tile_passes.tile_config = tile_passes.tile_config, lambda *_: shape
        try:
            return step()
        finally:
            tile_passes.tile_config = chosen

    return call


def jobs() -> Iterator[tuple[dict, Step]]:
    """What is measured, with the step. Pairs of float16 do not fit four stages."""
    for n, d, dtype in SIZES:
        for name, step in steps(n, d, dtype):
            for shape in SHAPES:
                if dtype != torch.float32 or shape.stages < 4:
                    about = {"loss": name, "n": n, "d": d, "dtype": str(dtype)[6:], "shape": shape._asdict()}
                    yield about, shaped(step, shape)


def tune(say: Callable[[str], None]) -> list[dict]:
    command = [sys.executable, "-m", "benchmarks.speed.tile_shapes"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for process in [subprocess.Popen([*command, f"{i}/{PARTS}"], **quiet) for i in range(PARTS)]:
        process.wait()
    rows = []
    for row, step in jobs():
        try:
            row["ms"] = measure.milliseconds(step, "cuda", 25)
        except Exception as problem:  # a shape that does not fit the card is a result too
            row["problem"] = measure.short_reason(problem)
        rows.append(row)
        size = f"{row['n']} x {row['d']} {row['dtype']}"
        say(f"{size} {row['loss']:20} {tuple(row['shape'].values())}: {row.get('ms', row.get('problem'))}")
    return rows


def main() -> None:
    part, parts = map(int, sys.argv[1].split("/"))
    for i, (_, step) in enumerate(jobs()):
        if i % parts == part:
            with suppress(Exception):  # said when it is measured
                step()


if __name__ == "__main__":
    main()
