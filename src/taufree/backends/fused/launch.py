"""How a kernel is launched, over and over, at little cost to the host."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_compiled: dict[tuple[Any, ...], Any] = {}


def start(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """kernel[(programs,)](*arguments, **options), at a third of the host's time from the second time on.

    What Triton compiles depends on the options, the tensors' dtypes and, for some, whether they begin at a
    multiple of 16 bytes; on other numbers these kernels are not specialised. The compiled kernel is kept by
    that.
    """
    key, device = [kernel, *options.values()], None
    for x, by_alignment in zip(arguments, _by_alignment(kernel), strict=False):
        if isinstance(x, Tensor):
            key.append((x.dtype, x.data_ptr() % 16) if by_alignment else x.dtype)
            device = device or x.device  # all are on one
        elif isinstance(x, TensorDescriptor):
            key.append(x.base.dtype)
    key.append(device)
    if found := _compiled.get(tuple(key)):
        found[programs, 1, 1](*arguments, *(options[name] for name in kernel.arg_names[len(arguments) :]))
    else:  # the interpreter compiles nothing and gives None
        # Triton's default for a * b + c changes with its versions; nothing here needs its two roundings.
        _compiled[tuple(key)] = kernel[(programs,)](*arguments, **options, enable_fp_fusion=True)


@cache
def _by_alignment(kernel: Any) -> list[bool]:
    """Of each parameter, whether the alignment of a tensor changes what is compiled."""
    parameters = getattr(kernel, "params", ())  # the interpreter's kernels have none and need no key
    return [not parameter.do_not_specialize_on_alignment for parameter in parameters]
