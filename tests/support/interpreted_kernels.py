"""The fused kernels by Triton's interpreter, which must be chosen before they are imported.

So this is a script, for a process with TRITON_INTERPRET=1; it prints each case's errors as JSON.
"""

import functools
import json
import math
from dataclasses import replace

import torch

from taufree import (
    CalibratedLogOdds,
    FittedLogOdds,
    FittedTemperature,
    InfoNCE,
    LearnableTemperature,
    LogOdds,
    NTXent,
    SupCon,
    Temperature,
    info_nce,
    nt_xent,
    sigmoid_nce,
)
from taufree.backends import fused, reference
from taufree.backends.fused import fit
from taufree.contrast import Bias, Contrast
from taufree.links.log_odds import with_gain
from taufree.stats import Tracker
from tests.support.fit_cases import FIT_LOSSES, fit_steps
from tests.support.fused_cases import (
    BALANCED,
    CONTRASTS,
    DECOUPLED,
    HARD,
    LINKS,
    ROWS,
    SCALES,
    SIGMOID,
    each_tau,
    errors,
    make,
    tracked_error,
)

N, D = 18, 20  # of the interpreter, whose time goes by rows and tiles: two tiles of rows, three of both views
CASES = (
    {
        f"{link}, {name}, {str(dtype)[6:]}": (name, link, dtype)
        for link in LINKS
        for name in CONTRASTS
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        if dtype == torch.float32 or (link == "odds" and name in ("symmetric", "views"))
        if link not in ("tensor gain", "learned tau") or name in ("symmetric", "own", "labels")
    }
    | {
        f"{link}, {name}, float32": (name, link, torch.float32)
        for link in ("odds", "gain", "tau", "learned")
        for name in (*DECOUPLED, *HARD)
    }
    | {
        f"{link}, {name}, float32": (name, link, torch.float32)
        for link in ("odds", "tau", "learned")
        for name in BALANCED
    }
    | {
        f"{link}, {name}, {str(dtype)[6:]}": (name, link, dtype)
        for name in SIGMOID
        for link, dtype in [
            *((x, torch.float32) for x in LINKS),
            ("odds", torch.bfloat16),
            ("odds", torch.float16),
            ("learned", torch.bfloat16),
        ]
    }
)
WEIGHTS = {
    "queue": None,
    "sigmoid": 0.25,
    "sigmoid number": None,
    "one-way": 0.25,
    "views": 0.125,
    "few labels": 0.5,
}
TRACKED = {
    f"{link}, {name}, {str(dtype)[6:]}": (name, link, dtype)
    for link, dtype in (("odds", torch.float32), ("gain", torch.float32), ("tau", torch.bfloat16))
    for name in CONTRASTS
}
EACH = {
    f"each, {name}, {str(dtype)[6:]}": (name, dtype)
    for name in ("one-way", "queue", "own", "views", "decoupled views", "hard own")
    for dtype in (torch.float32, torch.bfloat16)
    if dtype == torch.float32 or name == "views"
}  # a temperature for each anchor
SCALED = {f"{scale}, {rows}": (rows, link) for scale, link in SCALES.items() for rows in ROWS} | {
    f"tensor {scale}, random": ("random", functools.partial(with_gain, torch.tensor(link().gain), 1e-4))
    for scale, link in SCALES.items()
    if "gain" in scale
}


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
    found["deterministic"] += errors("sigmoid", N, D, torch.float32, LogOdds())
    torch.use_deterministic_algorithms(False)
    found["twin"] = errors("twin", N, D, torch.float32, LogOdds())
    return found


def scaled():
    """Errors at gains and scales of all sizes; again with every tile taken for one that float32 cannot hold;
    and a gain whose weights even float64 cannot, in a tensor and as a number."""
    found = {case: errors(rows, N, D, torch.float32, link()) for case, (rows, link) in SCALED.items()}
    usual = tile_kernels.MIN_SUM, tile_kernels.MAX_EXCESS
    tile_kernels.MIN_SUM, tile_kernels.MAX_EXCESS = tl.constexpr(float("inf")), tl.constexpr(-1e30)
    found["apart"] = [
        x for link in ("gain", "learned") for x in errors("symmetric", N, D, torch.float32, LINKS[link]())
    ]
    tile_kernels.MIN_SUM, tile_kernels.MAX_EXCESS = usual
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    rows[1:3], keys = rows[4:6], rows.roll(1, 0)
    rows.requires_grad_()
    value = fused.loss(Contrast(rows, keys, symmetric=True), with_gain(torch.tensor(100.0), 1e-4), 1.0)
    # A scale that only the device knows counts as the largest that float64 holds.
    cone = torch.ones(5) + 0.02 * rows.detach()
    losses = [
        info_nce(cone, cone.roll(1, 1), link=Temperature(tau), backend=backend).item()
        for tau, backend in ((torch.tensor(1e-4), "triton"), (1 / (1000 * math.log(2)), "blockwise"))
    ]
    found["too steep"] = losses
    found["beyond"] = [value.item(), *torch.autograd.grad(value, rows)[0].flatten().tolist()]
    found["refused"] = fused.unsupported(Contrast(rows, keys), LogOdds(gain=100.0))
    return found


def tracked():
    """Errors of the statistics of every case, and those of a network that collapsed."""
    found = {
        case: tracked_error(name, N, D, dtype, LINKS[link]()) for case, (name, link, dtype) in TRACKED.items()
    }
    rows = torch.randn(1, D).expand(N, D).bfloat16()
    collapsed = []
    for loss, second in (
        (NTXent(track=True, backend="triton"), rows),
        (SupCon(track=True, backend="triton"), torch.arange(N) % 3),
    ):
        loss(rows, second)
        collapsed.append(loss.stats.accuracy.item())
    return {"statistics": found, "collapsed": collapsed}


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
        contrast = build(*leaves)
        pairs = []
        for tracker in (Tracker(), None):
            flat = tuple(arguments_of(replace(contrast, tracker=tracker), LearnableTemperature(0.1)))
            results = op._forward(*flat)
            pairs.append((results, op._fake_forward(*flat)))
        for wanted in ([x is not None for x in flat[:3]] + [True], [False, False, False, True]):
            backward = (results[0], wanted, *Saved(*results[2:]), *flat)
            pairs.append((op._backward(*backward), op._fake_backward(*backward)))
        alike = all([(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b] for a, b in pairs)
        found += [] if alike else [f"{name}, {dtype}"]
    return found


def second_derivative(contrast):
    first = fused.loss(contrast, LogOdds(), None).sum()
    first = torch.autograd.grad(first, contrast.anchors, create_graph=True)[0]
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
    """Losses and gradients of one row, of zeros, of equal rows, of very long and very short ones, and of
    decoupled positives far ahead of all negatives."""
    found = []
    for x, y in ((a[:1], a[:1]), (0 * a, a), (torch.ones(4, 3), torch.ones(4, 3)), (a * 1e30, -a * 1e-36)):
        x = x.detach().clone().requires_grad_()
        for contrast in (
            Contrast(x, y.detach(), symmetric=True),
            Contrast(x, y.detach(), bias=Bias(0.0, None, True)),
        ):
            value = fused.loss(contrast, LogOdds(), None)
            found.append([*value.tolist(), *torch.autograd.grad(value.sum(), x)[0].flatten().tolist()])
    x = torch.tensor([[1.0, 0, 0], [1, 0.4, 0], [0, 0, 1], [0, 0.4, 1]]).requires_grad_()
    value = fused.loss(Contrast(x, labels=torch.arange(4) // 2, decoupled=True), Temperature(0.005), None)
    found.append([*value.tolist(), *torch.autograd.grad(value.sum(), x)[0].flatten().tolist()])
    return found


ONE_GRAPH = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


def compiled(a, function, **options):
    """How far the gradient of a compiled loss is from that of a plain one."""

    def plain(a, b):
        return function(a, b, **options, backend="triton").sum()

    grads = [torch.autograd.grad(loss(a, a.detach().flip(0)), a)[0] for loss in (plain, ONE_GRAPH(plain))]
    return float((grads[0] - grads[1]).norm() / grads[0].norm())


def compiled_and_tracked(a):
    """How far gradient and statistics of a compiled loss are from those of a plain one."""

    grads, stats = [], []
    for how in (lambda f: f, ONE_GRAPH):
        module = InfoNCE(symmetric=True, reduction="sum", backend="triton", track=True)
        grads.append(torch.autograd.grad(how(module)(a, a.detach().flip(0)), a)[0])
        stats.append(torch.stack(list(module.stats)))
    return [float((x[0] - x[1]).norm() / x[0].norm()) for x in (grads, stats)]


def calibrated(view):
    """Losses of two steps and the gain then, by the reference, the kernels, and the kernels compiled."""
    losses, gains = [], []
    for backend, how in (("reference", lambda f: f), ("triton", lambda f: f), ("triton", ONE_GRAPH)):
        link = CalibratedLogOdds()
        loss = how(lambda a, b, link=link, backend=backend: nt_xent(a, b, link=link, backend=backend))
        losses.append([loss(view, view.flip(0)).item() for _ in range(2)])
        gains.append(link.gain)
    return losses, gains


def finest():
    """At the finest resolution that the kernels take an opposite pair must not have the logarithm of 0."""
    return FittedLogOdds(1e-7)


def fitted():
    """States of fitted links after some steps, measured by torch in float64 and by the kernels; the last
    number is how many steps the kernels took."""
    by_kernels, kernels, usual = [], fit.step, (fit.PROGRAMS, fit.BN, fit.MAX_ANCHORS)
    fit.step = lambda *arguments: by_kernels.append(kernels(*arguments))
    cases = [(FittedLogOdds, name, torch.float32, 14, 9) for name in FIT_LOSSES]
    cases += [
        (FittedTemperature, "cone", torch.float32, 14, 9),
        (FittedLogOdds, "views", torch.bfloat16, N, D),
        (FittedTemperature, "ids", torch.float16, N, D),
        # Of which 128 anchors are taken; here a program has several blocks of their candidates.
        (FittedTemperature, "pairs", torch.float32, 150, 3),
        (FittedLogOdds, "views", torch.float32, 70, 3),
        (finest, "views", torch.float32, 14, 9),
    ]
    found = {}
    for kind, name, dtype, n, d in cases:
        by_kernels.clear()
        small = (usual[0], 16, 64)  # room for all anchors: the interpreter's time goes by it
        fit.PROGRAMS, fit.BN, fit.MAX_ANCHORS = ((2, 4), 16, usual[2]) if n > N else small
        steps = 1 if n > N else 3
        states = [
            fit_steps(kind, name, n, d, dtype, exactly=exactly, steps=steps) for exactly in (True, False)
        ]
        found[f"{kind.__name__}, {name}, {n}, {str(dtype)[6:]}"] = [*states, len(by_kernels)]
    return found


if __name__ == "__main__":
    import triton.language as tl

    from taufree.backends.fused import tile_passes as launch
    from taufree.backends.fused.kernels import tiles as tile_kernels

    launch.tile_config = lambda link, what, mode: launch.Config(16, 16, 64)
    launch.chunk_shape = lambda pad, mode: (16, 32)
    launch.PARTIAL_SUM_BYTES = 4 * 2 * N * 2  # two tile columns of both views at a time, one with labels
    torch.manual_seed(0)
    a = torch.randn(7, 5, requires_grad=True)
    found = {
        **agreement(),
        **scaled(),
        **tracked(),
        **columns_of_a_table(torch.randn(7, 5)),
        "second derivative": [
            second_derivative(Contrast(a, torch.randn(7, 5), bias=bias))
            for bias in (None, Bias(0.0, None, True))
        ],
        "changed link": changed_link(a),
        "finite": finite(a),
        "compiled": [
            *compiled_and_tracked(a),
            compiled(a, sigmoid_nce),
            compiled(a, sigmoid_nce, reduction="none"),
        ],
        "unlike fakes": unlike_fakes(torch.float32) + unlike_fakes(torch.bfloat16),
        "calibrated": calibrated(torch.randn(N, D)),
        "fitted": fitted(),
    }
    print(json.dumps(found))
