"""What a pair costs in the tile kernels of each link, without a GPU: counted in the machine code for Hopper.

Of each kernel the path that nearly every tile takes is counted, by thread and pair. A special function (MUFU,
a reciprocal, logarithm or exponential) occupies its unit for as long as eight other instructions. So an
epilogue takes between max(8 MUFU, all) and 8 MUFU + the others, in cycles a pair of 32 threads. What that is
more than in the free link's kernels, added to a measured time of the free loss, is what a link should take if
nothing of it is hidden behind the products of the other program on the multiprocessor.

    python -m benchmarks.speed.instructions
    python -m benchmarks.speed.instructions --size 16384x128 --free 0.99
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.support.hopper import compiled, disassembled, shortest_path
from benchmarks.support.markdown import head, row
from taufree import LearnableTemperature, Link, LogOdds, Temperature
from taufree.backends import fused
from taufree.backends.fused import row_passes, tile_passes
from taufree.contrast import Contrast
from taufree.links.log_odds import with_gain

LINKS: dict[str, Callable[[], Link]] = {
    "free": LogOdds,
    "tau": lambda: Temperature(0.07),
    "gain": lambda: with_gain(torch.tensor(3.0), 1e-4),
    "learnable": LearnableTemperature,
}
MULTIPROCESSORS, CYCLES = 132, 1.755e9  # of an H200, the cycles a second
FLOAT32 = ("FFMA", "FMUL", "FADD")


def kernels(link: Link, columns: int) -> dict[str, tuple[Any, int]]:
    """The tile kernels of a symmetric step in bfloat16, and how many pairs a thread of them has."""
    found: dict[str, tuple[Any, int]] = {}

    def start(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        if kernel.__name__.startswith("tile"):
            pairs = options["BM"] * options["BN"] // (32 * options["num_warps"])
            found[kernel.__name__] = compiled(kernel, *arguments, **options), pairs

    a, b = (torch.randn(256, columns).bfloat16().requires_grad_() for _ in range(2))
    before = tile_passes.start, row_passes.start, tile_passes._add_product
    tile_passes.start = row_passes.start = start
    tile_passes._add_product = lambda *_: None
    try:
        fused.loss(Contrast(a, b, symmetric=True), link, 1.0).backward()
    finally:
        tile_passes.start, row_passes.start, tile_passes._add_product = before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="65536x512", metavar="NxD", help="pairs and columns")
    parser.add_argument("--free", type=float, default=32.5, help="milliseconds of the free loss at that size")
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS)
    args = parser.parse_args()
    n, columns = map(int, args.size.split("x"))
    head("link", "kernel", "registers", "spills", "shared KiB", "HGMMA", "MUFU", "FP32", "others", "all")
    cycles: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(["free", *args.links]):
        least = most = 0.0
        for kernel, (binary, pairs) in kernels(LINKS[name](), columns).items():
            registers, blocks = disassembled(binary)
            path = shortest_path(blocks)
            total, special, plain = path.total(), path["MUFU"], sum(path[x] for x in FLOAT32)
            each = (f"{x / pairs:.1f}" for x in (special, plain, total - special - plain, total))
            spills = path["STL"] + path["LDL"]
            shared = f"{binary.metadata.shared / 1024:.0f}"
            row(name, kernel, str(registers), str(spills), shared, str(path["HGMMA"]), *each)
            threads = 128 * 128 // pairs // 128  # of a tile, on each of a multiprocessor's four parts
            least += max(8 * special, total) * threads
            most += (7 * special + total) * threads
        cycles[name] = least, most
    print()
    head("link", f"predicted ms, {args.size}", "times free")
    tiles = (n / 128) ** 2 / MULTIPROCESSORS
    for name, both in cycles.items():
        more = [tiles * (x - y) / CYCLES * 1e3 for x, y in zip(both, cycles["free"], strict=True)]
        times = [args.free + max(x, 0.0) for x in more]
        row(name, " to ".join(f"{x:.3g}" for x in times), " to ".join(f"{x / args.free:.2f}" for x in times))


if __name__ == "__main__":
    main()
