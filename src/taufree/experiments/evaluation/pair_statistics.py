"""Statistics of the pairs of a training step: their cosines, and the gradient scale of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from taufree import Link
from taufree.backends.numerics import full_precision
from taufree.baselines import Scheme
from taufree.diagnostics.gradient_scale import gradient_scale, logit_and_slope
from taufree.distributed import all_rows

BINS = 80
"""Bins of a cosine histogram; they divide [-1, 1] evenly."""
TALLIED = ("positive_histogram", "negative_histogram", "candidates")
"""What :class:`Tally` gives."""


@dataclass(frozen=True)
class Observation:
    """Detached measurements of one batch.

    Shape:
        positive: [A], the cosine of each anchor and its positive.
        negative: [A, N - 1], the cosines of each anchor and its negatives.
        gradient_scale: scalar, see :func:`observe_views`.
    """

    positive: Tensor
    negative: Tensor
    gradient_scale: Tensor

    @property
    def candidates(self) -> int:
        """N, the positive included."""
        return self.negative.shape[-1] + 1


@torch.no_grad()
def observe_views(view_a: Tensor, view_b: Tensor, link: Link, anchors: int = 256) -> Observation:
    """Observe an NT-Xent batch: rows of ``view_a`` against their pairs and all other rows of both views.

    The gradient scale is the mean over anchors, see :mod:`taufree.diagnostics.gradient_scale`. The batch is
    that of all ranks together.

    Args:
        view_a, view_b: [N, D], row i of one is the positive of row i of the other.
        anchors: use this many rows at most, which bounds the cost for large batches.
    """
    a, b = (normalize(all_rows(view).float(), dim=-1) for view in (view_a, view_b))
    rows = min(anchors, len(a))
    others = _other_columns(rows, len(a), a.device)
    with full_precision(a.device):
        own, cross = (a[:rows] @ a.T).gather(1, others), (a[:rows] @ b.T).gather(1, others)
    positive = (a[:rows] * b[:rows]).sum(-1, keepdim=True)
    return _observe(positive, torch.cat([own, cross], dim=1), link)


@torch.no_grad()
def observe_pairs(
    query: Tensor, key: Tensor, link: Link, *, ids: Tensor | None = None, anchors: int = 256
) -> Observation:
    """Observe an InfoNCE batch of one direction: rows of ``query`` against their keys and all others.

    Args:
        query, key: [N, D], row i of one is the positive of row i of the other.
        ids: [N]; a key with the query's id that is not its own gets no gradient, but stays among the cosines.
        anchors: as in :func:`observe_views`, which says what the gradient scale is.
    """
    q, k = normalize(query.detach().float(), dim=-1), normalize(key.detach().float(), dim=-1)
    rows = min(anchors, len(q))
    others = _other_columns(rows, len(q), q.device)
    positive = (q[:rows] * k[:rows]).sum(-1, keepdim=True)
    same = None if ids is None else ids[others] == ids[:rows, None]
    with full_precision(q.device):
        negative = (q[:rows] @ k.T).gather(1, others)
    return _observe(positive, negative, link, same)


def _other_columns(rows: int, total: int, device: torch.device) -> Tensor:
    """[rows, total - 1], all columns of a row but its own."""
    # Not by a boolean mask: counting its entries waits for the device.
    column = torch.arange(total - 1, device=device)
    return column + (column >= torch.arange(rows, device=device)[:, None])


def link_of(link: Link | Scheme) -> Link:
    """The link itself, or that of a scheme."""
    return link.link if isinstance(link, Scheme) else link


def _observe(positive: Tensor, negative: Tensor, link: Link, left_out: Tensor | None = None) -> Observation:
    link = link_of(link)
    cosine = torch.cat([positive, negative], dim=1).clamp(-1, 1)
    logit, slope = logit_and_slope(link, cosine)
    others = logit[:, 1:] if left_out is None else logit[:, 1:].masked_fill(left_out, -torch.inf)
    scale, _, _ = gradient_scale((logit[:, :1], slope[:, :1]), (others, slope[:, 1:]))
    return Observation(cosine[:, 0], cosine[:, 1:], scale.mean())


class Tally:
    """Histograms of the cosines of many batches, for the report."""

    def __init__(self) -> None:
        self._counts: dict[str, Tensor] = {}
        self._candidates = 0

    def add(self, seen: Observation) -> None:
        """Count one batch."""
        for name, cosine in (("positive_histogram", seen.positive), ("negative_histogram", seen.negative)):
            counts = torch.histc(cosine.float(), BINS, -1, 1).double()
            self._counts[name] = counts + self._counts.get(name, torch.zeros_like(counts))
        self._candidates = seen.candidates

    def result(self) -> dict[str, list[int] | int]:
        """The counts of each bin, and the candidates of an anchor (of the last batch)."""
        counts = {name: [int(count) for count in bins.tolist()] for name, bins in self._counts.items()}
        return {**counts, "candidates": self._candidates}


def temperature_at_zero(link: Link) -> float:
    """1 / link'(0): the temperature the link has for unrelated pairs, whose cosines are near 0; 0 if flat.

    >>> from taufree import LogOdds, Temperature
    >>> temperature_at_zero(Temperature(0.2)), round(temperature_at_zero(LogOdds()), 3)
    (0.2, 0.5)
    """
    link = link_of(link)
    state = (*link.parameters(), *link.buffers())
    device = state[0].device if state else torch.device("cpu")
    zero, one = torch.zeros(1, dtype=torch.float64, device=device), torch.ones(1, device=device).double()
    slope = float(link.slope(zero, one, one).item())
    return 1 / slope if slope else 0.0
