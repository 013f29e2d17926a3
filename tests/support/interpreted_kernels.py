"""The fused kernels by Triton's interpreter, which must be chosen before they are imported.

So this is a script, for a process with TRITON_INTERPRET=1; it prints each case's errors as JSON.
"""

import functools
import json

import torch

from taufree import CalibratedLogOdds, LearnableTemperature, LogOdds, info_nce, nt_xent
from taufree.backends import fused, reference
from taufree.contrast import Contrast
from tests.support.fused_cases import CONTRASTS, DECOUPLED, LINKS, each_tau, errors, make

N, D = 18, 20  # of the interpreter, whose time goes by rows and tiles: two tiles of rows, three of both views
CASES = {
    f"{link}, {name}, {str(dtype)[6:]}": (name, link, dtype)
    for link in LINKS
    for name in CONTRASTS
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if dtype == torch.float32 or (link == "odds" and name in ("symmetric", "views"))
    if link not in ("tensor gain", "learned tau") or name in ("symmetric", "own", "labels")
} | {
    f"{link}, {name}, float32": (name, link, torch.float32)
    for link in ("odds", "gain", "tau", "learned")
    for name in DECOUPLED
}
EACH = {
    f"each, {name}, {str(dtype)[6:]}": (name, dtype)
    for name in ("one-way", "queue", "own", "views", "decoupled views")
    for dtype in (torch.float32, torch.bfloat16)
    if dtype == torch.float32 or name == "views"
}  # a temperature for each anchor
WEIGHTS = {"queue": None, "one-way": 0.25, "views": 0.125, "few labels": 0.5}


def agreement():
    """Errors of every case, of sums in a fixed order, and of a negative that agrees with its anchor."""
    found = {
        case: errors(name, N, D, dtype, LINKS[link](), weights=WEIGHTS.get(name, "each"))
        for case, (name, link, dtype) in CASES.items()
    }
    found |= {
        case: errors(name, N, D, dtype, each_tau(2 * N if "views" in name else N))
        for case, (name, dtype) in EACH.items()
    }
    torch.use_deterministic_algorithms(True)
    found["deterministic"] = errors("symmetric", N, D, torch.float32, LogOdds())
    torch.use_deterministic_algorithms(False)
    found["twin"] = errors("twin", N, D, torch.float32, LogOdds())
    return found


def columns_of_a_table(rows):
    """Losses of both backends for ids and labels that are not contiguous, and a gradient of NaN."""
    groups = torch.arange(14).reshape(7, 2) // 4
    strided = [
        [loss(x, LogOdds(), None).tolist() for loss in (fused.loss, reference.loss)]
        for x in (Contrast(rows, labels=groups[:, 0]), Contrast(rows, rows.flip(1), ids=groups[:, 0]))
    ]
    outside = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # the NaN that a GPU makes
    rows = rows.clone().requires_grad_()
    value = fused.loss(Contrast(rows, labels=groups[:, 0]), LogOdds(), 0.5)
    return {"strided": strided, "NaN": torch.autograd.grad(value, rows, outside)[0].isnan().tolist()}


def unlike_fakes(dtype):
    """Contrasts whose operators give other shapes or dtypes than torch.compile is told."""
    from taufree.backends.fused import op
    from taufree.backends.fused.arguments import Saved, arguments_of

    found = []
    for name in CONTRASTS:
        leaves, build = make(name, N, D, dtype)
        flat = tuple(arguments_of(build(*leaves), LearnableTemperature(0.1)))
        results = op._forward(*flat)
        pairs = [(results, op._fake_forward(*flat))]
        for wanted in ([x is not None for x in flat[:3]] + [True], [False, False, False, True]):
            backward = (results[0], wanted, *Saved(*results[1:]), *flat)
            pairs.append((op._backward(*backward), op._fake_backward(*backward)))
        alike = all([(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b] for a, b in pairs)
        found += [] if alike else [f"{name}, {dtype}"]
    return found


def second_derivative(a, b):
    first = fused.loss(Contrast(a, b), LogOdds(), None).sum()
    first = torch.autograd.grad(first, a, create_graph=True)[0]
    try:
        first.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "none"


def changed_link(a):
    """Gradients with a link that stays, and with one that changes before the backward."""
    link, found = LearnableTemperature(0.1), []
    for change in (0.0, 1.0):
        value = nt_xent(a, a.detach().flip(0), link=link, reduction="none", backend="triton").sum()
        link.log_scale.data.add_(change)
        learned = torch.autograd.grad(value, (a, link.log_scale))
        found.append(torch.cat([x.flatten() for x in learned]).tolist())
    return found


def finite(a):
    """Losses and gradients of one row, of zeros, of equal rows, and of very long and very short ones."""
    found = []
    for x, y in ((a[:1], a[:1]), (0 * a, a), (torch.ones(4, 3), torch.ones(4, 3)), (a * 1e30, -a * 1e-36)):
        x = x.detach().clone().requires_grad_()
        value = fused.loss(Contrast(x, y.detach(), symmetric=True), LogOdds(), None)
        found.append([*value.tolist(), *torch.autograd.grad(value.sum(), x)[0].flatten().tolist()])
    return found


ONE_GRAPH = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


def compiled(a):
    """How far the gradient of a compiled loss is from that of a plain one."""

    def plain(a, b):
        return info_nce(a, b, symmetric=True, reduction="sum", backend="triton")

    grads = [torch.autograd.grad(loss(a, a.detach().flip(0)), a)[0] for loss in (plain, ONE_GRAPH(plain))]
    return float((grads[0] - grads[1]).norm() / grads[0].norm())


def calibrated(view):
    """Losses of two steps and the gain then, by the reference, the kernels, and the kernels compiled."""
    losses, gains = [], []
    for backend, how in (("reference", lambda f: f), ("triton", lambda f: f), ("triton", ONE_GRAPH)):
        link = CalibratedLogOdds()
        loss = how(lambda a, b, link=link, backend=backend: nt_xent(a, b, link=link, backend=backend))
        losses.append([loss(view, view.flip(0)).item() for _ in range(2)])
        gains.append(link.gain)
    return losses, gains


if __name__ == "__main__":
    from taufree.backends.fused import tile_passes as launch

    launch.tile_config = lambda link, labels, mode: launch.Config(16, 16, 64)
    launch.chunk_shape = lambda pad, mode: (16, 32)
    launch.PARTIAL_SUM_BYTES = 4 * 2 * N * 2  # two tile columns of both views at a time, one with labels
    torch.manual_seed(0)
    a = torch.randn(7, 5, requires_grad=True)
    found = {
        **agreement(),
        **columns_of_a_table(torch.randn(7, 5)),
        "second derivative": second_derivative(a, torch.randn(7, 5)),
        "changed link": changed_link(a),
        "finite": finite(a),
        "compiled": compiled(a),
        "unlike fakes": unlike_fakes(torch.float32) + unlike_fakes(torch.bfloat16),
        "calibrated": calibrated(torch.randn(N, D)),
    }
    print(json.dumps(found))
