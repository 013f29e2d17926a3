"""Problems for the fused kernels, and their errors against the reference."""

import functools
from dataclasses import replace

import torch

from taufree import LearnableTemperature, LogOdds, Temperature
from taufree.backends import fused, reference
from taufree.contrast import Bias, Contrast
from taufree.links.log_odds import with_gain
from taufree.stats import Tracker


def learned_tau():
    """A linear link whose temperature, and not its logarithm, is the parameter."""
    link = Temperature(0.1)
    link.tau = torch.nn.Parameter(torch.tensor(0.1))
    return link


LINKS = {
    "odds": lambda: LogOdds(),
    "gain": lambda: LogOdds(gain=2.0),
    "tensor gain": lambda: with_gain(torch.tensor(3.0), 1e-4),
    "tau": lambda: Temperature(0.1),
    "low tau": lambda: Temperature(0.01),
    "learned": lambda: LearnableTemperature(0.1),
    "learned tau": learned_tau,
}
CONTRASTS = (
    "one-way", "symmetric", "queue", "queue ids", "all", "own", "views", "labels", "few labels", "keys"
)  # fmt: skip
DECOUPLED = ("decoupled all", "decoupled own", "decoupled views", "decoupled labels", "decoupled keys")
HARD = ("hard all", "hard own", "hard labels")
BALANCED = ("balanced all", "balanced own", "balanced views", "balanced labels")
SIGMOID = ("sigmoid", "sigmoid number", "sigmoid learned")
ROWS = ("random", "clustered", "duplicates", "opposite")
# Links with one exponential a pair, at scales whose weights float32 holds and at others.
SCALES = {
    **{f"gain {gain}": functools.partial(LogOdds, gain) for gain in (0.3, 2, 7, 9, 15, 20, 40)},
    **{f"scale {scale}": functools.partial(LearnableTemperature, 1 / scale) for scale in (1, 5, 30, 70, 100)},
}


def each_tau(count):
    """A temperature for each of so many anchors, learned."""
    return Temperature(torch.nn.Parameter(torch.linspace(0.05, 1, count)))


def rows_like(kind, n, d, dtype, device="cpu"):
    """Anchors and keys, by one of ROWS; of "opposite" ones no anchor has a candidate with a weight near 1."""
    generator = torch.Generator().manual_seed(0)
    a, noise, centre = (torch.randn(k, d, generator=generator) for k in (n, n, 1))
    b = a + noise
    if kind == "clustered":
        a, b = centre + a / 4, centre + b / 4
    elif kind == "opposite":
        a, b = centre + a / 20, b / 20 - centre
    elif kind == "duplicates":
        b[5], b[9], b[3] = a[4], -a[8], a[2] + 1e-3 * b[3]
    return [a.to(device, dtype), b.to(device, dtype)]


def make(name, n, d, dtype, device="cpu"):
    """The leaves of a case, and the contrast over given leaves."""
    generator = torch.Generator().manual_seed(0)

    def rows(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype)

    a = rows(n, d)
    b, queue, own = a + rows(n, d), rows(n - 1, d), rows(n, 3, d)
    a[1], b[2] = b[1], -a[2]  # a pair that agrees, one that is opposite
    twin = b.clone()
    twin[5] = a[4]  # a negative that agrees
    ids = torch.randint(0, n // 2, (n,), generator=generator).to(device)
    key_labels = torch.randint(0, 4, (n + 5,), generator=generator).to(device)
    offsets = torch.randn(2, n, generator=generator).to(device)
    return {
        "one-way": ([a, b], lambda a, b: Contrast(a, b)),
        "symmetric": ([a, b], lambda a, b: Contrast(a, b, symmetric=True, ids=ids)),
        "queue": ([a, b, queue], lambda a, b, q: Contrast(a, b, in_batch=False, queue=q)),
        "queue ids": (
            [a, b, queue],
            lambda a, b, q: Contrast(a, b, symmetric=True, queue=q, ids=ids, queue_ids=ids.flip(0)[1:]),
        ),
        "all": ([a, b, queue], lambda a, b, q: Contrast(a, b, symmetric=True, queue=q)),
        "own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o)),
        "views": ([a, b], lambda a, b: Contrast(torch.cat([a, b]), shift=n, ids=torch.cat([ids, ids]))),
        "labels": ([a], lambda a: Contrast(a, labels=ids)),
        "few labels": ([a], lambda a: Contrast(a, labels=ids % 3)),
        "keys": ([a, rows(n + 5, d)], lambda a, k: Contrast(a, k, labels=ids % 3, key_labels=key_labels)),
        "decoupled keys": (
            [a, rows(n - 3, d)],
            lambda a, k: Contrast(a, k, labels=ids % 3, key_labels=key_labels[: n - 3], decoupled=True),
        ),
        "hard all": (
            [a, b, queue],
            lambda a, b, q: Contrast(a, b, symmetric=True, queue=q, hardness=2.0, offsets=offsets),
        ),
        "hard own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o, hardness=2.0)),
        "hard labels": (
            [a],
            lambda a: Contrast(a, labels=ids % 3, hardness=2.0, offsets=offsets[:1], decoupled=False),
        ),
        "balanced all": (
            [a, b, queue],
            lambda a, b, q: Contrast(a, b, symmetric=True, queue=q, offsets=offsets),
        ),
        "balanced own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o, offsets=offsets[:1])),
        "balanced views": (
            [a, b],
            lambda a, b: Contrast(torch.cat([a, b]), shift=n, offsets=offsets.view(1, 2 * n)),
        ),
        "balanced labels": ([a], lambda a: Contrast(a, labels=ids % 3, offsets=offsets[:1])),
        "decoupled all": (
            [a, b, queue],
            lambda a, b, q: Contrast(a, b, symmetric=True, queue=q, decoupled=True),
        ),
        "decoupled own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o, decoupled=True)),
        "decoupled views": ([a, b], lambda a, b: Contrast(torch.cat([a, b]), shift=n, decoupled=True)),
        "decoupled labels": ([a], lambda a: Contrast(a, labels=ids % 3, decoupled=True)),
        "sigmoid": ([a, b], lambda a, b: Contrast(a, b, bias=Bias(0.0, None, True))),
        "sigmoid number": ([a, b], lambda a, b: Contrast(a, b, ids=ids, bias=Bias(-30.0, None, False))),
        "sigmoid learned": (
            [a, b, torch.tensor(-2.0, device=device)],
            lambda a, b, x: Contrast(a, b, ids=ids, bias=Bias(0.5, x, True)),
        ),
        "twin": ([a, twin], lambda a, b: Contrast(a, b, symmetric=True)),
    }[name]


def evaluate(backend, leaves, build, link, weights="each"):
    """The loss and its gradients; each anchor with a weight of its own, all with one, or with None."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    contrast = build(*leaves)
    if weights == "each":
        weights = torch.linspace(0.5, 1.5, contrast.n, device=contrast.anchors.device)
    value = backend(contrast, link, weights)
    grads = torch.autograd.grad(value.square().sum(), leaves + list(link.parameters()))
    return [value.detach(), *grads]


def errors(name, n, d, dtype, link, device="cpu", weights="each"):
    """|found - truth| / |truth| of the loss and of each gradient; NaN counts as inf."""
    if name in ROWS:
        case = rows_like(name, n, d, dtype, device), lambda a, b: Contrast(a, b, symmetric=True)
    else:
        case = make(name, n, d, dtype, device)
    link = link.to(device)
    truth, found = (evaluate(backend, *case, link, weights) for backend in (reference.loss, fused.loss))
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in zip(truth, found, strict=True))
    result = [
        float((y.double() - x.double()).norm() / x.double().norm()) for x, y in zip(truth, found, strict=True)
    ]
    return [x if x == x else float("inf") for x in result]


def tracked_error(name, n, d, dtype, link, device="cpu"):
    """|found - truth| / |truth| of the sums that statistics are made of, and that losses do not change."""
    leaves, build = make(name, n, d, dtype, device)
    contrast, link, found = build(*leaves), link.to(device), []
    for backend in (reference.loss, fused.loss):
        tracker = Tracker()
        with torch.no_grad():
            losses = backend(replace(contrast, tracker=tracker), link, None)
            torch.testing.assert_close(losses, backend(contrast, link, None), rtol=1e-6, atol=1e-6)
        found.append(tracker.sums)
    return float((found[1] - found[0]).norm() / found[0].norm())


TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
