"""Random losses on the fused kernels against dense float64 code that shares nothing with them.

    python -m tests.gpu.random_cases --kinds 2000 --draws 5    # 10,000 cases; ends with 1 if one is wrong
    python -m tests.gpu.random_cases --part 3/16               # one of sixteen processes at the same time

Each kind of case compiles kernels of its own, some hundreds in all, for hours of one core; other draws of its
rows and sizes need no others.

A case is a function, its options, a link, a dtype, ragged shapes, and rows that are random, in a cone, or
with near-copies and opposites of others. Its loss and all gradients are compared. Prints the largest error
of each kind of rows and dtype, and every case beyond the tolerance with the number that makes it again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import torch
from torch.nn.functional import normalize, softplus

from taufree import LearnableTemperature, Link, LogOdds, Temperature
from tests.support.oracles import Case, hard_factors

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALLEST = {torch.float32: 2.0**-60, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-60}
"""Gradients below may be zero: the kernels take shares of the softmax below 2^-86 for that, and the slopes of
many negatives add up to less than 2^26."""
NEAR_TOLERANCE = {torch.float32: 5e-3, torch.float16: 0.1, torch.bfloat16: 0.3}
"""Next to copies, where the log-odds are as exact as 1 - c is."""
FAR_BELOW = -1e4  # a logit whose weight is 0 beside any other
ROWS = ("random", "cone", "near")
COLUMNS = (3, 8, 20, 64, 96, 128, 200, 333, 512, 1030)
FUNCTIONS = ("info_nce", "nt_xent", "sup_con", "sigmoid_nce")


class Limits(NamedTuple):
    """The most rows of a case, and what numbers of columns it may have: each costs kernels of its own."""

    rows: int = 700
    columns: tuple[int, ...] = COLUMNS


class Part(NamedTuple):
    part: int
    parts: int


WHOLE = Part(0, 1)


class Draw:
    """Choices that one number decides, and sizes and rows that a second one changes."""

    def __init__(self, number: int, draw: int = 0) -> None:
        self.kind = torch.Generator().manual_seed(number)
        self.rows = torch.Generator().manual_seed(crc32(f"{number}.{draw}".encode()))

    def among(self, choices):
        return choices[int(torch.randint(len(choices), (), generator=self.kind))]

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """From ``low`` to ``high`` - 1."""
        return torch.randint(low, high, shape, generator=self.rows)

    def size(self, most: int) -> int:
        """From 1 to ``most``, small ones as often as large ones."""
        return round(most ** float(self.uniform()))

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.rows, dtype=torch.float64)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.rows, dtype=torch.float64)


def draw_rows(draw: Draw, kind: str, count: int, d: int) -> torch.Tensor:
    """Rows [count, d] of lengths between 0.1 and 10."""
    rows = draw.normal(count, d)
    if kind == "cone":
        rows = draw.normal(1, d) + rows / 4
    elif kind == "near":
        for _ in range(3):
            i, j = draw.integers(0, count, 2).tolist()
            rows[i] = draw.among((1, 1, -1)) * rows[j] + draw.among((0, 1e-3, 0.1)) * draw.normal(d)
    return rows * 10 ** (2 * draw.uniform(count, 1) - 1)


def draw_case(draw: Draw, kind: str, dtype: torch.dtype, limits: Limits, device: str) -> Case:
    function, n, d = draw.among(FUNCTIONS), draw.size(most_rows := limits.rows), draw.among(limits.columns)
    first = draw_rows(draw, kind, 2 * n, d)
    first[n:] += first[:n] * draw.among((0, 0.3, 1))
    tensors, options = list(first.split(n)), {}
    ids = draw.integers(0, max(1, n // draw.among((1, 2, 8))), n)
    if function == "sup_con":
        labels, tensors = draw.integers(0, draw.among((1, 3, max(1, n // 2))), 2 * n), tensors[:1]
        options["labels"] = labels[:n]
        if draw.among((True, False)):
            m = draw.size(most_rows)
            tensors.append(draw_rows(draw, kind, m, d))
            options["key_labels"] = labels[draw.integers(0, 2 * n, m)]
    elif draw.among((True, False)):
        options["ids"] = ids
    if function == "sigmoid_nce":
        options |= draw.among(({}, {"bias": -10.0}, {"bias": 0.5}))
    else:
        options |= draw.among(({}, {}, {"decoupled": True}, {"balanced": True}))
        options |= draw.among(({}, {}, {"hardness": 2.0}, {"hardness": 1.0, "scale_hardness": False}))
    if function == "info_nce":
        options |= draw.among(({}, {"symmetric": True, "in_batch": True}))
        negatives = draw.among(("none", "queue", "own"))
        m = draw.size(most_rows if negatives == "queue" else 5)
        if negatives == "queue":
            tensors.append(draw_rows(draw, kind, m, d))
            options |= {"negative_ids": ids[draw.integers(0, n, m)]} if "ids" in options else {}
        elif negatives == "own":
            tensors.append(draw_rows(draw, kind, n * m, d).reshape(n, m, d))
            options |= {"in_batch": True} if "ids" in options else {}
    if draw.among((True, False, False)):
        options["weights"] = draw.uniform(n).float() + 0.5
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    return Case(function, [x.to(device, dtype) for x in tensors], options)


def draw_link(draw: Draw, case: Case) -> Link:
    n = len(case.tensors[0])
    one_way = case.function in ("info_nce", "nt_xent") and not case.options.keys() & {"symmetric", "hardness"}
    anchors = 2 * n if case.function == "nt_xent" else n
    choices = [
        LogOdds,
        *(lambda gain=gain: LogOdds(gain=gain) for gain in (0.5, 2.0, 7.0, 12.0)),
        lambda: LogOdds(resolution=1e-3),
        *(lambda tau=tau: Temperature(tau) for tau in (0.01, 0.07, 0.5, 1.0)),
        lambda: LearnableTemperature(0.07),
    ]
    if one_way:
        choices.append(lambda: Temperature(torch.nn.Parameter(torch.linspace(0.05, 1, anchors))))
    return draw.among(choices)().to(case.tensors[0].device)


def dense64(case: Case, link: Link) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], float]:
    """The loss, the gradients of all rows and of the link's parameters, and the size of the terms that the
    rows' gradient is a sum of: all by plain autograd over the matrix of all pairs of rows, in float64."""
    rows, anchors = case.rows().requires_grad_(), case.anchors()
    device, link = rows.device, link.double()
    unit = normalize(rows, dim=1, eps=1e-300)
    positive = torch.zeros(len(anchors), len(rows), dtype=torch.bool)
    negative = positive.clone()
    for k, (_, positives, negatives, _) in enumerate(anchors):
        positive[k, positives] = True
        negative[k, negatives] = True
    positive, negative = positive.to(device), negative.to(device)
    first = [i for i, *_ in anchors]
    weight = torch.tensor([w for *_, w in anchors], dtype=torch.float64, device=device)
    if (given := case.options.get("weights")) is not None:
        weight = weight * given.double()[[i % len(given) for i in first]]
    cosine = (unit[first] @ unit.T).clamp(-1, 1) if anchors else unit[:0] @ unit.T
    logits = link(cosine)
    factors = torch.zeros_like(cosine)
    for k in range(len(anchors) if case.options.keys() & {"hardness", "balanced"} else 0):
        factors[k, negative[k]] = hard_factors(case, cosine.detach()[k, negative[k]])
    logits = logits + factors
    own = torch.where(positive, logits, 0).sum(1) / positive.sum(1)
    if case.function == "sigmoid_nce":
        z = logits + case.bias()
        losses = softplus(torch.where(positive, -z, z), threshold=1e9)
        losses = torch.where(positive | negative, losses, 0).sum(1)
    else:
        against = torch.where(negative, logits, FAR_BELOW).logsumexp(1) - own
        if case.options.get("decoupled"):
            losses = torch.where(negative.any(1), against, 0)
        else:  # of a single positive so that a tiny loss has its digits
            several = torch.where(positive | negative, logits, FAR_BELOW).logsumexp(1) - own
            losses = torch.where(positive.sum(1) == 1, softplus(against, threshold=1e9), several)
    total = (weight * losses).sum()
    inputs = [rows, cosine, *link.parameters()]
    grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    link.float()
    terms = grads[1].abs() * (1 - cosine.detach() ** 2).sqrt()
    lengths = rows.detach().norm(dim=1)
    by_row = torch.zeros(len(rows), dtype=torch.float64, device=device)
    by_row.index_add_(0, torch.tensor(first, dtype=torch.long, device=device), terms.sum(1))
    size = float(((by_row + terms.sum(0)) / lengths).norm())
    return total.detach(), grads[0], list(grads[2:]), size


def error_of(case: Case, link: Link, backend: str) -> float:
    """The largest error of loss and gradients, as a part of their size; NaN counts as inf."""
    loss, rows, params, terms = dense64(case, link)
    found_loss, found_rows, found_params = case.call(backend, link)
    most = torch.finfo(case.tensors[0].dtype).max  # a gradient beyond it is infinite, or the largest number
    rows, found_rows = (x.clamp(-most, most) for x in (rows, found_rows))
    largest = float(link(torch.ones(1, device=rows.device)).detach().abs().max())
    sizes = [float(loss.abs()) + len(rows) * largest * 1e-2, float(rows.norm()) + terms / 10]
    underflow = SMALLEST[case.tensors[0].dtype] * math.sqrt(rows.numel())
    errors = [float((found_loss - loss).abs()), max(0.0, float((found_rows - rows).norm()) - underflow)]
    for one, other in zip(found_params, params, strict=True):
        errors.append(float((one - other).norm()))
        sizes.append(float(other.norm()) + float(loss.abs()) + len(rows) * 1e-2)
    found = max(error / size if size else error for error, size in zip(errors, sizes, strict=True))
    return found if found == found else math.inf


class Outcome(NamedTuple):
    """Of one case: the numbers that make it again, its kind, its error and a line that describes it."""

    number: str
    function: str
    kind: tuple[str, torch.dtype]
    error: float
    description: str

    @property
    def wrong(self) -> bool:
        rows, dtype = self.kind
        return self.error > (NEAR_TOLERANCE if rows == "near" else TOLERANCE)[dtype]


def outcome(
    number: int, limits: Limits, device: str, backend: str, part: Part = WHOLE, again: int = 0
) -> Outcome | None:
    """None for a case of another part."""
    draw = Draw(number, again)
    rows, dtype = draw.among(ROWS), draw.among(tuple(TOLERANCE))
    case = draw_case(draw, rows, dtype, limits, device)
    link = draw_link(draw, case)
    if part_of(case, link, part.parts) != part.part:
        return None
    error = error_of(case, link, backend)
    shapes, options = [list(x.shape) for x in case.tensors], sorted(case.options)
    about = f"{number}.{again}: {error:.1e}, {rows}, {dtype}, {case.function} {shapes} {options}, {link}"
    return Outcome(f"{number}.{again}", case.function, (rows, dtype), error, about)


def part_of(case: Case, link: Link, parts: int) -> int:
    """The same for cases that need the same kernels, so that only one process compiles these."""
    dtypes = sorted({str(x.dtype) for x in case.tensors})
    return crc32(repr((case.function, sorted(case.options), type(link).__name__, dtypes)).encode()) % parts


def wrong_cases(numbers: range, limits: Limits, device: str, backend: str = "triton") -> Iterator[str]:
    """A line for each case that is beyond the tolerance."""
    for number in numbers:
        found = outcome(number, limits, device, backend)
        if found and found.wrong:
            yield found.description


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=5, help="of rows and sizes, for each kind")
    parser.add_argument("--first", type=int, default=0, help="the number of the first kind")
    parser.add_argument("--most-rows", type=int, default=Limits().rows)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--part", default="0/1", help="3/16: the third of sixteen processes, from 0")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then no kind is begun")
    chosen = parser.parse_args()
    part, end = Part(*map(int, chosen.part.split("/"))), time.monotonic() + chosen.seconds
    found, limits = [], Limits(chosen.most_rows, tuple(chosen.columns))
    for number in range(chosen.first, chosen.first + chosen.kinds):
        if time.monotonic() > end:
            print(f"stopped before kind {number}")
            break
        for again in range(chosen.draws):
            if one := outcome(number, limits, chosen.device, chosen.backend, part, again):
                found.append(one)
                if one.wrong:
                    print(one.description, flush=True)
    functions = Counter(one.function for one in found)
    print(", ".join(f"{count:,} of {name}" for name, count in sorted(functions.items())))
    for kind in sorted({one.kind for one in found}, key=str):
        worst = max((one for one in found if one.kind == kind), key=lambda one: one.error)
        print(f"{kind[0]}, {kind[1]}: largest error {worst.error:.1e}, case {worst.number}")
    wrong = sum(one.wrong for one in found)
    print(f"{len(found) - wrong:,} of {len(found):,} cases are within the tolerance.")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
