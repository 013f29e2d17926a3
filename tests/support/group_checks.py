"""What four ranks in two process groups of two do: each group against one process on its own batches."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taufree
from tests.support import ranks
from tests.support.rank_checks import Model
from tests.support.ranks import WAYS, compare, error, forced

GROUPS = ([0, 2], [1, 3])  # whose ranks have another number in the world
SIZES = ([2, 5], [6, 1]), ([1, 3], [0, 2])  # of batches and of queues, by group
CASES = [
    *itertools.product(("symmetric", "nt_xent", "sup_con"), ("odds", "learned", "calibrated", "fitted")),
    *itertools.product(("queue, ids", "queue and batch, ids", "own"), ("odds", "fitted")),
]


def gradients(model, wrap, batches, rank):
    """Of a model that this wraps, on this rank's part of the batches."""
    several = wrap(model)
    several(*(x.split(SIZES[0][rank % 2])[rank // 2] for x in batches)).backward()
    return [p.grad for p in model.parameters()]


def train(rank, group):
    """Gradients after the averaging of DDP over the group and over the world, plain and compiled."""
    batches = [
        torch.randn(2, sum(sizes), 6, generator=torch.Generator().manual_seed(i))
        for i, sizes in enumerate(SIZES[0])
    ]
    alone = []
    for a, b in batches:
        single = Model(backend="reference")
        single(a, b).backward()
        alone.append([p.grad for p in single.parameters()])
    over = {"group": group, "world": None}
    expected = {"group": alone[rank % 2], "world": [(x + y) / 2 for x, y in zip(*alone, strict=True)]}
    found = {}
    for name, compiled in (("group", False), ("world", False), ("group", True)):
        model = Model(gather_distributed=group)

        def wrap(model, ddp=over[name], compiled=compiled):
            module = torch.compile(model, backend="aot_eager") if compiled else model
            return DistributedDataParallel(module, process_group=ddp)

        grads = gradients(model, wrap, batches[rank % 2], rank)
        pairs = zip(grads, expected[name], strict=True)
        found[f"{name}{', compiled' if compiled else ''}"] = [error(x, y) for x, y in pairs]
    return found


def queues(rank, group):
    """The contents of queues of a group and of the world, and of one inside of a module that DDP wraps."""
    found = {}
    for name, gather in {"group": group, "world": True}.items():
        queue = taufree.NegativeQueue(8, 2, dtype=torch.float64, gather_distributed=gather)
        copied = copy.deepcopy(queue)
        for step in range(2):
            n = rank + 1
            keys = torch.tensor([[1.0, 10 * step + rank]]).expand(n, 2)
            copied.enqueue(keys, ids=100 * step + 10 * rank + torch.arange(n))
        found[name] = [copied.ids.tolist(), (copied.keys[:, 1] / copied.keys[:, 0]).tolist(), queue.filled]
    model = Model()
    model.queue = taufree.NegativeQueue(6, 4, gather_distributed=True)
    several = DistributedDataParallel(model)
    for step in range(3):
        x = torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = several(*x)
        loss = loss + taufree.info_nce(model.encode(x[0]), model.encode(x[1]), model.queue.keys)
        model.queue.enqueue(model.encode(x[1]))
        loss.backward()
    found["in DDP"] = [model.queue.filled, model.queue.keys.tolist()]
    return found


def raised(call, *args, **options):
    try:
        call(*args, **options)
    except (TypeError, ValueError) as problem:
        return str(problem)
    return "nothing"


def everything(rank, world):
    group = [dist.new_group(members) for members in GROUPS][rank % 2]
    first_two = dist.new_group([0, 1])
    found = {"errors": {}}
    ranks.LINKS["fitted"] = taufree.FittedLogOdds
    ranks.WORLDS[2] = (SIZES[0][rank % 2], SIZES[1][rank % 2], torch.float64)
    for (call, link), way in itertools.product(CASES, (*WAYS, "reference")):
        backend = "reference" if way == "reference" else "blockwise"
        with forced(way):
            case = compare(call, link, "mean", rank // 2, 2, backend, gather=group)
        found["errors"][f"{call}, {link}, {way}"] = case
    found["training"] = train(rank, group)
    found["queues"] = queues(rank, group)
    x = torch.eye(3 + rank // 2, 4 + rank // 2)
    found["mismatch"] = raised(taufree.nt_xent, x, x, gather_distributed=group)
    queue = taufree.NegativeQueue(4, 4, gather_distributed=group)
    found["queue mismatch"] = raised(queue.enqueue, torch.eye(4), torch.arange(4) if rank > 1 else None)
    if rank > 1:
        found["outside"] = [
            raised(taufree.nt_xent, x, x, gather_distributed=first_two),
            raised(taufree.NTXent, gather_distributed=first_two),
            raised(taufree.NegativeQueue, 4, 4, gather_distributed=first_two),
        ]
    dist.barrier()
    return found
