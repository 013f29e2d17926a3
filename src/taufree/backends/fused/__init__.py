"""Fused GPU kernels: the loss and its gradient at linear memory, close to the rate of matrix products.

Same contract as the other backends. See docs/explanation/kernels.md for how it works and how fast it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from taufree.backends.numerics import chords, normalize
from taufree.contrast import Contrast
from taufree.links import CalibratedLogOdds, LearnableTemperature, Link, LogOdds, Temperature, TensorGain

if TYPE_CHECKING:
    from taufree.backends.sharded.fused import Shards

GENTLE = 0.025  # the lowest temperature at which exp((c - 1)/tau) stays in float32's range
LARGEST = 4096  # columns of an input: a row must fit the registers of a block
# The smallest resolution that 1 - c of a tile still tells from 0: of half-precision inputs, and of others.
FINEST = {True: 1e-5, False: 1e-7}


def supported(contrast: Contrast, link: Link) -> str | None:
    """Why the kernels cannot compute this loss, in one sentence, or None if they can."""
    # Written so that torch.compile of PyTorch 2.8 can follow: no next(), no isinstance of A | B.
    every = (contrast.anchors, contrast.keys, contrast.queue, contrast.own_negatives)
    inputs = [x for x in every if x is not None]
    where = [*(x.device for x in inputs if not x.is_cuda), contrast.anchors.device][0]
    if reason := _machine(where.type, where.index):
        return reason
    if wrong := {x.dtype for x in inputs} - {torch.float32, torch.float16, torch.bfloat16}:
        return f"the kernels take float32, float16 and bfloat16, not {wrong.pop()}."
    if contrast.anchors.shape[1] > LARGEST:
        return f"the kernels take up to {LARGEST} columns, got {contrast.anchors.shape[1]}."
    if type(link) not in (LogOdds, TensorGain, CalibratedLogOdds, Temperature, LearnableTemperature):
        return f"the kernels know the links of this library, not {type(link).__name__}."
    if type(link) is not LearnableTemperature and any(p.requires_grad for p in link.parameters()):
        return f"the kernels learn a LearnableTemperature, not a parameter of {type(link).__name__}."
    finest = FINEST[all(x.dtype.itemsize == 2 for x in inputs)]
    if isinstance(link, (LogOdds, CalibratedLogOdds)) and link.resolution < finest:
        return f"the kernels need a resolution of at least {finest:g} here, got {link.resolution:g}."
    return None


def _machine(device: str, index: int | None) -> str | None:
    """Why the kernels cannot run on this machine, for inputs on that device, or None if they can."""
    try:
        import triton
        from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: F401
    except ImportError:
        return "Triton 3.4 or newer is not installed."
    if triton.knobs.runtime.interpret:
        return None
    if device != "cuda":
        return f"the kernels run on a CUDA device, the inputs are on {device}."
    if torch.version.hip:  # where PyTorch says "cuda" as well
        return "the kernels have instructions of NVIDIA's GPUs, this is one of AMD's."
    if torch.cuda.get_device_capability(index) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or newer."
    return None


# What torch.compiler.assume_constant_result does, without its import of the whole compiler: to torch.compile
# the answer is a constant, and not code that would break the graph.
_machine._dynamo_marked_constant = True  # type: ignore[attr-defined]


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    from taufree.backends.fused import op as ops

    return ops.loss(weights.float() if isinstance(weights, Tensor) else weights, *_arguments(contrast, link))


def engine(contrast: Contrast, link: Link) -> tuple[Callable[..., Shards], tuple[Tensor | None, ...]]:
    """What makes an engine for :mod:`taufree.backends.sharded.step`, and its differentiable inputs."""
    from taufree.backends.sharded.fused import Shards

    anchors, keys, _, extra, scale, *options = _arguments(contrast, link)
    queue = None if contrast.queue is None else contrast.queue.contiguous()
    return partial(Shards, options), (anchors, keys, queue, extra, scale)


def _arguments(contrast: Contrast, link: Link) -> tuple[Any, ...]:
    """Those of ops.loss."""
    from taufree.backends.fused.row_passes import EXP, ODDS, POWER, SCALE

    kind, delta = SCALE, 0.0
    if isinstance(link, LogOdds):
        gain, delta = link.gain, link.resolution
        if isinstance(gain, Tensor):  # whatever it is: to look would be to wait
            kind, scale = POWER, gain.to(contrast.anchors.device, torch.float32).reshape(1)
        else:
            kind = ODDS if gain == 1 else POWER
            scale = contrast.anchors.new_full((int(kind == POWER),), gain, dtype=torch.float32)
    elif isinstance(link, Temperature):
        scale = contrast.anchors.new_ones(1, dtype=torch.float32).div_(link.tau)
        if link.tau >= GENTLE and contrast.labels is None and contrast.own_negatives is None:
            kind = EXP
    else:
        one = torch.ones(1, dtype=torch.float32, device=contrast.anchors.device)
        scale = link.slope(one, one, one)
    groups = contrast.ids if contrast.labels is None else contrast.labels
    return (
        contrast.anchors.contiguous(),
        None if contrast.keys is None else contrast.keys.contiguous(),
        None if contrast.queue is None or not len(contrast.queue) else contrast.queue.contiguous(),
        _own(contrast, link, kind == ODDS),
        scale,
        None if groups is None else groups.contiguous(),
        None if contrast.labels is None else contrast.positive_count().double(),
        contrast.shift,
        contrast.in_batch,
        contrast.symmetric,
        kind,
        delta,
    )


def _own(contrast: Contrast, link: Link, odds: bool) -> Tensor | None:
    """The sum over each anchor's own negatives, [N]; row by row and exactly, they are few."""
    own = contrast.own_negatives
    if own is None or not own.numel():
        return None
    u, u_lack = normalize(contrast.anchors)
    logits = link.logit(*chords(u[:, None], u_lack[:, None], *normalize(own)))
    return logits.exp().sum(1) if odds else logits.logsumexp(1)
