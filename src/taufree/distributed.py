"""What ranks exchange: the only place that calls torch.distributed.

Rows of all ranks are numbered rank by rank. The rows of the other ranks come in one of two ways:

- ``Gather``: one all-gather, then all of them are here, O(N D) memory; gradients with respect to them
  return to their ranks by one reduce-scatter.
- ``Ring``: one rank's rows at a time go round from rank to rank while the ones before are worked on,
  O(N D / W) memory; their gradients follow one step behind, and are complete when back at their rank.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

MAX_GATHERED_BYTES = 4 * 2**30  # of all ranks' rows and their gradients; larger ones go by the ring

Work: TypeAlias = Callable[[Tensor, range], Tensor | None]
GatherLike: TypeAlias = "bool | dist.ProcessGroup"
"""Which ranks a loss gathers: none but this one, all of the default process group, or those of a group."""


def check_gather(gather: object) -> None:
    """Raises unless ``gather`` is a bool, or a process group with this rank in it."""
    if isinstance(gather, bool) or (dist.is_available() and isinstance(gather, dist.ProcessGroup)):
        return
    outside = dist.GroupMember.NON_GROUP_MEMBER if dist.is_available() else None  # what new_group gives then
    if outside is not None and type(gather) is type(outside) and gather == outside:
        raise ValueError(
            "gather_distributed must be a process group that this rank is a member of, got one of others."
        )
    raise TypeError(
        f"gather_distributed must be True, False or a torch.distributed.ProcessGroup, "
        f"got {type(gather).__name__}."
    )


def active(gather: GatherLike = True) -> bool:
    """Whether there is more than this process to gather from."""
    if not isinstance(gather, bool):
        return gather.size() > 1
    return gather and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _Kept:
    """What a module gathers, the same for its copies; a process group can be neither copied nor pickled."""

    def __init__(self, gather: GatherLike) -> None:
        self.gather = gather

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self.gather, bool):
            raise TypeError(
                "gather_distributed must be True or False in a module that is pickled, got a process group, "
                "which belongs to its process; save the state_dict instead."
            )
        return _Kept, (self.gather,)


class Gathering(nn.Module):
    """A module that gathers; copies of it share its process group."""

    def __init__(self, gather_distributed: GatherLike) -> None:
        super().__init__()
        self.gather_distributed = gather_distributed

    @property
    def gather_distributed(self) -> GatherLike:
        """See ``info_nce``."""
        return self._kept.gather

    @gather_distributed.setter
    def gather_distributed(self, gather: GatherLike) -> None:
        check_gather(gather)
        self._kept = _Kept(gather)

    def extra_repr(self) -> str:
        """Empty for a module that does not gather."""
        gather = self.gather_distributed
        if not isinstance(gather, bool):
            return f"gather_distributed=<process group of {gather.size()}>"
        return "gather_distributed=True" if gather else ""


def from_first(text: str = "") -> str:
    """Rank 0's text, on all ranks, without a process group: through torchrun's store."""
    from torch.distributed.rendezvous import rendezvous  # not in a PyTorch without torch.distributed

    store, rank, _ = next(rendezvous("env://"))
    key = f"taufree/{next(_text_number)}"
    if rank == 0:
        store.set(key, text)
    return str(store.get(key).decode())


_text_number = itertools.count()


def all_rows(x: Tensor, gather: GatherLike = True) -> Tensor:
    """The rows x [n, ...] of all ranks, [N, ...], without a gradient; own ones where there is but one."""
    if not active(gather):
        return x.detach()
    ranks = Ranks(x.device, gather)
    count = torch.tensor([len(x)], device=x.device)
    sizes = ranks.gather(count, [1] * ranks.world, "the batch sizes").wait().tolist()
    return ranks.gather(x.detach(), sizes, "the rows of all ranks").wait()


def numbered(rows: Tensor, gather: GatherLike) -> Tensor:
    """The numbers ``rows`` of this rank's rows, each times W plus the rank: no two ranks have the same."""
    ranks = Ranks(rows.device, gather)
    return rows * ranks.world + ranks.rank


def exchange(ranks: Ranks, x: Tensor, sizes: Sequence[int]) -> Gather | Ring:
    """How the other ranks' rows come here: gathered while they and a float32 gradient of each fit
    ``MAX_GATHERED_BYTES``, since a few large messages are quickest; else by the ring."""
    needed = sum(sizes) * x.shape[1] * (x.element_size() + 4)
    ring = needed > MAX_GATHERED_BYTES and min(sizes) > 0  # an empty message cannot be sent round
    return (Ring if ring else Gather)(ranks, x, sizes)


class Pending:
    """A tensor that is being received, and what is sent for it; padding is removed on arrival."""

    def __init__(self, what: str, works: Sequence[Any], result: Tensor, sent: Tensor) -> None:
        self.what, self.works, self.result, self.sent = what, works, result, sent
        self.sizes: Sequence[int] | None = None

    def wait(self) -> Tensor:
        with _naming(self.what):
            for work in self.works:
                work.wait()
        if self.sizes is not None:
            batches = zip(self.result, self.sizes, strict=True)
            self.result, self.sizes = torch.cat([rows[:n] for rows, n in batches]), None
        self.works = ()
        return self.result


class Ranks:
    """All ranks of a process group, True for the default one, numbered from 0; every method must be called by
    all of them alike."""

    def __init__(self, device: torch.device, gather: GatherLike = True) -> None:
        self.group = None if isinstance(gather, bool) else gather
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.device = device

    def agree(self, call: str, *sizes: int) -> list[list[int]]:
        """All ranks' ``sizes``, by size and rank; raises on every rank unless all describe the same call.

        One all-gather of a few integers, among them a digest of the description; only if digests differ are
        the descriptions themselves sent.
        """
        digest = int.from_bytes(hashlib.blake2b(call.encode(), digest_size=7).digest(), "big")
        mine = torch.tensor([[digest, *sizes]], device=self.device)
        digests, *found = self.gather(mine, [1] * self.world, "the batch sizes").wait().T.tolist()
        if len(set(digests)) > 1:
            calls: list[str] = [""] * self.world
            dist.all_gather_object(calls, f"{call} (N = {sizes[0]})", group=self.group)
            described = "; ".join(f"rank {self.world_rank(i)} called {text}" for i, text in enumerate(calls))
            raise ValueError(f"gather_distributed needs the same call on every rank: {described}.")
        return found

    def gather(self, x: Tensor, sizes: Sequence[int], what: str) -> Pending:
        """The rows x [n, ...] of all ranks, [N, ...]; batches of different sizes travel padded."""
        most = max(sizes)
        shape = (self.world, most, *x.shape[1:])
        if 0 in shape:
            return Pending(what, [], x.new_empty(sum(sizes), *x.shape[1:]), x)
        mine = _padded(x.contiguous(), most)
        found = x.new_empty(shape)
        with _naming(what):  # as bytes, since not every backend has every dtype
            work = dist.all_gather_into_tensor(_bytes(found), _bytes(mine), group=self.group, async_op=True)
        if min(sizes) == most:
            return Pending(what, [work], found.flatten(0, 1), mine)
        pending = Pending(what, [work], found, mine)
        pending.sizes = sizes
        return pending

    def scatter(self, x: Tensor, sizes: Sequence[int], what: str) -> Tensor:
        """Of x [N, ...], summed over the ranks, the rows of this one [n, ...]."""
        most = max(sizes)
        if not x.numel():
            return x.new_empty(sizes[self.rank], *x.shape[1:])
        if min(sizes) != most:
            x = torch.cat([_padded(rows, most) for rows in torch.split(x, list(sizes))])
        mine = x.new_empty(most, *x.shape[1:])
        with _naming(what):
            dist.reduce_scatter_tensor(mine, x.contiguous(), group=self.group)
        return mine[: sizes[self.rank]]

    def swap(self, x: Tensor, sizes: Sequence[int], what: str) -> Tensor:
        """Every rank's x [N], for the rows of this one: [W, n]."""
        n = sizes[self.rank]
        found = x.new_empty(self.world, n)
        with _naming(what):
            dist.all_to_all_single(found.view(-1), x, [n] * self.world, list(sizes), group=self.group)
        return found

    def sum(self, x: Tensor, what: str) -> Tensor:
        with _naming(what):
            dist.all_reduce(x, group=self.group)
        return x

    def span(self, rank: int, sizes: Sequence[int]) -> range:
        """Which of all rows are a rank's."""
        first = sum(sizes[:rank])
        return range(first, first + sizes[rank])

    def world_rank(self, rank: int) -> int:
        """A rank's number in the default process group, by which messages are sent and errors name it."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class Gather:
    """All ranks' rows [N, D] at once."""

    def __init__(self, ranks: Ranks, x: Tensor, sizes: Sequence[int]) -> None:
        self.ranks, self.x, self.sizes = ranks, x, sizes
        self.found: Pending | None = None

    def start(self) -> None:
        """Begins the exchange; own pairs can be worked on meanwhile. The rows stay for the backward."""
        if self.found is None:
            self.found = self.ranks.gather(self.x, self.sizes, "the embeddings of all ranks")

    def visit(self, work: Work, give_back: torch.dtype | None = None) -> Tensor | None:
        """Calls ``work`` with rows of other ranks and which of all rows they are.

        If it gives back their gradients, of that dtype, the result is the sum of all ranks' for own rows.
        """
        self.start()
        assert self.found is not None
        rows = self.found.wait()
        own = self.ranks.span(self.ranks.rank, self.sizes)
        before, after = range(own.start), range(own.stop, len(rows))
        grads = [work(rows[span.start : span.stop], span) if span else None for span in (before, after)]
        if give_back is None:
            return None
        zeros = rows.new_zeros(len(own), *rows.shape[1:], dtype=give_back)
        parts = [part for part in (grads[0], zeros, grads[1]) if part is not None]
        return self.ranks.scatter(torch.cat(parts), self.sizes, "the gradients from all ranks")


class Ring:
    """One rank's rows at a time, from the rank before this one and on to the next."""

    def __init__(self, ranks: Ranks, x: Tensor, sizes: Sequence[int]) -> None:
        self.ranks, self.x, self.sizes = ranks, x.contiguous(), sizes
        self.coming: Pending | None = None

    def start(self) -> None:
        """Begins the exchange; own pairs can be worked on meanwhile."""
        self.coming = self._shift(self.x, self.ranks.rank, "embeddings")

    def visit(self, work: Work, give_back: torch.dtype | None = None) -> Tensor | None:
        """As ``Gather.visit``."""
        ranks = self.ranks
        back: Pending | None = None
        for step in range(1, ranks.world):
            assert self.coming is not None
            rows, owner = self.coming.wait(), (ranks.rank - step) % ranks.world
            self.coming = self._shift(rows, owner, "embeddings") if step + 1 < ranks.world else None
            grad = work(rows, ranks.span(owner, self.sizes))
            if give_back is not None and grad is not None:
                if back is not None:
                    grad += back.wait()
                back = self._shift(grad, owner, "gradients")
        return None if back is None else back.wait()

    def _shift(self, x: Tensor, owner: int, what: str) -> Pending:
        """Sends on what belongs to ``owner``'s rows; what comes belongs to those of the rank before it."""
        world, rank = self.ranks.world, self.ranks.rank
        following, previous = (self.ranks.world_rank(other % world) for other in (rank + 1, rank - 1))
        found = x.new_empty(self.sizes[(owner - 1) % world], *x.shape[1:])
        what = f"{what} from rank {previous}"
        with _naming(what):
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, _bytes(x.contiguous()), following, self.ranks.group),
                    dist.P2POp(dist.irecv, _bytes(found), previous, self.ranks.group),
                ]
            )
        return Pending(what, works, found, x)


def _padded(x: Tensor, rows: int) -> Tensor:
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def _bytes(x: Tensor) -> Tensor:
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # a single number may have any stride


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Adds to a collective's error what it waited for; often another rank has died or never called it."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"gather_distributed waited for {what}: {error}") from error
