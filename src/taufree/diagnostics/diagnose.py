"""What each link would do with given embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from taufree import Link, LogOdds, Temperature
from taufree.diagnostics.anchors import TAUS, AnchorBlock, AnchorStatistics, blocks, measure, schemes
from taufree.diagnostics.diagnosis import COSINE_EDGES, OPTIMAL_COSINE, VANISHED_SHARE, Diagnosis, Scheme
from taufree.diagnostics.fitted import fitted_gain
from taufree.diagnostics.gradient_scale import optimum_scale
from taufree.diagnostics.theory.closed_forms import dimension_temperature
from taufree.util.optional import needs

with needs("taufree[cli]"):
    import numpy as np
    from numpy.typing import NDArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FIT_PAIRS, _FIT_ANCHORS = 2**22, 256
"""The gains are found on this many pairs, of this many anchors at least: the fit goes over them ten times."""


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
    """What the free, the calibrated and the fitted link and temperatures would do with these embeddings.

    The rows of `first` are the anchors. Without `labels`, row i of `second` is the positive of row i of
    `first` and all other rows of `second` are its negatives. With `labels` the positives are the rows of the
    same label (other than itself), the negatives those of other labels: in `second` if given, or in `first`.
    All rows are taken as one batch. Time grows with `sample` x rows, memory with rows.

    Args:
        first, second: [N, D], N >= 2, numpy or torch, floating; rows need not be normalised.
        labels: [N] integers; a row whose label is unique is no anchor without `second`.
        taus: the temperatures to compare with the links that need none.
        sample: look at this many anchors at most, drawn at random with `seed`; all rows stay candidates.
        watch: called after each block with how many anchors are done, of how many.

    Examples:
        >>> first = np.eye(4, 8)
        >>> found = diagnose(first, first + 0.5 * np.eye(4, 8, k=1), taus=[0.05, 1.0])
        >>> found.state
        'ahead'
        >>> [(scheme.name, round(scheme.loss, 2)) for scheme in found.schemes]
        [('free', 0.21), ('calibrated', 0.02), ('fitted', 0.2), ('tau=0.05', 0.0), ('tau=1', 0.87)]
    """
    a = table("first", first)
    b = None if second is None else table("second", second).to(a.device)
    groups = _groups(a, b, labels)
    if sample < 1:
        raise ValueError(f"sample must be at least 1, got {sample}")
    temperatures = schemes(taus)
    eligible = (groups.bincount()[groups] > (b is None)).nonzero().squeeze(1)
    if len(eligible) == 0:
        raise ValueError("labels must give some label to two rows, got a different one for every row")
    draw = torch.randperm(len(eligible), generator=torch.Generator().manual_seed(seed))[:sample]
    rows = eligible[draw.sort().values.to(a.device)]

    bins = len(COSINE_EDGES) - 1
    positive_counts, negative_counts = torch.zeros(2, bins, dtype=torch.float64)
    negative_sum, done = 0.0, 0
    with _one_thread():
        fit_rows = rows[:: -(-len(rows) // max(_FIT_ANCHORS, _FIT_PAIRS // len(a)))]

        def read() -> Iterator[AnchorBlock]:
            return blocks(a, b, groups, fit_rows)

        dimension = 1 / max(_mean_square(read(), len(a)), 1 / a.shape[1])
        fitted = max(1.0, fitted_gain(read, len(eligible)))
        links: dict[str, Link] = {
            "free": temperatures.pop("free"),
            "calibrated": LogOdds(gain=0.5 / float(dimension_temperature(max(3.0, dimension)))),
            "fitted": LogOdds(gain=fitted),
            **temperatures,
        }
        # Filled in place: small tensors kept from each block would keep its large ones from being reused.
        each = torch.empty(5, len(rows), dtype=torch.float64)
        found = AnchorStatistics(*each, *torch.empty(4, len(links), len(rows), dtype=torch.float64))
        for block in blocks(a, b, groups, rows):
            filled = len(a) - block.negatives  # columns that are no negatives hold -1: take them out again
            positive_counts += torch.histc(block.positive[block.counts], bins, -1, 1).cpu()
            negative_counts += torch.histc(block.negative, bins, -1, 1).cpu()
            negative_counts[0] -= filled.sum().item()
            negative_sum += (block.negative.sum(1) + filled).sum(dtype=torch.float64).item()
            part = slice(done, done := done + len(block.positive))
            for whole, values in zip(found, measure(links.values(), block), strict=True):
                whole[..., part] = values
            watch(done, len(rows))

    duplicates, zero_rows = _copies_and_zeros(a, b, groups)
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
        ranked_first=found.first.mean().item(),
        chance_first=(found.positives / (found.positives + found.negatives)).mean().item(),
        chance_loss=(found.positives + found.negatives).log().mean().item(),
        effective_dimension=dimension,
        fitted_gain=fitted,
        positive_counts=positive_counts.long().tolist(),
        negative_counts=negative_counts.long().tolist(),
        non_optimal=(found.cosine < OPTIMAL_COSINE).double().mean().item(),
        schemes=[_scheme(name, link, number, found) for number, (name, link) in enumerate(links.items())],
        duplicates=duplicates,
        zero_rows=zero_rows,
    )


def _mean_square(found: Iterator[AnchorBlock], total: int) -> float:
    """The mean squared cosine of the negatives."""
    squares, count = 0.0, 0
    for block in found:
        negatives = int(block.negatives.sum())
        filled = total * len(block.negative) - negatives  # those hold -1
        squares += block.negative.square().sum(dtype=torch.float64).item() - filled
        count += negatives
    return squares / count


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
    place = np.digitize(cosine, COSINE_EDGES[1:-1])
    bins = range(len(COSINE_EDGES) - 1)
    return Scheme(
        name=name,
        tau=float(link.tau) if isinstance(link, Temperature) else None,
        gain=float(link.gain) if isinstance(link, LogOdds) else None,
        loss=found.loss[number].mean().item(),
        scale=_quantiles(scale),
        chance=chance.mean().item(),
        by_cosine=[float(np.median(relative[place == i])) if (place == i).any() else None for i in bins],
        vanished=float((relative[non_optimal] < VANISHED_SHARE).mean()) if non_optimal.any() else 0.0,
        hardest=found.hardest[number].mean().item(),
        optimum=(optimum_scale(link, found.positives, found.negatives) / chance).mean().item(),
    )


def _quantiles(values: Tensor) -> dict[str, float]:
    found = np.quantile(values.numpy(), QUANTILES, method="inverted_cdf")
    return {f"{quantile:.0%}": float(value) for quantile, value in zip(QUANTILES, found, strict=True)}


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
    zeros = {"first": int(zero_a.sum())}
    copies = {"first": int(((_occurrences(keys_a, keys_a) > 1) & ~zero_a).sum())}
    if b is not None:
        zeros["second"] = int(zero_b.sum())
        copies["second"] = int(((_occurrences(keys_b, keys_b) > 1) & ~zero_b).sum())
        copies["across"] = int(((_occurrences(keys_a, keys_b) > own) & ~zero_a).sum())
    return {**copies, "false_negatives": int(false.sum())}, zeros


def _hashes(x: Tensor, dtype: torch.dtype) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """A 64-bit hash of each row, and whether the row is all zero; no two rows are ever compared directly."""
    digests, zero = [], []
    for piece in torch.split(x, 4096):
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
    for number, piece in enumerate(torch.split(values, 4096)):
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
