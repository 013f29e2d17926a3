"""One recorded step instead of hundreds of launches: CUDA graphs for work that is the same every time."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

WARM_UP_CALLS = 3
"""Calls with the same shapes before the recording, in which compilers and libraries choose their kernels."""


class Replayed(Generic[Result]):
    """``work(inputs)`` on a GPU, from the fourth call with the same shapes on as the replay of a CUDA graph.

    Each call does the work once, the first ones as they would have been done anyway, so that nothing is done
    for the recording alone; a compiler, which cannot work during a recording, knows the shapes by then. Work
    that waits for the device, as a branch on a tensor does, cannot be recorded; it is noticed in the last
    call before the recording and stays as it is.

    Args:
        work: takes tensors and gives tensors, which hold until the next call; it is recorded once for all
            calls with tensors of the same shapes. Whatever it changes (parameters, an optimizer's state) it
            must change in place.
    """

    def __init__(self, work: Callable[[Sequence[Tensor]], Result]) -> None:
        self._work = work
        self._calls: Counter[Sequence[torch.Size]] = Counter()
        self._recordings: dict[Sequence[torch.Size], _Recording[Result]] = {}
        self.waits = False
        """Whether the work waits for the device and is therefore not replayed."""

    def __call__(self, inputs: Sequence[Tensor] = ()) -> Result:
        if self.waits:
            return self._work(inputs)
        shapes = tuple(x.shape for x in inputs)
        self._calls[shapes] += 1
        if self._calls[shapes] <= WARM_UP_CALLS:
            return self._warm_up(inputs, last=self._calls[shapes] == WARM_UP_CALLS)
        if shapes not in self._recordings:
            self._recordings[shapes] = _Recording(self._work, inputs)
        return self._recordings[shapes].replay(inputs)

    def _warm_up(self, inputs: Sequence[Tensor], last: bool) -> Result:
        # On another stream than the default one, as the recording will be.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._watched(inputs) if last else self._work(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _watched(self, inputs: Sequence[Tensor]) -> Result:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self._work(inputs)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        self.waits = any("called a synchronizing CUDA operation" in str(one.message) for one in seen)
        return result


class _Recording(Generic[Result]):
    """A CUDA graph of the work with tensors of its own, which others are copied to."""

    def __init__(self, work: Callable[[Sequence[Tensor]], Result], inputs: Sequence[Tensor]) -> None:
        self._inputs = [x.clone() for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = work(self._inputs)

    def replay(self, inputs: Sequence[Tensor]) -> Result:
        for mine, x in zip(self._inputs, inputs, strict=True):
            mine.copy_(x)
        self._graph.replay()
        return self._result
