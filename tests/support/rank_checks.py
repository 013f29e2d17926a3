"""What a world of ranks is asked to do besides the comparisons of tests/support/ranks.py."""

from __future__ import annotations

import contextlib
import itertools
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taufree
from taufree import CalibratedLogOdds, LearnableTemperature, Temperature
from taufree.backends.blockwise import engine as blockwise
from taufree.stats import Tracker
from tests.support.largest import Largest
from tests.support.ranks import CALLS, LINKS, WAYS, WORLDS, cases, compare, error, forced

# Before, collectives take no tensors of torch.func.
FUNC_OVER_RANKS = torch.__version__ >= "2.10"


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


def count_collectives(rank, backend="blockwise"):
    options, found = {"gather_distributed": True, "backend": backend}, {}
    rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))
    for name, loss in {
        "one-way": lambda a, b: taufree.info_nce(a, b, **options),
        "symmetric": lambda a, b: taufree.info_nce(a, b, symmetric=True, **options),
        "nt_xent": lambda a, b: taufree.nt_xent(a, b, **options),
        "sup_con": lambda a, b: taufree.sup_con(a, torch.arange(8), **options),
        "calibrated": lambda a, b: taufree.nt_xent(a, b, link=CalibratedLogOdds(), **options),
        "sigmoid": lambda a, b: taufree.sigmoid_nce(a, b, **options),
        "tracked": lambda a, b: taufree.InfoNCE(symmetric=True, track=True, **options)(a, b),
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
    """Gradients over two accumulated batches, under DDP but for one variant, against one process."""
    sizes = WORLDS[world][0]
    batches = torch.randn(2, 2, sum(sizes), 6, generator=torch.Generator().manual_seed(1))
    single = Model(backend="reference")
    for a, b in batches:
        single(a, b).backward()
    model = Model(variant == "checkpoint", gather_distributed=True)
    if variant == "fsdp":
        fully_shard(model.encoder, mesh=init_device_mesh("cpu", (world,)))
        model.loss = DistributedDataParallel(model.loss)  # its link has a scalar, which FSDP does not take
        for batch in batches:
            model(*(x.split(sizes)[rank] for x in batch)).backward()
        grads = [p.grad.full_tensor() for p in model.encoder.parameters()]
        grads += [p.grad for p in model.loss.parameters()]
        return [error(g, q.grad) for g, q in zip(grads, single.parameters(), strict=True)]
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
    if change == "mode":
        options["link"] = CalibratedLogOdds().train(not odd)
    if odd and change == "tracker":
        options["_tracker"] = Tracker()
    if odd and change in ("ids", "balanced"):
        options[change] = torch.arange(4) if change == "ids" else True
    a, b = torch.ones(4, d, dtype=dtype), torch.ones(4, d, dtype=dtype)
    extra = [torch.ones(2, d)] if odd and change == "negative_keys" else []
    try:
        taufree.info_nce(a, b, *extra, in_batch=True, **options, gather_distributed=True)
    except ValueError as problem:
        return str(problem)
    return "nothing"


def second_derivative(rank, world):
    """Of the reference, against one process, by autograd and by torch.func; and what the others say."""
    sizes = WORLDS[world][0]
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(sum(sizes), 4, generator=generator, dtype=torch.float64) for _ in range(2))
    x = a.clone().requires_grad_()
    (first,) = torch.autograd.grad(taufree.nt_xent(x, b, backend="reference"), x, create_graph=True)
    (expected,) = torch.autograd.grad((first * b).sum(), x)
    x, y = a.split(sizes)[rank].clone().requires_grad_(), b.split(sizes)[rank]

    def loss(x, backend="reference"):
        return taufree.nt_xent(x, y, gather_distributed=True, backend=backend)

    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (second,) = torch.autograd.grad((first * y).sum(), x)
    again = second
    if FUNC_OVER_RANKS:
        again = torch.func.grad(lambda x: (torch.func.grad(loss)(x) * y).sum())(x.detach())
    (first,) = torch.autograd.grad(loss(x, "blockwise"), x, create_graph=True)
    try:
        torch.autograd.grad((first * y).sum() + x.sum(), x)
        told = "nothing"
    except RuntimeError as problem:
        told = str(problem)
    return [error(one / world, expected.split(sizes)[rank]) for one in (second, again)], told


def learned_bias(rank, world, **options):
    """The gradients of a bias and a scale that are learned, and the gain that is fitted, over all ranks."""
    sizes = WORLDS[world][0]
    a, b = torch.randn(2, sum(sizes), 64, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = []
    for reduction in ("mean", "none"):
        parts = [(a, b, {"backend": "reference"})]
        mine = tuple(x.split(sizes)[rank] for x in (a, b))
        parts.append((*mine, {"gather_distributed": True, **options}))
        losses = []
        for x, y, how in parts:
            loss = taufree.SigmoidNCE(bias="learnable", link="learnable", reduction=reduction, **how).double()
            loss(x.clone().requires_grad_(), y).mean(0).backward()
            losses.append(loss)
        for p, q in zip(losses[0].parameters(), losses[1].parameters(), strict=True):
            if reduction == "none":
                q.grad *= world * sizes[rank] / sum(sizes)  # a rank's mean is over its own rows
            dist.all_reduce(q.grad)
            found.append(error(q.grad / world, p.grad))
    links = [taufree.FittedLogOdds().double() for _ in range(2)]
    taufree.sigmoid_nce(a.clone().requires_grad_(), a + b, link=links[0])
    x, y = (x.split(sizes)[rank] for x in (a, a + b))
    taufree.sigmoid_nce(x.clone().requires_grad_(), y, link=links[1], gather_distributed=True, **options)
    return [*found, abs(links[1].gain / links[0].gain - 1), float(links[0].gain < 1.01)]


def backward_twice(rank):
    a, b = (
        torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * i + rank), requires_grad=True)
        for i in range(2)
    )
    options = {"gather_distributed": True, "backend": "blockwise"}
    worst = 0.0
    for loss in (taufree.info_nce(a, b, symmetric=True, **options), taufree.sigmoid_nce(a, b, **options)):
        first = torch.autograd.grad(loss, (a, b), retain_graph=True)
        second = torch.autograd.grad(3 * loss, (a, b))
        worst = max(worst, *(error(y, 3 * x) for x, y in zip(first, second, strict=True)))
    return worst


def several_views(rank, world):
    """Without labels, each sample of each rank has one of its own."""
    sizes = WORLDS[world][0]
    views = torch.randn(sum(sizes), 3, 4, generator=torch.Generator().manual_seed(2))
    found = taufree.sup_con(views.split(sizes)[rank], gather_distributed=True)
    return error(found, taufree.sup_con(views))


def largest(world):
    """Elements of the largest tensor that a rank makes, of 32 rows x 2 columns on each rank."""
    found = {}
    for way in WAYS:
        a, b = (torch.randn(32, 2, requires_grad=True) for _ in range(2))
        # Tiles of 4 x 4, as elsewhere, would be 1024 on each of four ranks, over half of what they compute.
        with forced(way), patch.object(blockwise, "TILE_SIZE", 16), Largest() as seen:
            taufree.info_nce(a, b, symmetric=True, gather_distributed=True, backend="blockwise").backward()
            taufree.nt_xent(a, b, gather_distributed=True, backend="blockwise").backward()
            taufree.sigmoid_nce(a, b, gather_distributed=True, backend="blockwise").backward()
        found[way] = seen.numel
    return found


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
    if world == 2:
        found["fsdp"] = train(rank, world, "fsdp")
    found["second derivative"] = second_derivative(rank, world)
    found["backward twice"] = backward_twice(rank)
    found["learned bias"] = learned_bias(rank, world, backend="blockwise")
    found["collectives"] = count_collectives(rank)
    found["largest"] = largest(world)
    found["several views"] = several_views(rank, world)
    changes = ("columns", "dtype", "reduction", "link", "mode", "ids", "negative_keys", "tracker", "balanced")
    for change in changes:
        found[f"mismatch, {change}"] = mismatch(rank, change)
    dist.barrier()
    if rank == 0 and world == min(WORLDS):  # the last one; the others leave
        try:
            taufree.nt_xent(torch.eye(4), torch.eye(4), gather_distributed=True)
        except RuntimeError as problem:
            found["alone"] = str(problem)
    return found


def kernels(rank, world):
    """The fused kernels, by Triton's interpreter."""
    from taufree.backends.fused import tile_passes as launch

    launch.tile_config = lambda link, what, mode: launch.Config(16, 16, 64)
    found = {}
    for call, link, way in itertools.product(CALLS, LINKS, WAYS):
        every = call in ("symmetric, ids", "nt_xent", "sup_con", "sigmoid, ids")
        if link == "odds" or every or (call, link) == ("queue and batch", "learned"):
            with forced(way):
                found[f"{call}, {link}, {way}"] = compare(call, link, "mean", rank, world, "triton")
    for call, way in itertools.product(("queue and batch", "sup_con"), WAYS):
        with forced(way):
            found[f"{call}, bfloat16, {way}"] = compare(
                call, "odds", "none", rank, world, "triton", torch.bfloat16
            )
    return {"errors": found, "collectives": count_collectives(rank, "triton")}
