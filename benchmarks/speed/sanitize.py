"""Every fused kernel once, on small ragged shapes, for NVIDIA's checkers of memory and races.

    python -m benchmarks.speed.sanitize                                            # compiles the kernels
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m benchmarks.speed.sanitize
    compute-sanitizer --tool racecheck python -m benchmarks.speed.sanitize

Run it plainly first, since compiled kernels are kept and the checkers are slow; --part I/K spreads the cases
over K processes. Without PyTorch's cache of memory every tensor is an allocation of its own, so that a read
past its end is seen. Gradients are also compared with the dense reference; exit code 1 if one is off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import taufree
from benchmarks.support.options import parser_of
from taufree.bench.measure import relative

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or deterministic products are refused
N, M = 197, 131  # no multiples of any tile
WORST = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-3}  # relative errors of gradients
LINKS: dict[str, Callable[[], taufree.Link]] = {
    "odds": taufree.LogOdds,
    "gain": lambda: taufree.LogOdds(gain=2.0),
    "tau": lambda: taufree.Temperature(0.1),
    "learned": lambda: taufree.LearnableTemperature(0.1),
    "fitted": taufree.FittedLogOdds,
    "fitted tau": taufree.FittedTemperature,
}


def losses(d: int, dtype: torch.dtype) -> dict[str, tuple[list[Tensor], Callable[..., Tensor]]]:
    """Every contrast: its leaves, and the loss of them."""

    def rows(*shape: int) -> Tensor:
        return torch.randn(*shape, d, device="cuda").to(dtype).requires_grad_()

    a, b, queue, own = rows(N), rows(N), rows(M), rows(N, 3)
    ids = torch.randint(N // 2, (N,), device="cuda")
    return {
        "one-way": ([a, b], taufree.info_nce),
        "symmetric": ([a, b], lambda *x, **o: taufree.info_nce(*x, symmetric=True, **o)),
        "everything": (
            [a, b, queue],
            lambda *x, **o: taufree.info_nce(*x, symmetric=True, in_batch=True, ids=ids, **o),
        ),
        "queue": ([a, b, queue], taufree.info_nce),
        "own negatives": ([a, b, own], taufree.info_nce),
        "views": ([a, b], lambda *x, **o: taufree.nt_xent(*x, ids=ids, **o)),
        "labels": ([a], lambda *x, **o: taufree.sup_con(*x, ids % 9, **o)),
    }


def cases() -> list[tuple[str, str, torch.dtype, bool]]:
    """Contrast, link, dtype, deterministic: every value, with the pairs that have kernels of their own."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    found = [(contrast, "odds", bf16, False) for contrast in losses(16, bf16)]
    found += [(contrast, "odds", bf16, True) for contrast in ("everything", "views", "labels")]
    found += [
        (contrast, "tau", bf16, False) for contrast in ("everything", "own negatives", "views", "labels")
    ]
    found += [(contrast, "gain", bf16, False) for contrast in ("everything", "labels")]
    found += [(contrast, "learned", bf16, False) for contrast in ("everything", "labels")]
    found += [(contrast, "odds", fp16, False) for contrast in ("everything", "labels")]
    found += [(contrast, "odds", fp32, False) for contrast in ("everything", "views", "labels")]
    found += [("symmetric", "fitted", bf16, False), ("views", "fitted tau", fp32, False)]
    return [*found, ("everything", "tau", fp32, False)]


def check(contrast: str, link_name: str, dtype: torch.dtype, deterministic: bool) -> float:
    """The worst relative error of a gradient against the reference; NaN if one is NaN."""
    leaves, loss = losses(72 if dtype == torch.bfloat16 else 200, dtype)[contrast]
    found = {}
    for backend in ("reference", "triton"):
        link = LINKS[link_name]().to("cuda")
        torch.use_deterministic_algorithms(deterministic and backend == "triton")
        value = loss(*leaves, link=link, backend=backend) * 1024  # or gradients in float16 underflow
        found[backend] = torch.autograd.grad(value, [*leaves, *link.parameters()])
    errors = [relative(x, true) for x, true in zip(found["triton"], found["reference"], strict=True)]
    return torch.tensor(errors).max().item()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--part", default="0/1", metavar="I/K", help="only every Kth case, from the Ith on")
    first, every = map(int, parser.parse_args().part.split("/"))
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/speed/sanitize.py needs a CUDA device.")
    torch.manual_seed(0)
    wrong = 0
    for contrast, link, dtype, deterministic in cases()[first::every]:
        error = check(contrast, link, dtype, deterministic)
        right = error <= WORST[dtype]
        wrong += not right
        name = f"{contrast}, {link}, {str(dtype)[6:]}{', deterministic' if deterministic else ''}"
        print(f"{name:50} gradient error {error:.1e}{'' if right else '  WRONG'}", flush=True)
    torch.cuda.synchronize()
    print(f"{wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
