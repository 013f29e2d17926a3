"""What a world of ranks is asked to do with a temperature for each anchor, and with temperature schemes."""

import itertools

import torch
import torch.distributed as dist

import taufree
from taufree.baselines import MACL, AdapTau, ISogCLR, PositivePairTemperature, VonMisesFisherTemperature
from tests.support.ranks import CALLS, WAYS, error, forced, own, whole

ANCHOR_CALLS = (
    "one-way",
    "symmetric",
    "symmetric, ids",
    "queue and batch",
    "own",
    "nt_xent",
    "sup_con",
    "nt_xent, decoupled",
)


# Batch and queue sizes by rank, and the dtype. A tensor of one temperature is that of all anchors, so that a
# rank with a single anchor cannot give it one of its own.
WORLDS = {2: ([6, 6], [3, 3], torch.float32), 3: ([5, 5, 7], [2, 0, 4], torch.float64)}


def anchors_of(x, call, sizes, rank):
    """This rank's part of what all anchors have, [N] or [2N]: of nt_xent and of symmetric losses both."""
    return torch.cat([part.split(sizes)[rank] for part in x.split(sum(sizes))]).clone()


def each_anchor(rank, world, call, backend):
    """Relative errors of the loss and of every gradient, with a temperature for each anchor."""
    sizes, queues, dtype = WORLDS[world]
    function, tensors, options, _ = whole(call, sizes, queues, dtype)
    options.pop("weights", None)
    both = function == "nt_xent" or options.get("symmetric")
    tau = torch.linspace(0.1, 1, sum(sizes) * (2 if both else 1), dtype=dtype).requires_grad_()
    loss = getattr(taufree, function)(*tensors, **options, link=tau, backend="reference")
    loss.backward()
    names = CALLS[call][1]
    mine = [own(x, name, sizes, queues, rank) for x, name in zip(tensors, names, strict=True)]
    own_options = {
        k: own(v, k, sizes, queues, rank) if isinstance(v, torch.Tensor) else v for k, v in options.items()
    }
    own_tau = anchors_of(tau.detach(), call, sizes, rank).requires_grad_()
    found = getattr(taufree, function)(
        *mine, **own_options, link=own_tau, gather_distributed=True, backend=backend
    )
    found.backward()
    errors = [error(found.detach(), loss.detach())]
    errors += [
        error(y.grad / world, own(x.grad, name, sizes, queues, rank), x.grad)
        for x, y, name in zip(tensors, mine, names, strict=True)
    ]
    return [*errors, error(own_tau.grad / world, anchors_of(tau.grad, call, sizes, rank), tau.grad)]


def views(n, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(n, 5, generator=generator, dtype=dtype) for _ in range(2))
    return a, a + b / 2


def rules(rank, world):
    """Temperatures by a rule, minus those of one process, and losses; of pairs and of labels."""
    sizes, _, _ = WORLDS[world]
    a, b = views(sum(sizes))
    x, y = (z.split(sizes)[rank] for z in (a, b))
    found, labels = {}, torch.arange(sum(sizes)) % 4
    for made in (PositivePairTemperature, VonMisesFisherTemperature):
        one, several = made(), made()
        expected = taufree.nt_xent(a, b, link=one)
        got = taufree.nt_xent(x, y, link=several, gather_distributed=True)
        found[made.__name__] = [error(several.tau, one.tau), error(got, expected)]
        expected = taufree.sup_con(a, labels, link=one)
        got = taufree.sup_con(x, labels.split(sizes)[rank], link=several, gather_distributed=True)
        found[f"{made.__name__}, labels"] = [error(several.tau, one.tau), error(got, expected)]
    return found


def schemes(rank):
    """Mean loss and gradients on two ranks of six pairs each, and iSogCLR's state after two steps."""
    found = {}
    samples, order = 20, torch.randperm(20, generator=torch.Generator().manual_seed(2))
    for made in (MACL, AdapTau, ISogCLR):
        start = (samples,) if made is ISogCLR else ()
        one, several = made(*start), made(*start, gather_distributed=True)
        errors = []
        for step in range(2):
            a, b = (z.roll(step, 0).requires_grad_() for z in views(12))
            x, y = (z.detach().split(6)[rank].clone().requires_grad_() for z in (a, b))
            index = order[step : step + 12]
            more = ((index,), (index.split(6)[rank],)) if made is ISogCLR else ((), ())
            expected, got = one(a, b, *more[0]), several(x, y, *more[1])
            expected.backward()
            got.backward()
            mean = got.detach().clone()
            dist.all_reduce(mean)
            errors.append(error(mean / 2, expected.detach()))
            errors += [error(p.grad / 2, q.grad.split(6)[rank], q.grad) for p, q in ((x, a), (y, b))]
        if made is ISogCLR:
            errors += [error(several.tau, one.tau), error(several.log_u.exp(), one.log_u.exp())]
        found[made.__name__] = errors
    return found


def everything(rank, world):
    """All that a world of this size is asked to do."""
    found = {"rules": rules(rank, world)}
    for call, way in itertools.product(ANCHOR_CALLS, (*WAYS, "reference")):
        backend = "reference" if way == "reference" else "auto"
        with forced(way):
            found[f"{call}, {way}"] = each_anchor(rank, world, call, backend)
    if world == 2:
        found["schemes"] = schemes(rank)
    return found
