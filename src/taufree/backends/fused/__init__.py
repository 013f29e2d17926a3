"""Fused GPU kernels: the loss and its gradient at linear memory, close to the rate of matrix products.

Same contract as the other backends; docs/explanation/kernels.md says how it works and how fast it is.
Triton is imported only when a loss is computed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taufree.backends.autograd import transformed
from taufree.contrast import Contrast
from taufree.links import Gain, Link, LogOdds, Temperature

MAX_COLUMNS = 4096  # of an input: a row must fit the registers of a block
# The smallest resolution above the rounding of a tile: of half-precision inputs, and of others.
MIN_RESOLUTION = {True: 1e-5, False: 1e-7}
MAX_FITTED = 8192  # anchors, of which each program has one block; more have been run by the interpreter alone
MAX_BITS = 1000  # weights are 2^-1000 to 2^1000, so that float64 holds their sums; others count as these


def unsupported(contrast: Contrast, link: Link) -> str | None:
    """Why the kernels cannot compute this loss, in one sentence, or None if they can."""
    # Written so that torch.compile of PyTorch 2.8 can follow: no next(), no isinstance of A | B.
    inputs = [x for x in contrast.inputs if x is not None]
    where = [*(x.device for x in inputs if not x.is_cuda), contrast.anchors.device][0]
    if reason := machine(where.type, where.index):
        return reason
    if wrong := {x.dtype for x in inputs} - {torch.float32, torch.float16, torch.bfloat16}:
        return f"the kernels take float32, float16 and bfloat16, not {wrong.pop()}."
    if contrast.anchors.shape[1] > MAX_COLUMNS:
        return f"the kernels take up to {MAX_COLUMNS} columns, got {contrast.anchors.shape[1]}."
    formula = link.formula
    if formula is None:
        return f"the kernels need a link with a formula, and {type(link).__name__} has none."
    if formula.kind == "log-odds" and any(p.requires_grad for p in link.parameters()):
        return f"the kernels learn the scale of a temperature, not a parameter of {type(link).__name__}."
    if link.per_anchor and (formula.kind != "linear" or contrast.symmetric or contrast.labels is not None):
        return "the kernels take a scale for each anchor of a temperature, in losses of one direction."
    finest = MIN_RESOLUTION[all(x.dtype.itemsize == 2 for x in inputs)]
    if formula.kind == "log-odds" and formula.resolution < finest:
        return f"the kernels need a resolution of at least {finest:g} here, got {formula.resolution:g}."
    if contrast.bias is None and _most_bits(link) + contrast.hardness / math.log(2) > MAX_BITS:
        return f"the kernels take weights up to 2^{MAX_BITS}, and {link} has larger ones."
    return None


def _most_bits(link: Link) -> float:
    """Of the weights of a link whose scale is a number; 0 for one whose scale only the device knows."""
    if isinstance(link, LogOdds) and not isinstance(link.gain, Tensor):
        return link.gain * math.log2(2 / link.resolution + 1)
    if isinstance(link, Temperature) and not isinstance(link.tau, Tensor):
        return 1 / (link.tau * math.log(2))
    return 0.0


def machine(device: str, index: int | None) -> str | None:
    """Why the kernels cannot run on this machine, for inputs on that device, or None if they can."""
    try:
        import triton
        from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: F401
    except ImportError:
        return "Triton 3.4 or newer is not installed."
    if triton.knobs.runtime.interpret:
        return None
    if device != "cuda":
        return f"the kernels run on a CUDA device, not on {device}."
    if torch.version.hip:  # where PyTorch says "cuda" as well
        return "the kernels have instructions of NVIDIA's GPUs, this is one of AMD's."
    if torch.cuda.get_device_capability(index) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or newer."
    return None


# What torch.compiler.assume_constant_result does, without its import of the whole compiler: to torch.compile
# the answer is a constant, and not code that would break the graph.
machine._dynamo_marked_constant = True  # type: ignore[attr-defined]


def can_fit(contrast: Contrast, link: Link, gain: Gain) -> bool:
    """Whether kernels can take the step of a fitted gain (fit.py): of pairs or views, with or without ids."""
    anchors, keys = contrast.anchors, contrast.keys
    if torch.compiler.is_compiling() or transformed() or link.formula is None or contrast.n > MAX_FITTED:
        return False
    if not contrast.in_batch or contrast.labels is not None or contrast.queue is not None:
        return False
    if contrast.own_negatives is not None or contrast.bias is not None:
        return False
    if gain.log_gain.device != anchors.device:  # before the first step
        return False
    given = [x for x in (anchors, keys, contrast.ids, gain.log_gain) if x is not None]
    if any(type(x.data) is not Tensor for x in given):  # fake tensors and the like have no memory
        return False
    if any(x.dtype.itemsize > 4 for x in (anchors, keys) if x is not None):
        return False
    return machine(anchors.device.type, anchors.device.index) is None


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    if contrast.bias is not None:
        from taufree.backends.fused import sigmoid

        return sigmoid.loss(contrast, link, weights)
    from taufree.backends.fused import op
    from taufree.backends.fused.arguments import arguments_of

    arguments = arguments_of(contrast, link)
    weights = weights.float() if isinstance(weights, Tensor) else weights
    return op.loss(weights, arguments, contrast.tracker)
