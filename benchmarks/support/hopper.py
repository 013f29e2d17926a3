"""Kernels compiled for a Hopper GPU without one: Triton brings its compiler, ptxas and nvdisasm along."""

from __future__ import annotations

import heapq
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int64: "i64",
}  # fmt: skip
LAUNCH_OPTIONS = {"num_warps", "num_stages", "maxnreg", "enable_fp_fusion"}
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def kind(argument: Any) -> str:
    """The type of a kernel's argument, as Triton writes it."""
    if isinstance(argument, torch.Tensor):
        return f"*{TYPES[argument.dtype]}"
    if isinstance(argument, TensorDescriptor):
        return f"tensordesc<{TYPES[argument.base.dtype]}{list(argument.block_shape)}>"
    return "fp32" if isinstance(argument, float) else "i32"


def compiled(kernel: Any, *arguments: Any, **options: Any) -> Any:
    """What a launch with these arguments would have compiled."""
    names, options = kernel.arg_names, {**options, "enable_fp_fusion": True}
    given = dict(zip(names, arguments, strict=False))
    signature = {name: kind(given[name]) if name in given else "constexpr" for name in names}
    constants = {(names.index(n),): options.pop(n) for n in names if n not in given}
    if unknown := options.keys() - LAUNCH_OPTIONS:  # which a launch refuses
        raise KeyError(f"{kernel.__name__} has no parameter {', '.join(sorted(unknown))}")
    aligned = [i for i, n in enumerate(names) if signature[n].startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def disassembled(kernel: Any) -> tuple[int, list[tuple[Counter[str], list[int]]]]:
    """A compiled kernel's registers a thread, and its basic blocks: how often each has which instruction, and
    which blocks may follow."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "kernel.cubin").write_bytes(kernel.asm["cubin"])
        usage, text = (
            subprocess.run([TOOLS / name, flag, file], capture_output=True, text=True, check=True).stdout
            for name, flag in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    blocks: list[tuple[Counter[str], list[str]]] = [(Counter(), [])]
    labels = {}
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            blocks[-1][1].append(label[1])
            labels[label[1]] = len(blocks)
            blocks.append((Counter(), []))
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?([A-Z]\w*)(\S*)\s*(.*?);", line):
            guard, name, _, operands = found.groups()
            blocks[-1][0][name] += 1
            if name in ("BRA", "EXIT"):
                conditional = guard or "DIV" in found[3] or re.match(r"U?P\d", operands)
                target = re.search(r"\.L_x_\d+", operands)
                blocks[-1][1].extend([target[0]] if target else [])
                labels[next_label := f"after {len(blocks)}"] = len(blocks)
                blocks[-1][1].extend([next_label] if conditional else [])
                blocks.append((Counter(), []))
    registers = int(re.search(r"REG:(\d+)", usage)[1])  # type: ignore[index]
    return registers, [(counts, [labels[x] for x in follow if x in labels]) for counts, follow in blocks]


def shortest_path(blocks: list[tuple[Counter[str], list[int]]]) -> Counter[str]:
    """The instructions from the start to an exit by the fewest of them: what a kernel whose branches are for
    rare cases nearly always runs; of a loop one round."""
    done = set()
    waiting = [(blocks[0][0].total(), 0, blocks[0][0])]
    while waiting:
        length, at, path = heapq.heappop(waiting)
        if blocks[at][0]["EXIT"]:
            return path
        for after in blocks[at][1] if at not in done else []:
            counts = blocks[after][0]
            heapq.heappush(waiting, (length + counts.total(), after, path + counts))
        done.add(at)
    raise ValueError("no way leads to an exit")
