"""The backends: several ways to compute the same loss, and the choice between them.

Each is a function ``loss(contrast, link, weights)``. With ``weights`` [N], or one number for all, it returns
the scalar sum of weights * losses, with None each anchor's loss [N]. The result has the dtype of
:func:`taufree.dtypes.result_dtype`. The link is what :meth:`taufree.Link.prepare` gave.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from taufree.backends import blockwise, fused, reference
from taufree.backends.autograd import exporting
from taufree.contrast import Contrast
from taufree.links import Link

BACKENDS = ("auto", "reference", "blockwise", "triton")
MAX_DENSE_PAIRS = 2**14  # on a GPU


class Backend(Protocol):
    def __call__(self, contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor: ...


IMPLEMENTATIONS: dict[str, Backend] = {
    "reference": reference.loss,
    "blockwise": blockwise.loss,
    "triton": fused.loss,
}


def unavailable() -> dict[str, str | None]:
    """Each backend, with the reason why it cannot run on this machine or None where it can."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    reasons = [fused.machine("cuda", index) for index in devices]
    reason = None if None in reasons else [*reasons, fused.machine("cpu", None)][0]
    return {name: reason if name == "triton" else None for name in IMPLEMENTATIONS}


def choose(backend: str, contrast: Contrast, link: Link, *, over_ranks: bool = False) -> str:
    """The name of the backend to use; "auto" decides by size and device, an explicit choice that cannot run
    raises.

    On a CPU that is blockwise. On a GPU it is the fused kernels if they can compute the loss, else blockwise,
    but for up to 2^14 pairs (128 anchors) in one process the reference, which is as quick there. On the meta
    device, which has shapes alone, only the reference never needs the value of a tensor.
    """
    reason = fused.unsupported(contrast, link) if backend == "triton" else None
    if backend == "triton" and over_ranks and link.per_anchor:
        reason = "over ranks the kernels take one scale for all anchors."
    if reason:
        raise ValueError(f'backend="triton" cannot compute this loss: {reason}')
    if backend != "auto":
        return backend
    anchors = contrast.anchors
    if over_ranks and link.per_anchor:
        return "blockwise"
    small = anchors.is_cuda and contrast.n * contrast.candidate_count <= MAX_DENSE_PAIRS
    # torch.export follows what is no operator, as blockwise without a formula, and stops at tensors' values.
    followed = link.formula is None and exporting()
    if not over_ranks and (small or anchors.is_meta or followed):
        return "reference"
    return "triton" if anchors.is_cuda and not fused.unsupported(contrast, link) else "blockwise"
