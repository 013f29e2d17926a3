"""What the processes of tests/test_distributed.py do: each is a rank, and writes what it found as JSON.

Every rank makes the whole batch from one seed, computes the loss on it as a single process would, and its own
part of it together with the others.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import taufree
from taufree import CalibratedLogOdds, LearnableTemperature, LogOdds, Temperature, distributed
from taufree.backends.blockwise import engine as blockwise
from taufree.stats import Tracker

LINKS = {
    "odds": lambda: LogOdds(),
    "gain": lambda: LogOdds(gain=2.0),
    "tau": lambda: Temperature(0.1),
    "learned": lambda: LearnableTemperature(0.2),
    "calibrated": lambda: CalibratedLogOdds(),
}
CALLS = {  # function, tensors, options
    "one-way": ("info_nce", "ab", {}),
    "symmetric": ("info_nce", "ab", {"symmetric": True}),
    "symmetric, ids": ("info_nce", "ab", {"symmetric": True, "ids": 3}),
    "fixed keys": ("info_nce", "aB", {"ids": 3}),
    "queue": ("info_nce", "abq", {}),
    "queue and batch": ("info_nce", "abq", {"symmetric": True, "in_batch": True}),
    "queue, ids": ("info_nce", "abq", {"ids": 3, "negative_ids": 4}),
    "queue and batch, ids": (
        "info_nce",
        "abq",
        {"ids": 3, "negative_ids": 4, "symmetric": True, "in_batch": True},
    ),
    "fixed queue": ("info_nce", "abQ", {"in_batch": True}),
    "own": ("info_nce", "abo", {}),
    "own and batch": ("info_nce", "abo", {"symmetric": True, "in_batch": True}),
    "nt_xent": ("nt_xent", "ab", {}),
    "nt_xent, ids": ("nt_xent", "ab", {"ids": 3}),
    "sup_con": ("sup_con", "a", {"labels": 4}),
    "sup_con, many labels": ("sup_con", "a", {"labels": 40}),
    "sup_con, keys": ("sup_con", "ak", {"labels": 4, "key_labels": 4, "weights": None}),
    "symmetric, hard": ("info_nce", "abq", {"symmetric": True, "in_batch": True, "ids": 3, "hardness": 2.0}),
    "nt_xent, hard": ("nt_xent", "ab", {"ids": 3, "hardness": 2.0}),
    "sup_con, hard": ("sup_con", "ak", {"labels": 4, "key_labels": 4, "hardness": 2.0}),
    "symmetric, decoupled": ("info_nce", "ab", {"symmetric": True, "decoupled": True, "weights": None}),
    "nt_xent, decoupled": ("nt_xent", "ab", {"decoupled": True, "weights": None}),
    "queue and batch, balanced": (
        "info_nce",
        "abq",
        {"ids": 3, "negative_ids": 4, "symmetric": True, "in_batch": True, "balanced": True},
    ),
    "sup_con, balanced": ("sup_con", "a", {"labels": 4, "balanced": True, "weights": None}),
    "sigmoid": ("sigmoid_nce", "ab", {"bias": -3.0}),
    "sigmoid, ids": ("sigmoid_nce", "ab", {"ids": 3, "weights": None}),
    "sigmoid, fixed keys": ("sigmoid_nce", "aB", {}),
    "sup_con, decoupled": ("sup_con", "a", {"labels": 4, "decoupled": True, "weights": None}),
}
REDUCTIONS = ("mean", "sum", "none")
TRACKED = ("odds", "gain")  # the links whose statistics are compared too
# Batch and queue sizes by rank, and the dtype.
WORLDS = {
    2: ([6, 6], [3, 3], torch.float32),
    3: ([5, 1, 7], [2, 0, 4], torch.float64),
    4: ([2, 5, 1, 4], [1, 3, 2, 2], torch.float32),
}
WAYS = ("gather", "ring")


def cases(world, call, way):
    """All links and reductions on two ranks, some on more: (link, reduction) by name."""
    links = ("odds", "learned", "calibrated") if world > 2 or way == "reference" else tuple(LINKS)
    reductions = {2: REDUCTIONS, 3: REDUCTIONS, 4: ("mean",)}[world]
    if way == "ring":
        reductions = [x for x in reductions if x != "sum"]
    chosen = [(x, y) for x, y in itertools.product(links, reductions) if x != "calibrated" or y == "mean"]
    return {f"{call}, {x}, {y}, {way}": (x, y) for x, y in chosen}


def whole(call, sizes, queues, dtype, d=16):
    """The tensors and options of all ranks together; some rows of different ranks are nearly alike."""
    function, names, options = CALLS[call]
    n, generator = sum(sizes), torch.Generator().manual_seed(7)
    a, b = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    b = a + 0.7 * b
    b[0] = 1.5 * a[n - 1] + (0.0 if dtype == torch.float64 else 0.1 * b[n - 1])
    a[1] = a[n - 2] + 0.1 * b[2]
    made = {"a": a, "b": b, "q": torch.randn(sum(queues), d, generator=generator, dtype=torch.float64)}
    made["k"] = torch.randn(sum(sizes) + len(sizes), d, generator=generator, dtype=torch.float64)
    made["o"] = torch.randn(n, 2, d, generator=generator, dtype=torch.float64)
    tensors = [made[name.lower()].to(dtype).requires_grad_(name.islower()) for name in names]
    lengths = {"ids": n, "labels": n, "negative_ids": sum(queues), "key_labels": n + len(sizes)}
    options = {
        key: torch.randint(0, value, (lengths[key],), generator=generator) if key in lengths else value
        for key, value in options.items()
    }
    if "weights" in options:
        options["weights"] = torch.rand(n, generator=generator, dtype=torch.float64)
    each = torch.rand(2 * n, generator=generator, dtype=torch.float64).to(dtype)
    return function, tensors, options, each


def own(x, name, sizes, queues, rank, device="cpu"):
    """This rank's rows of a tensor of all ranks."""
    counts = queues if name in ("q", "Q", "negative_ids") else sizes
    if name in ("k", "key_labels"):  # one more than anchors on each rank
        counts = [size + 1 for size in sizes]
    return x.detach().split(counts)[rank].to(device, copy=True).requires_grad_(x.requires_grad)


def loss_of(function, tensors, options):
    """The call; the keys of sup_con are an argument by name here."""
    tensors, options = list(tensors), dict(options)
    if "key_labels" in options:
        options["keys"] = tensors.pop()
    return getattr(taufree, function)(*tensors, **options)


@functools.cache
def one_process(call, link, reduction, world, dtype):
    """The whole batch, with gradients; its loss; the weights of losses for "none"; the link; statistics."""
    sizes, queues, usual = WORLDS[world]
    function, tensors, options, each = whole(call, sizes, queues, dtype or usual)
    one = LINKS[link]().to(usual)
    tracker = Tracker() if link in TRACKED and function != "sigmoid_nce" else None
    settings = {"link": one, "reduction": reduction, "backend": "reference"}
    settings |= {} if tracker is None else {"_tracker": tracker}
    loss = loss_of(function, tensors, options | settings)
    weights = each[: loss.numel()] if reduction == "none" else torch.ones(())
    (loss * weights).sum().backward()
    return function, tensors, options, loss.detach(), weights, one, tracker


def compare(call, link, reduction, rank, world, backend, dtype=None, device="cpu", gather=True):
    """Relative errors of the loss and of every gradient against one process on the whole batch.

    ``rank`` and ``world`` are those of the process group ``gather``.

    A rank's rows get W times their gradient, which DDP's averaging divides by W; with "none" each rank
    differentiates its own rows' part of the sum.
    """
    sizes, queues, usual = WORLDS[world]
    function, tensors, options, expected, weights, one, whole_batch = one_process(
        call, link, reduction, world, dtype
    )
    several = LINKS[link]().to(device, usual)
    names = CALLS[call][1]
    mine = [own(x, name, sizes, queues, rank, device) for x, name in zip(tensors, names, strict=True)]
    integers = torch.uint16 if world == 3 else torch.int64
    mine_options = {  # ids and labels as columns of a table: not contiguous
        k: own(
            torch.stack([v, -v], 1).to(v.dtype if k == "weights" else integers),
            k,
            sizes,
            queues,
            rank,
            device,
        )[:, 0]
        if isinstance(v, torch.Tensor)
        else v
        for k, v in options.items()
    }
    settings = {"link": several, "reduction": reduction, "gather_distributed": gather, "backend": backend}
    tracker = None if whole_batch is None else Tracker()
    tracked = {} if tracker is None else {"_tracker": tracker}
    found = loss_of(function, mine, mine_options | settings | tracked)
    factor, total = world, torch.tensor(1.0)
    if reduction != "mean":
        total = torch.tensor(float(sum(sizes)))
    if reduction == "none":
        views = (2 if function == "nt_xent" else 1, sum(sizes))
        expected, weights = (
            torch.cat([x.split(sizes)[rank] for x in each.reshape(views)]) for each in (expected, weights)
        )
        factor = 1
    (found * weights.to(device)).sum().backward()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    errors = [error(found.detach(), expected)]
    if tracker is not None:
        errors.append(error(tracker.sums, whole_batch.sums))
    for x, y, name in zip(tensors, mine, names, strict=True):
        if x.requires_grad:
            assert y.grad.dtype == y.dtype
            errors.append(error(y.grad / factor, own(x.grad, name, sizes, queues, rank), x.grad))
    for p, q in zip(one.buffers(), several.buffers(), strict=True):  # what a link remembers of the batch
        errors.append(error(q, p))
        assert p < 0.9 or link == "fitted"
    for p, q in zip(one.parameters(), several.parameters(), strict=True):
        dist.all_reduce(q.grad, group=None if gather is True else gather)
        errors.append(error(q.grad / factor, p.grad, total))  # its terms cancel: what counts is their number
    return errors


def error(found, expected, scale=None):
    norm = (expected if scale is None else scale).double().norm()
    return float((found.cpu().double() - expected.double()).norm() / norm.clamp(min=1e-12))


@contextlib.contextmanager
def forced(way):
    """The exchange that is to be tested, whatever the size."""
    before, distributed.MAX_GATHERED_BYTES = distributed.MAX_GATHERED_BYTES, -1 if way == "ring" else 2**60
    try:
        yield
    finally:
        distributed.MAX_GATHERED_BYTES = before


def run(rank, work, worlds, ports, folder):
    """``work`` in one world after the other; ranks that a world does not have wait no longer."""
    torch.set_num_threads(1)
    blockwise.TILE_SIZE = 4
    for world, port in zip(worlds, ports, strict=True):
        if rank < world:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            dist.init_process_group("gloo", rank=rank, world_size=world)
            found = work(rank, world)
            (Path(folder) / f"{world}-{rank}.json").write_text(json.dumps(found))
            if world != worlds[-1]:
                # Of torch 2.6 this keeps other threads from Python, and waits for gloo's, which may just be
                # letting go of a tensor and need it.
                time.sleep(0.2)
                dist.destroy_process_group()
    # gloo's threads may outlive their group, and then abort an orderly end of the process; after a collective
    # that failed, the end of the group itself may wait for ever.
    os._exit(0)


def start(work, worlds, folder):
    """What each rank of each world found, after one start of the processes."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in worlds]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in free]
    mp.spawn(run, (work, worlds, ports, str(folder)), max(worlds))
    return {
        world: [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in worlds
    }
