"""Precision of products, exact similarities, and unit vectors for any finite input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from taufree.dtypes import wide_dtype

_lock = threading.Lock()
_wanted: dict[object, str] = {}  # the precision that each open context wants, the latest last
_restore: list[Callable[[], None]] = []  # what the last context to close calls


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """float32 matrix products as ``torch.set_float32_matmul_precision`` says; as before afterwards.

    The setting belongs to the whole process: of several threads the first to enter saves it, and the last to
    leave restores it.
    """
    me = object()
    with _lock:
        if not _wanted:
            _restore.append(_restorer())
        _wanted[me] = precision
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        with _lock:
            del _wanted[me]
            if _wanted:
                torch.set_float32_matmul_precision(list(_wanted.values())[-1])
            else:
                _restore.pop()()


def _restorer() -> Callable[[], None]:
    """A function that restores the precision of float32 matrix products to what it is now.

    Newer PyTorch has ``fp32_precision`` for each library. The older functions change it too, and raise where
    the libraries differ.
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        before = "highest"
    libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    own = [(library, library.fp32_precision) for library in libraries if hasattr(library, "fp32_precision")]

    def restore() -> None:
        torch.set_float32_matmul_precision(before)
        for library, value in own:
            library.fp32_precision = "none"  # which follows the setting for all of PyTorch
            if library.fp32_precision != value:
                library.fp32_precision = value

    return restore


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the precision of their inputs, whatever autocast says; the meta device has none."""
    if device.type == "meta" or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type)):
        return _AS_IT_IS
    return torch.autocast(device.type, enabled=False)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in the precision of their inputs, whatever autocast or TF32 settings say."""
    if _already_full(device):  # of small batches, setting it again takes longer than a product
        return _AS_IT_IS
    return _full_precision(device)


_AS_IT_IS = nullcontext()


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    with float32_products("highest"), no_autocast(device):
        yield


def _already_full(device: torch.device) -> bool:
    if _wanted or device.type == "meta" or torch.is_autocast_enabled(device.type):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # newer PyTorch, where the libraries differ
        return False


def shortest(dtype: torch.dtype) -> float:
    """The length below which a row of this dtype is no longer stretched to length 1.

    The gradient of a normalised row grows like 1/length: below this length it would leave the
    dtype's range. 1e-3 for float16, 2e-37 for float32 and bfloat16.
    """
    return 64 / torch.finfo(dtype).max


def lengths(x: Tensor, origin: torch.dtype) -> tuple[Tensor, Tensor]:
    """What to divide each row by to make it a unit row, and its deficit, 1 - (its length then)^2; [..., 1].

    ``x`` has the device's widest dtype, ``origin`` is that of the input it comes from. The deficit is
    exactly 0 but for rows shorter than :func:`shortest`, whose cosines fade to 0. The divisor of an
    all-zero row is inf: the row stays zero, its cosines are 0, it gets no gradient.
    """
    least = shortest(origin)
    top: Tensor | float = 1.0
    if origin == x.dtype:  # squares may leave the range, so scale by the largest entry first
        top = torch.linalg.vector_norm(x.detach(), torch.inf, dim=-1, keepdim=True).clamp(min=least)
        x = x / top
    square = x.square().sum(-1, keepdim=True)
    zero = square == 0
    length = square.masked_fill(zero, 1).sqrt() * top  # filled: the root has no derivative at 0
    deficit = 1 - (length / least).clamp(max=1).square()
    return length.clamp(min=least).masked_fill(zero, torch.inf), deficit.masked_fill(zero, 1)


def normalize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows [..., D] in the device's widest dtype, and their deficits [..., 1]; differentiable."""
    origin, x = x.dtype, x.to(wide_dtype(x.device))  # first: the parts of the gradient add up in it
    divisor, deficit = lengths(x, origin)
    return x / divisor, deficit


def chords(u: Tensor, u_deficit: Tensor, v: Tensor, v_deficit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, 1 - c and 1 + c of rows u against rows v, over the last dimension.

    Half the squared chord, |u - v|^2 / 2 = 1 - c for unit vectors: no digit is lost as c
    approaches 1, and likewise |u + v|^2 / 2 = 1 + c. ``deficit`` corrects rows that are too short.
    :func:`similarity` is the same for all pairs of two sets.
    """
    deficit = (u_deficit + v_deficit).squeeze(-1) / 2
    gap = (u - v).square().sum(-1) / 2 + deficit
    rise = (u + v).square().sum(-1) / 2 + deficit
    return (rise - gap) / 2, gap, rise


def similarity(u: Tensor, u_deficit: Tensor, v: Tensor, v_deficit: Tensor) -> tuple[Tensor, Tensor]:
    """1 - c and 1 + c of all rows u [N, D] against all rows v [M, D], each [N, M]; differentiable.

    The half squared chord (|u|^2 + |v|^2)/2 - u.v without its cancellation: each vector is split into a
    coarse part, a multiple of 2^-25 (in float32 2^-11), and a small rest. Products and sums of coarse
    parts are exact, so their difference is too, and the rests only add a correction of full accuracy.
    """
    (h, h_square, u_rest), (k, k_square, v_rest) = _split(u), _split(v)
    with no_autocast(u.device):  # which leaves float64 alone, but not every device has that
        coarse = h @ k.T
        rest = torch.cat([h, u - h], 1) @ torch.cat([v - k, v], 1).T
    square = h_square / 2 + k_square.T / 2
    square_rest = (u_rest + u_deficit) / 2 + (v_rest + v_deficit).T / 2
    return (square - coarse) + (square_rest - rest), (square + coarse) + (square_rest + rest)


def _split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The coarse part of x, its squared length, and the difference of that to the squared length of x."""
    one = 2.0 ** (25 if x.dtype == torch.float64 else 11)
    coarse = (x.detach() * one).round() / one
    return coarse, coarse.square().sum(-1, keepdim=True), ((x - coarse) * (x + coarse)).sum(-1, keepdim=True)
