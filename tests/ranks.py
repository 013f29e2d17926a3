"""What the processes of tests/test_distributed.py do: each is a rank, and writes what it found as JSON.

Every rank makes the whole batch from one seed, computes the loss on it as a single process would, and its own
part of it together with the others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import taufree
from taufree import LearnableTemperature, LogOdds, Temperature, distributed
from taufree.backends import blockwise

LINKS = {
    "odds": lambda: LogOdds(),
    "gain": lambda: LogOdds(gain=2.0),
    "tau": lambda: Temperature(0.1),
    "learned": lambda: LearnableTemperature(0.2),
}
CALLS = {  # function, tensors, options
    "one-way": ("info_nce", "ab", {}),
    "symmetric": ("info_nce", "ab", {"symmetric": True}),
    "symmetric, ids": ("info_nce", "ab", {"symmetric": True, "ids": 3}),
    "fixed keys": ("info_nce", "aB", {"ids": 3}),
    "queue": ("info_nce", "abq", {}),
    "queue and batch": ("info_nce", "abq", {"symmetric": True, "in_batch": True}),
    "fixed queue": ("info_nce", "abQ", {"in_batch": True}),
    "own": ("info_nce", "abo", {}),
    "own and batch": ("info_nce", "abo", {"symmetric": True, "in_batch": True}),
    "nt_xent": ("nt_xent", "ab", {}),
    "nt_xent, ids": ("nt_xent", "ab", {"ids": 3}),
    "sup_con": ("sup_con", "a", {"labels": 4}),
    "sup_con, many labels": ("sup_con", "a", {"labels": 40}),
}
REDUCTIONS = ("mean", "sum", "none")
# Batch and queue sizes by rank, and the dtype.
WORLDS = {
    2: ([6, 6], [3, 3], torch.float32),
    3: ([5, 1, 7], [2, 0, 4], torch.float64),
    4: ([2, 5, 1, 4], [1, 3, 2, 2], torch.float32),
}
WAYS = ("gather", "ring")


def cases(world, call, way):
    """All links and reductions on two ranks, some on more: (link, reduction) by name."""
    links = ("odds", "learned") if world > 2 or way == "reference" else tuple(LINKS)
    reductions = REDUCTIONS if world < 4 else ("mean",)
    return {f"{call}, {x}, {y}, {way}": (x, y) for x, y in itertools.product(links, reductions)}


def whole(call, sizes, queues, dtype, d=16):
    """The tensors and options of all ranks together; some rows of different ranks are nearly alike."""
    function, names, options = CALLS[call]
    n, generator = sum(sizes), torch.Generator().manual_seed(7)
    a, b = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    b = a + 0.7 * b
    b[0] = 1.5 * a[n - 1] + (0.0 if dtype == torch.float64 else 0.1 * b[n - 1])
    a[1] = a[n - 2] + 0.1 * b[2]
    made = {"a": a, "b": b, "q": torch.randn(sum(queues), d, generator=generator, dtype=torch.float64)}
    made["o"] = torch.randn(n, 2, d, generator=generator, dtype=torch.float64)
    tensors = [made[name.lower()].to(dtype).requires_grad_(name.islower()) for name in names]
    options = {
        key: torch.randint(0, value, (n,), generator=generator) if key in ("ids", "labels") else value
        for key, value in options.items()
    }
    each = torch.rand(2 * n, generator=generator, dtype=torch.float64).to(dtype)
    return function, tensors, options, each


def own(x, name, sizes, queues, rank):
    """This rank's rows of a tensor of all ranks."""
    counts = queues if name in "qQ" else sizes
    return x.detach().split(counts)[rank].clone().requires_grad_(x.requires_grad)


def compare(call, link, reduction, rank, world, backend, dtype=None):
    """Relative errors of the loss and of every gradient against one process on the whole batch.

    A rank's rows get W times their gradient, which DDP's averaging divides by W; with "none" each rank
    differentiates its own rows' part of the sum.
    """
    sizes, queues, usual = WORLDS[world]
    function, tensors, options, each = whole(call, sizes, queues, dtype or usual)
    one, several = (LINKS[link]().to(usual) for _ in range(2))
    views = 2 if function == "nt_xent" else 1
    n = sum(sizes)
    loss = getattr(taufree, function)(*tensors, **options, link=one, reduction=reduction, backend="reference")
    names = CALLS[call][1]
    mine = [own(x, name, sizes, queues, rank) for x, name in zip(tensors, names, strict=True)]
    mine_options = {
        k: own(v, k, sizes, queues, rank) if isinstance(v, torch.Tensor) else v for k, v in options.items()
    }
    found = getattr(taufree, function)(
        *mine, **mine_options, link=several, reduction=reduction, gather_distributed=True, backend=backend
    )
    factor, total = world, torch.tensor(1.0 if reduction == "mean" else views * n)
    if reduction == "none":
        weights = each[: views * n].reshape(views, n)
        own_weights = torch.cat([w.split(sizes)[rank] for w in weights])
        expected = torch.cat([row.split(sizes)[rank] for row in loss.detach().reshape(views, n)])
        (loss * weights.flatten()).sum().backward()
        (found * own_weights).sum().backward()
        factor = 1
    else:
        expected = loss.detach()
        loss.backward()
        found.backward()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    errors = [error(found.detach(), expected)]
    for x, y, name in zip(tensors, mine, names, strict=True):
        if x.requires_grad:
            assert y.grad.dtype == y.dtype
            errors.append(error(y.grad / factor, own(x.grad, name, sizes, queues, rank), x.grad))
    for p, q in zip(one.parameters(), several.parameters(), strict=True):
        dist.all_reduce(q.grad)
        errors.append(error(q.grad / factor, p.grad, total))  # its terms cancel: what counts is their number
    return errors


def error(found, expected, scale=None):
    norm = (expected if scale is None else scale).double().norm()
    return float((found.double() - expected.double()).norm() / norm.clamp(min=1e-12))


@contextlib.contextmanager
def forced(way):
    """The exchange that is to be tested, whatever the size."""
    before, distributed.GATHERED = distributed.GATHERED, -1 if way == "ring" else 2**60
    try:
        yield
    finally:
        distributed.GATHERED = before


@contextlib.contextmanager
def counted():
    """Which collectives are called, in order, with the bytes that this rank receives by each."""
    calls, real = [], {}

    def wrap(name, received):
        real[name] = getattr(dist, name)

        def call(*args, **kwargs):
            calls.append([name, received(*args)])
            return real[name](*args, **kwargs)

        setattr(dist, name, call)

    wrap("all_gather_into_tensor", lambda out, x: out.nbytes)
    wrap("all_to_all_single", lambda out, x, *_: out.nbytes)
    wrap("reduce_scatter_tensor", lambda out, x: x.nbytes)
    wrap("all_reduce", lambda x: x.nbytes)
    wrap("batch_isend_irecv", lambda ops: sum(op.tensor.nbytes for op in ops) // 2)
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


def count_collectives(rank, world):
    found = {}
    rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))
    for name, loss in {
        "one-way": lambda a, b: taufree.info_nce(a, b, gather_distributed=True, backend="blockwise"),
        "symmetric": lambda a, b: taufree.info_nce(
            a, b, symmetric=True, gather_distributed=True, backend="blockwise"
        ),
        "nt_xent": lambda a, b: taufree.nt_xent(a, b, gather_distributed=True, backend="blockwise"),
        "sup_con": lambda a, b: taufree.sup_con(
            a, torch.arange(8), gather_distributed=True, backend="blockwise"
        ),
    }.items():
        for way in WAYS:
            a, b = rows.clone().requires_grad_(), rows.flip(0).clone().requires_grad_()
            with forced(way), counted() as calls:
                value = loss(a, b)
                forward = len(calls)
                value.backward()
            found[f"{name}, {way}"] = [calls[:forward], calls[forward:]]
    return found


class Model(torch.nn.Module):
    """An encoder and its loss, whose link learns."""

    def __init__(self, checkpoint=False, **options):
        super().__init__()
        torch.manual_seed(3)
        self.encoder = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        self.loss = taufree.InfoNCE(symmetric=True, link=LearnableTemperature(0.2), **options)
        self.checkpoint = checkpoint

    def encode(self, x):
        if self.checkpoint:
            return torch.utils.checkpoint.checkpoint(self.encoder, x, use_reentrant=False)
        return self.encoder(x)

    def forward(self, a, b):
        return self.loss(self.encode(a), self.encode(b))


def train(rank, world, variant):
    """Gradients under DDP over two accumulated batches, against one process."""
    sizes = WORLDS[world][0]
    batches = torch.randn(2, 2, sum(sizes), 6, generator=torch.Generator().manual_seed(1))
    single = Model(backend="reference")
    for a, b in batches:
        single(a, b).backward()
    model = Model(variant == "checkpoint", gather_distributed=True)
    module = torch.compile(model, backend="aot_eager") if variant == "compile" else model
    several = DistributedDataParallel(module, find_unused_parameters=False)
    own_batches = [[x.split(sizes)[rank] for x in batch] for batch in batches]
    with several.no_sync():
        several(*own_batches[0]).backward()
    several(*own_batches[1]).backward()
    return [error(p.grad, q.grad) for p, q in zip(model.parameters(), single.parameters(), strict=True)]


def mismatch(rank, change):
    """What a call raises when rank 1 makes another one."""
    odd = rank == 1
    d, dtype = (6 if odd and change == "columns" else 5), torch.float64 if odd and change == "dtype" else None
    options = {"reduction": "sum" if odd and change == "reduction" else "mean"}
    options["link"] = Temperature(0.3 if odd and change == "link" else 0.2)
    if odd and change == "ids":
        options["ids"] = torch.arange(4)
    a, b = torch.ones(4, d, dtype=dtype), torch.ones(4, d, dtype=dtype)
    extra = [torch.ones(2, d)] if odd and change == "negative_keys" else []
    try:
        taufree.info_nce(a, b, *extra, in_batch=True, **options, gather_distributed=True)
    except ValueError as problem:
        return str(problem)
    return "nothing"


def second_derivative(rank, world):
    """Of the reference, against one process; and what the others say."""
    sizes = WORLDS[world][0]
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64) for _ in range(2))
    x = a.clone().requires_grad_()
    (first,) = torch.autograd.grad(taufree.nt_xent(x, b, backend="reference"), x, create_graph=True)
    (expected,) = torch.autograd.grad((first * b).sum(), x)
    x, y = a.split(sizes)[rank].clone().requires_grad_(), b.split(sizes)[rank]
    loss = taufree.nt_xent(x, y, gather_distributed=True, backend="reference")
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad((first * y).sum(), x)
    return error(second / world, expected.split(sizes)[rank])


def backward_twice(rank):
    a, b = (
        torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * i + rank), requires_grad=True)
        for i in range(2)
    )
    loss = taufree.info_nce(a, b, symmetric=True, gather_distributed=True, backend="blockwise")
    first = torch.autograd.grad(loss, (a, b), retain_graph=True)
    second = torch.autograd.grad(3 * loss, (a, b))
    return max(error(y, 3 * x) for x, y in zip(first, second, strict=True))


def everything(rank, world):
    """All that a world of this size is asked to do."""
    found = {}
    for call, way in itertools.product(CALLS, (*WAYS, "reference")):
        backend = "reference" if way == "reference" else "blockwise"
        for case, (link, reduction) in cases(world, call, way).items():
            with forced(way):
                found[case] = compare(call, link, reduction, rank, world, backend)
    for variant in ("plain", "checkpoint", *(["compile"] if world == 2 else [])):
        found[f"train, {variant}"] = train(rank, world, variant)
    found["second derivative"] = second_derivative(rank, world)
    found["backward twice"] = backward_twice(rank)
    found["collectives"] = count_collectives(rank, world)
    found["largest"] = largest(world)
    for change in ("columns", "dtype", "reduction", "link", "ids", "negative_keys"):
        found[f"mismatch, {change}"] = mismatch(rank, change)
    dist.barrier()
    if rank == 0:  # the others leave
        try:
            taufree.nt_xent(torch.eye(4), torch.eye(4), gather_distributed=True)
        except RuntimeError as problem:
            found["alone"] = str(problem)
    return found


def kernels(rank, world):
    """The fused kernels, by Triton's interpreter."""
    from taufree.backends.triton import launch

    launch.tile_config = lambda kind, labels, mode: launch.Config(16, 16, 64)
    found = {}
    for call, link, way in itertools.product(CALLS, LINKS, WAYS):
        every = call in ("symmetric, ids", "nt_xent", "sup_con")
        if link == "odds" or every or (link == "learned" and way == "gather"):
            with forced(way):
                found[f"{call}, {link}, {way}"] = compare(call, link, "mean", rank, world, "triton")
    for call, way in itertools.product(("queue and batch", "sup_con"), WAYS):
        with forced(way):
            found[f"{call}, bfloat16, {way}"] = compare(
                call, "odds", "none", rank, world, "triton", torch.bfloat16
            )
    return found


class Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor made has."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return result


def largest(world):
    """Elements of the largest tensor that a rank makes, of 32 rows x 2 columns on each rank."""
    found = {}
    for way in WAYS:
        a, b = (torch.randn(32, 2, requires_grad=True) for _ in range(2))
        with forced(way), Largest() as seen:
            taufree.info_nce(a, b, symmetric=True, gather_distributed=True, backend="blockwise").backward()
            taufree.nt_xent(a, b, gather_distributed=True, backend="blockwise").backward()
        found[way] = seen.numel
    return found


def run(rank, work, worlds, ports, folder):
    """``work`` in one world after the other; ranks that a world does not have wait no longer."""
    torch.set_num_threads(1)
    blockwise.TILE = 4
    for world, port in zip(worlds, ports, strict=True):
        if rank < world:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            dist.init_process_group("gloo", rank=rank, world_size=world)
            found = work(rank, world)
            dist.destroy_process_group()
            (Path(folder) / f"{world}-{rank}.json").write_text(json.dumps(found))
