"""What each temperature, and none, would do with given embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from taufree import Link, Temperature
from taufree.diagnostics.anchors import TAUS, AnchorStatistics, blocks, measure, pieces, schemes
from taufree.diagnostics.diagnosis import (
    COSINE_EDGES,
    OPTIMAL_COSINE,
    SCALE_EDGES,
    VANISHED_SHARE,
    Diagnosis,
    Scheme,
)
from taufree.diagnostics.gradient_scale import optimum_scale
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np
    from numpy.typing import NDArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FINE_BINS = 20
"""Bins counted for each bin of `COSINE_EDGES`, so that quantiles can be read from the counts."""


@torch.no_grad()
def diagnose(
    first: NDArray[Any] | Tensor,
    second: NDArray[Any] | Tensor | None = None,
    *,
    labels: NDArray[Any] | Tensor | None = None,
    taus: Sequence[float] = TAUS,
    sample: int = 4096,
    seed: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """What temperatures, and the free loss, would do with these embeddings if all rows were one batch.

    The rows of `first` are the anchors. Without `labels`, row i of `second` is the positive of row i of
    `first` and all other rows of `second` are its negatives. With `labels` the positives are the rows of the
    same label (other than itself), the negatives those of other labels: in `second` if given, or in `first`.
    Time grows with `sample` x rows, memory with rows.

    Args:
        first, second: [N, D], N >= 2, numpy or torch, floating; rows need not be normalised.
        labels: [N] integers; a row whose label is unique is no anchor without `second`.
        taus: the temperatures to compare with free, which is `LogOdds()`.
        sample: look at this many anchors at most, drawn at random with `seed`; all rows stay candidates.
        watch: called after each block with how many anchors are done, of how many.

    Examples:
        >>> first = np.eye(4, 8)
        >>> found = diagnose(first, first + 0.5 * np.eye(4, 8, k=1), taus=[0.05, 1.0])
        >>> [(scheme.name, round(scheme.vanished, 2)) for scheme in found.schemes]
        [('free', 0.0), ('tau=0.05', 1.0), ('tau=1', 0.0)]
    """
    a = table("first", first)
    b = None if second is None else table("second", second).to(a.device)
    groups = _groups(a, b, labels)
    if sample < 1:
        raise ValueError(f"sample must be at least 1, got {sample}")
    links = schemes(taus)
    eligible = (groups.bincount()[groups] > (b is None)).nonzero().squeeze(1)
    if len(eligible) == 0:
        raise ValueError("labels must give some label to two rows, got a different one for every row")
    draw = torch.randperm(len(eligible), generator=torch.Generator().manual_seed(seed))[:sample]
    rows = eligible[draw.sort().values.to(a.device)]

    bins = _FINE_BINS * (len(COSINE_EDGES) - 1)
    positive_counts, negative_counts = torch.zeros(2, bins, dtype=torch.float64)
    negative_sum, negative_squares, done = 0.0, 0.0, 0
    # Filled in place: small tensors kept from each block would keep its large ones from being reused.
    each = torch.empty(4, len(rows), dtype=torch.float64)
    found = AnchorStatistics(*each, *torch.empty(3, len(links), len(rows), dtype=torch.float64))
    with _one_thread():
        for block in blocks(a, b, groups, rows):
            filled = len(a) - block.negatives  # columns that are no negatives hold -1: take them out again
            positive_counts += torch.histc(block.positive[block.counts], bins, -1, 1).cpu()
            negative_counts += torch.histc(block.negative, bins, -1, 1).cpu()
            negative_counts[0] -= filled.sum().item()
            negative_sum += (block.negative.sum(1) + filled).sum(dtype=torch.float64).item()
            squares = block.negative.square().sum(dtype=torch.float64) - filled.sum()
            negative_squares += squares.item()
            part = slice(done, done := done + len(block.positive))
            for whole, values in zip(found, measure(links.values(), block), strict=True):
                whole[..., part] = values
            watch(done, len(rows))

    duplicates, zero_rows = _copies_and_zeros(a, b, groups)
    centres = np.linspace(-1, 1, 2 * bins + 1)[1::2]
    return Diagnosis(
        rows=len(a),
        dimensions=a.shape[1],
        labelled=labels is not None,
        eligible=len(eligible),
        anchors=len(rows),
        seed=seed,
        positives=found.positives.mean().item(),
        negatives=found.negatives.mean().item(),
        positive_mean=found.cosine.mean().item(),
        negative_mean=negative_sum / found.negatives.sum().item(),
        effective_dimension=1 / max(negative_squares / found.negatives.sum().item(), 1 / a.shape[1]),
        positive_counts=_coarse(positive_counts),
        negative_counts=_coarse(negative_counts),
        non_optimal=(found.cosine < OPTIMAL_COSINE).double().mean().item(),
        local_temperature={
            "positives": _quantiles(found.local),
            "negatives": _quantiles((1 - torch.from_numpy(centres) ** 2) / 2, negative_counts),
        },
        schemes=[_scheme(name, link, number, found) for number, (name, link) in enumerate(links.items())],
        duplicates=duplicates,
        zero_rows=zero_rows,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on one thread.

    The operations on a block take less than a millisecond each. Threads that wait for each other after every
    one of them are a little faster on an idle machine, and many times slower on a busy one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _scheme(name: str, link: Link, number: int, found: AnchorStatistics) -> Scheme:
    scale, chance = found.scale[number], found.chance[number]
    relative, cosine = (scale / chance).numpy(), found.cosine.numpy()
    non_optimal = cosine < OPTIMAL_COSINE
    log = np.log10(relative.clip(10.0 ** SCALE_EDGES[0], 10.0 ** SCALE_EDGES[-1]))
    place = np.digitize(cosine, COSINE_EDGES[1:-1])
    bins = range(len(COSINE_EDGES) - 1)
    return Scheme(
        name=name,
        tau=link.tau if isinstance(link, Temperature) else None,
        scale=_quantiles(scale),
        chance=chance.mean().item(),
        relative=np.histogram(log.clip(SCALE_EDGES[0], SCALE_EDGES[-1]), SCALE_EDGES)[0].tolist(),
        by_cosine=[float(np.median(relative[place == i])) if (place == i).any() else None for i in bins],
        vanished=float((relative[non_optimal] < VANISHED_SHARE).mean()) if non_optimal.any() else 0.0,
        hardest=found.hardest[number].mean().item(),
        optimum=(optimum_scale(link, found.positives, found.negatives) / chance).mean().item(),
    )


def _coarse(counts: Tensor) -> list[int]:
    shown: list[int] = counts.view(-1, _FINE_BINS).sum(1).long().tolist()
    return shown


def _quantiles(values: Tensor, counts: Tensor | None = None) -> dict[str, float]:
    """Quantiles of the values, each taken `counts` times."""
    values, order = values.sort()
    share = torch.ones_like(values) if counts is None else counts[order]
    reached = share.cumsum(0) / share.sum()
    places = torch.searchsorted(reached, torch.tensor(QUANTILES, dtype=reached.dtype)).clamp(
        max=len(values) - 1
    )
    return {
        f"{quantile:.0%}": values[place].item() for quantile, place in zip(QUANTILES, places, strict=True)
    }


def _copies_and_zeros(a: Tensor, b: Tensor | None, groups: Tensor) -> tuple[dict[str, int], dict[str, int]]:
    """Count exact copies and all-zero rows, see `Diagnosis`. Zero rows are not counted as copies."""
    wide = torch.float64 if torch.float64 in (a.dtype, a.dtype if b is None else b.dtype) else torch.float32
    keys_a, zero_a = _hashes(a, wide)
    keys_b, zero_b = (keys_a, zero_a) if b is None else _hashes(b, wide)
    own = keys_a == keys_b if b is not None else np.zeros(len(a), dtype=bool)
    # The row's hash mixed with its group: equal for copies within the same group alone.
    salt = groups.cpu().numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    false = np.zeros(len(a), dtype=bool)
    for keys, zero in ((keys_a, zero_a), (keys_b, zero_b)):
        false |= (_occurrences(keys, keys_b) > _occurrences(keys ^ salt, keys_b ^ salt)) & ~zero
    zeros, copies = (
        {"first": int(zero_a.sum())},
        {"first": int(((_occurrences(keys_a, keys_a) > 1) & ~zero_a).sum())},
    )
    if b is not None:
        zeros["second"] = int(zero_b.sum())
        copies["second"] = int(((_occurrences(keys_b, keys_b) > 1) & ~zero_b).sum())
        copies["across"] = int(((_occurrences(keys_a, keys_b) > own) & ~zero_a).sum())
    return {**copies, "false_negatives": int(false.sum())}, zeros


def _hashes(x: Tensor, dtype: torch.dtype) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """A 64-bit hash of each row, and whether the row is all zero; no two rows are ever compared directly."""
    digests, zero = [], []
    for piece in pieces(x, 4096):
        rows = (piece.to(dtype) + 0.0).cpu().numpy()  # + 0.0 makes -0.0 and 0.0 the same bytes
        digests += [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
        zero.append(~rows.any(1))
    return np.frombuffer(b"".join(digests), dtype=np.uint64), np.concatenate(zero)


def _occurrences(keys: NDArray[np.uint64], among: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How often each key is found among others, by sorting."""
    values, counts = np.unique(among, return_counts=True)
    place = np.searchsorted(values, keys).clip(max=len(values) - 1)
    return np.where(values[place] == keys, counts[place], 0)


def table(name: str, values: NDArray[Any] | Tensor) -> Tensor:
    """Embeddings as a tensor, without a copy where that can be; an error speaks of them as `name`."""
    if not isinstance(values, np.ndarray | Tensor):
        raise TypeError(f"{name} must be a numpy array or a torch tensor, got {type(values).__name__}")
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        known = values.dtype.itemsize <= 8
        # A writable copy in the machine's byte order where the array is not that already.
        dtype = values.dtype.newbyteorder("=") if known else np.dtype(np.float64)
        values = torch.from_numpy(np.require(values, dtype=dtype, requirements=["C", "W"]))
    if not isinstance(values, Tensor) or values.dtype not in _FLOATS:
        raise TypeError(
            f"{name} must hold floating-point numbers, got {values.dtype}; convert it if these are embeddings"
        )
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1:
        raise ValueError(
            f"{name} must be rows x dimensions with at least two rows, got shape {tuple(values.shape)}"
        )
    values = values.detach()
    for number, piece in enumerate(pieces(values, 4096)):
        bad = (~piece.isfinite().all(1)).nonzero()
        if len(bad):
            raise ValueError(
                f"{name} must be finite, but row {4096 * number + int(bad[0])} holds NaN or infinity"
            )
    return values


def _groups(a: Tensor, b: Tensor | None, labels: NDArray[Any] | Tensor | None) -> Tensor:
    """Number the groups of rows that are each other's positives from 0 on."""
    if b is not None and b.shape != a.shape:
        raise ValueError(f"second must have the shape of first, {tuple(a.shape)}, got {tuple(b.shape)}")
    if labels is None:
        if b is None:
            raise ValueError("second or labels must be given: without them no row has a positive")
        return torch.arange(len(a), device=a.device)
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (len(a),) or values.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be {len(a)} integers, one a row, got {values.dtype} of shape {values.shape}"
        )
    names, groups = np.unique(values, return_inverse=True)
    if len(names) < 2:
        raise ValueError("labels must hold at least two different values, got one: no row has a negative")
    return torch.from_numpy(groups).to(a.device)
