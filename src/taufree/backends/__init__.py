"""The same contract several times: ``backend(contrast, link, weights)``.

With ``weights`` [N], or one number for all, a backend returns the scalar sum of weights * losses, with
None each anchor's loss [N]. The result has the dtype of :func:`taufree.backends.numerics.result_dtype`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from taufree.backends import fused as triton
from taufree.backends import reference
from taufree.backends.blockwise import engine as blockwise
from taufree.contrast import Contrast
from taufree.links import Link

BACKENDS = ("auto", "reference", "blockwise", "triton")
SMALL = 2**14


class Backend(Protocol):
    def __call__(self, contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor: ...


def choose(backend: str, contrast: Contrast, link: Link) -> Backend:
    """The backend that a name stands for; "auto" decides by size and device.

    Up to 2^14 pairs (a batch of 128) the dense reference is as quick, compiles and is twice
    differentiable; beyond that its matrices cost more than tiles do. On a GPU the fused kernels take over
    if they can compute the loss, else blockwise. On the meta device, which has shapes alone, the reference is
    the one that asks for no number. An explicit choice that cannot run raises.
    """
    if backend == "auto":
        candidates = contrast.n if contrast.in_batch else 0
        candidates += 0 if contrast.queue is None else contrast.queue.shape[0]
        candidates += 0 if contrast.own_negatives is None else contrast.own_negatives.shape[1]
        if contrast.n * candidates <= SMALL or contrast.anchors.is_meta:
            return reference.loss
        fused = contrast.anchors.is_cuda and triton.supported(contrast, link) is None
        return triton.loss if fused else blockwise.loss
    if backend == "triton" and (reason := triton.supported(contrast, link)):
        raise ValueError(f'backend="triton" cannot compute this loss: {reason}')
    return {"reference": reference.loss, "blockwise": blockwise.loss, "triton": triton.loss}[backend]
