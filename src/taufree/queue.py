"""Keys of earlier batches as negatives: MoCo's memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from taufree.backends.autograd import uncompiled
from taufree.backends.numerics import normalize
from taufree.checks import check_float, check_integers
from taufree.distributed import Gathering, GatherLike, Ranks, active

NO_ID = torch.iinfo(torch.int64).min
MAX_NUMBERS = 2**59  # whose bytes torch can count in every dtype
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # that rows can be copied in


class NegativeQueue(Gathering):
    """The keys of the last batches, as negatives of the next ones (MoCo).

        loss = info_nce(query, key, queue.keys)
        queue.enqueue(key)

    A full queue replaces its oldest keys. The keys have no gradient and are stored as unit rows, which any
    ``dtype`` can hold. They are in the ``state_dict``. ``enqueue`` alone changes them, in training and in
    evaluation mode alike, and never waits for a GPU unless it gathers.

    An empty queue gives [0, D] keys: with no other negatives the loss and its gradient are 0.

    Args:
        size: how many keys it holds.
        dim: D, the columns of a key.
        dtype: what the keys are stored in.
        device: where they are stored.
        gather_distributed: True or a process group to enqueue the keys of all its ranks, rank 0's first, so
            that all have the same queue, also where their batches differ in size. The loss must not gather
            then: it would count each key once for every rank.

    Examples:
        >>> from taufree import info_nce
        >>> queue = NegativeQueue(4, 3)
        >>> queue.enqueue(torch.eye(3), ids=torch.tensor([5, 6, 7]))
        >>> query, key, ids = torch.eye(3)[:1], torch.ones(1, 3), torch.tensor([5])
        >>> round(info_nce(query, key, queue.keys, ids=ids, negative_ids=queue.ids).item(), 4)
        0.4292
        >>> queue.enqueue(key, ids)
        >>> queue.ids.tolist(), queue
        ([5, 6, 7, 5], NegativeQueue(4, 3, filled=4))
    """

    rows: Tensor
    row_ids: Tensor
    enqueued: Tensor

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        gather_distributed: GatherLike = False,
    ) -> None:
        super().__init__(gather_distributed)
        for name, value in {"size": size, "dim": dim}.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer of at least 1, got {type(value).__name__}.")
            if value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value}.")
        if size * dim > MAX_NUMBERS:
            name, value = max(("size", size), ("dim", dim), key=lambda one: one[1])
            bits = value.bit_length()  # the number itself may be longer than Python prints
            raise ValueError(
                f"{name} must be so small that size x dim is at most 2^59, got one of {bits} bits."
            )
        if dtype not in DTYPES:
            raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype}.")
        self.size, self.dim = size, dim
        with torch.inference_mode(False):  # what is made in inference mode can be changed nowhere else
            self.register_buffer("rows", torch.zeros(size, dim, dtype=dtype, device=device))
            self.register_buffer("row_ids", torch.full((size,), NO_ID, device=device))
            # How many keys came so far. The place of the next one is computed on the device; the host knows
            # ``filled`` alone, and compiled code whether it is ``full``, which changes once.
            self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64, device=device))
        self.filled, self.full = 0, False

    @property
    def keys(self) -> Tensor:
        """The keys it holds, [M, D], in no order of age: a copy, since ``enqueue`` may come before the loss's
        backward."""
        return self.rows.clone() if self.full else self._first(self.rows)

    @property
    def ids(self) -> Tensor:
        """Their ids, [M]; -2^63 for keys that came without."""
        return self.row_ids.clone() if self.full else self._first(self.row_ids)

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Adds keys [N, D], with ids [N] if given, in place of the oldest; of more than ``size`` the last."""
        check_float("keys", keys, like=("the queue", self.rows))
        if keys.dim() != 2 or keys.shape[1] != self.dim:
            raise ValueError(f"keys must have shape [N, {self.dim}], got {list(keys.shape)}.")
        if ids is not None:
            check_integers("ids", ids, keys)
        rows = normalize(keys.detach())[0].to(self.rows.dtype)
        numbers = self.row_ids.new_full((len(rows),), NO_ID) if ids is None else ids.long()
        if active(self.gather_distributed):
            rows, numbers = self._of_all_ranks(rows, numbers, ids is not None)
        n = len(rows)
        skipped = max(0, n - self.size)
        place = torch.arange(skipped, n, device=rows.device).add_(self.enqueued).remainder_(self.size)
        self.rows.index_copy_(0, place, rows[skipped:])
        self.row_ids.index_copy_(0, place, numbers[skipped:])
        self.enqueued.add_(n)
        if not self.full:
            self._fill(n)

    def reset(self) -> None:
        """Makes it empty."""
        self.enqueued.zero_()
        self.filled, self.full = 0, False

    @uncompiled
    def _of_all_ranks(self, rows: Tensor, ids: Tensor, with_ids: bool) -> tuple[Tensor, Tensor]:
        ranks = Ranks(rows.device, self.gather_distributed)
        kind = f"{str(rows.dtype)[6:]}, {'with' if with_ids else 'no'} ids"
        (sizes,) = ranks.agree(f"NegativeQueue({self.size}, {self.dim}).enqueue {kind}", len(rows))
        rows = ranks.gather(rows, sizes, "the keys of all ranks").wait()
        if not with_ids:
            return rows, ids.new_full((len(rows),), NO_ID)
        return rows, ranks.gather(ids, sizes, "the ids of all ranks").wait()

    # torch.compile would compile anew for every value of ``filled``.

    @uncompiled
    def _first(self, x: Tensor) -> Tensor:
        return x[: self.filled].clone()

    @uncompiled
    def _fill(self, n: int) -> None:
        self.filled = min(self.filled + n, self.size)
        self.full = self.filled == self.size

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        need = {name: list(x.shape) for name, x in self._buffers.items() if x is not None}
        given = {name: state_dict[prefix + name] for name in need if prefix + name in state_dict}
        got = {name: list(getattr(x, "shape", ())) for name, x in given.items()}
        if got and got != need:  # or rows of zeros would count as keys
            shapes = [", ".join(f"{name} {shape}" for name, shape in x.items()) for x in (need, got)]
            errors: list[str] = args[-1]
            errors.append(f"{prefix}keys of {self.size} x {self.dim} need {shapes[0]}, got {shapes[1]}.")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not self.enqueued.is_meta:
            self.filled = 0
            self._fill(int(self.enqueued.item()))

    def extra_repr(self) -> str:
        dtype = "" if self.rows.dtype == torch.float32 else f", dtype={self.rows.dtype}"
        gathers = f", {gathers}" if (gathers := super().extra_repr()) else ""
        return f"{self.size}, {self.dim}{dtype}, filled={self.filled}{gathers}"
