"""Problems for the fused kernels, and their errors against the reference."""

import torch

from taufree import LearnableTemperature, LogOdds, Temperature
from taufree.backends import fused, reference
from taufree.contrast import Contrast
from taufree.links.log_odds import with_gain


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


def each_tau(count):
    """A temperature for each of so many anchors, learned."""
    return Temperature(torch.nn.Parameter(torch.linspace(0.05, 1, count)))


CONTRASTS = ("one-way", "symmetric", "queue", "all", "own", "views", "labels", "few labels")
DECOUPLED = ("decoupled all", "decoupled own", "decoupled views", "decoupled labels")


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
    return {
        "one-way": ([a, b], lambda a, b: Contrast(a, b)),
        "symmetric": ([a, b], lambda a, b: Contrast(a, b, symmetric=True, ids=ids)),
        "queue": ([a, b, queue], lambda a, b, q: Contrast(a, b, in_batch=False, queue=q)),
        "all": ([a, b, queue], lambda a, b, q: Contrast(a, b, symmetric=True, queue=q)),
        "own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o)),
        "views": ([a, b], lambda a, b: Contrast(torch.cat([a, b]), shift=n, ids=torch.cat([ids, ids]))),
        "labels": ([a], lambda a: Contrast(a, labels=ids)),
        "few labels": ([a], lambda a: Contrast(a, labels=ids % 3)),
        "decoupled all": (
            [a, b, queue],
            lambda a, b, q: Contrast(a, b, symmetric=True, queue=q, decoupled=True),
        ),
        "decoupled own": ([a, b, own], lambda a, b, o: Contrast(a, b, own_negatives=o, decoupled=True)),
        "decoupled views": ([a, b], lambda a, b: Contrast(torch.cat([a, b]), shift=n, decoupled=True)),
        "decoupled labels": ([a], lambda a: Contrast(a, labels=ids % 3, decoupled=True)),
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
    case = make(name, n, d, dtype, device)
    link = link.to(device)
    truth, found = (evaluate(backend, *case, link, weights) for backend in (reference.loss, fused.loss))
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in zip(truth, found, strict=True))
    result = [
        float((y.double() - x.double()).norm() / x.double().norm()) for x, y in zip(truth, found, strict=True)
    ]
    return [x if x == x else float("inf") for x in result]


TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
