"""The fused kernels against the reference: by Triton's interpreter anywhere, and on a GPU where there is one.

The interpreter must be chosen before the kernels are imported, so this file runs itself as a script in a
process of its own, which prints each case's errors as JSON.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from taufree import CalibratedLogOdds, LearnableTemperature, Link, LogOdds, Temperature, info_nce, nt_xent
from taufree.backends import fused as triton
from taufree.backends import reference
from taufree.contrast import Contrast
from taufree.links import TensorGain

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LINKS = {
    "odds": lambda: LogOdds(),
    "gain": lambda: LogOdds(gain=2.0),
    "tensor gain": lambda: TensorGain(torch.tensor(3.0), 1e-4),
    "tau": lambda: Temperature(0.1),
    "low tau": lambda: Temperature(0.01),
    "learned": lambda: LearnableTemperature(0.1),
}
CONTRASTS = ("one-way", "symmetric", "queue", "all", "own", "views", "labels", "few labels")


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
    truth, found = (evaluate(backend, *case, link, weights) for backend in (reference.loss, triton.loss))
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in zip(truth, found, strict=True))
    result = [
        float((y.double() - x.double()).norm() / x.double().norm()) for x, y in zip(truth, found, strict=True)
    ]
    return [x if x == x else float("inf") for x in result]


N, D = 18, 20  # of the interpreter, whose time goes by rows and tiles: two tiles of rows, three of both views
CASES = {
    f"{link}, {name}, {str(dtype)[6:]}": (name, link, dtype)
    for link in LINKS
    for name in CONTRASTS
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    if dtype == torch.float32 or (link == "odds" and name in ("symmetric", "views"))
    if link != "tensor gain" or name in ("symmetric", "own", "labels")
}
WEIGHTS = {"queue": None, "one-way": 0.25, "views": 0.125, "few labels": 0.5}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def interpret():
    """What the process of its own does."""
    from taufree.backends.fused import tile_passes as launch

    launch.tile_config = lambda kind, labels, mode: launch.Config(16, 16, 64)
    launch.chunk_shape = lambda pad, mode: (16, 32)
    launch.PARTIAL = 4 * 2 * N * 2  # two tile columns of both views at a time, one where there are labels
    found = {
        case: errors(name, N, D, dtype, LINKS[link](), weights=WEIGHTS.get(name, "each"))
        for case, (name, link, dtype) in CASES.items()
    }
    torch.use_deterministic_algorithms(True)
    found["deterministic"] = errors("symmetric", N, D, torch.float32, LogOdds())
    torch.use_deterministic_algorithms(False)
    found["twin"] = errors("twin", N, D, torch.float32, LogOdds())
    groups = torch.arange(14).reshape(7, 2) // 4  # a column of a table is not contiguous
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    found["strided"] = [
        [loss(x, LogOdds(), None).tolist() for loss in (triton.loss, reference.loss)]
        for x in (Contrast(rows, labels=groups[:, 0]), Contrast(rows, rows.flip(1), ids=groups[:, 0]))
    ]
    outside = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # the NaN that a GPU makes
    rows.requires_grad_()
    value = triton.loss(Contrast(rows, labels=groups[:, 0]), LogOdds(), 0.5)
    found["NaN from outside"] = torch.autograd.grad(value, rows, outside)[0].isnan().tolist()
    torch.manual_seed(0)
    a = torch.randn(7, 5, requires_grad=True)
    first = triton.loss(Contrast(a, torch.randn(7, 5)), LogOdds(), None).sum()
    first = torch.autograd.grad(first, a, create_graph=True)[0]
    try:
        first.sum().backward()
        found["second derivative"] = "none"
    except RuntimeError as error:
        found["second derivative"] = str(error)
    link, found["changed link"] = LearnableTemperature(0.1), []
    for change in (0.0, 1.0):
        value = nt_xent(a, a.detach().flip(0), link=link, reduction="none", backend="triton").sum()
        link.log_scale.data.add_(change)
        learned = torch.autograd.grad(value, (a, link.log_scale))
        found["changed link"].append(torch.cat([x.flatten() for x in learned]).tolist())
    found["finite"] = []
    for x, y in ((a[:1], a[:1]), (0 * a, a), (torch.ones(4, 3), torch.ones(4, 3)), (a * 1e30, -a * 1e-36)):
        x = x.detach().clone().requires_grad_()
        value = triton.loss(Contrast(x, y.detach(), symmetric=True), LogOdds(), None)
        found["finite"].append([*value.tolist(), *torch.autograd.grad(value.sum(), x)[0].flatten().tolist()])

    def plain(a, b):
        return info_nce(a, b, symmetric=True, reduction="sum", backend="triton")

    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    grads = [torch.autograd.grad(loss(a, a.detach().flip(0)), a)[0] for loss in (plain, compiled)]
    found["compiled"] = float((grads[0] - grads[1]).norm() / grads[0].norm())
    calibrated, fused, view = [], [], torch.randn(N, D)
    compiled = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    for one, how in (("reference", lambda f: f), ("triton", lambda f: f), ("triton", compiled)):
        link = CalibratedLogOdds()
        loss = how(lambda a, b, link=link, one=one: nt_xent(a, b, link=link, backend=one))
        calibrated.append([loss(view, view.flip(0)).item() for _ in range(2)])
        fused.append(link.gain)
    found["calibrated"] = [calibrated, fused]
    print(json.dumps(found))


@pytest.fixture(scope="module")
def interpreted():
    source = Path(triton.__file__).parents[3]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case, interpreted):
    assert max(interpreted[case]) < TOLERANCE[CASES[case][2]]


def test_a_negative_that_agrees_with_its_anchor(interpreted):
    """1 - c of tiles is a difference of float32 numbers near 1: exact to 1e-7 of the resolution's 1e-4."""
    assert max(interpreted["twin"]) < 2e-3


def test_ids_and_labels_may_be_columns_of_a_table(interpreted):
    for fused, dense in interpreted["strided"]:
        assert fused == pytest.approx(dense, rel=1e-5)


def test_a_gradient_of_nan_does_not_become_zero(interpreted):
    assert all(map(all, interpreted["NaN from outside"]))


def test_deterministic_sums(interpreted):
    assert max(interpreted["deterministic"]) < TOLERANCE[torch.float32]


def test_a_second_derivative_names_the_backend_that_has_one(interpreted):
    assert 'backend="reference"' in interpreted["second derivative"]


def test_any_finite_input_gives_finite_results(interpreted):
    for values in interpreted["finite"]:
        assert all(abs(x) < float("inf") for x in values)
    assert not any(interpreted["finite"][0])  # one row and no negatives: loss 0, gradient 0


def test_a_measured_gain_is_the_same_everywhere_compiled_or_not(interpreted):
    losses, gains = interpreted["calibrated"]
    assert gains[0] > 2
    assert gains == pytest.approx([gains[0]] * 3, rel=1e-6)
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=1e-5)


def test_a_link_may_change_between_forward_and_backward(interpreted):
    before, after = interpreted["changed link"]
    assert max(map(abs, before)) > 0.01
    assert after == before


def test_compiles_to_one_graph(interpreted):
    assert interpreted["compiled"] == 0


class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return cosine**3


@pytest.mark.parametrize(
    ("contrast", "link", "reason"),
    [
        (Contrast(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3)), LogOdds(), "CUDA"),
        (Contrast(torch.ones(2, 3), torch.ones(2, 3)), LogOdds(), "CUDA"),
    ],
)
def test_says_what_it_cannot_do(contrast, link, reason):
    assert reason in triton.supported(contrast, link)


@gpu
@pytest.mark.parametrize(
    ("change", "link", "reason"),
    [
        ({}, Cubic(), "Cubic"),
        ({}, LogOdds(resolution=1e-8), "at least 1e-07"),
        ({"dtype": torch.bfloat16}, LogOdds(resolution=1e-6), "at least 1e-05"),
        ({"dtype": torch.float64}, LogOdds(), "float64"),
        ({"d": 5000}, LogOdds(), "5000"),
        ({}, LogOdds(), None),
    ],
)
def test_says_what_it_cannot_do_on_a_gpu(change, link, reason):
    rows = torch.ones(3, change.get("d", 8), dtype=change.get("dtype", torch.float32), device="cuda")
    found = triton.supported(Contrast(rows, rows), link)
    assert found is None if reason is None else reason in found


@gpu
@pytest.mark.parametrize("shape", [(1, 8), (130, 16), (515, 200), (1100, 1030)], ids=str)
@pytest.mark.parametrize("name", ["symmetric", "views", "all", "few labels"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_on_a_gpu(shape, name, dtype):
    if shape[0] == 1:
        x = torch.randn(1, 8, device="cuda", dtype=dtype, requires_grad=True)
        value = triton.loss(Contrast(x, x.detach(), symmetric=True), LogOdds(), None)
        assert value.item() == 0
        assert not torch.autograd.grad(value.sum(), x)[0].any()
        return
    assert max(errors(name, *shape, dtype, LogOdds(), "cuda")) < TOLERANCE[dtype]


@gpu
@pytest.mark.parametrize("name", ["symmetric", "views", "all", "few labels"])
@pytest.mark.parametrize("link", ["gain", "learned"])
def test_sums_of_some_columns_at_a_time_on_a_gpu(name, link, monkeypatch):
    from taufree.backends.fused import tile_passes as launch

    monkeypatch.setattr(launch, "PARTIAL", 1)  # one column of tiles
    found = errors(name, 515, 200, torch.float32, LINKS[link](), "cuda")
    assert max(found) < TOLERANCE[torch.float32]


@gpu
def test_deterministic_gradients_are_bit_equal_on_a_gpu():
    torch.use_deterministic_algorithms(True)
    try:
        case = make("symmetric", 1500, 96, torch.bfloat16, "cuda")
        results = [evaluate(triton.loss, *case, LogOdds()) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


@gpu
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_step_never_waits_for_the_gpu_and_fits_a_graph(link, dtype):
    a, b = (torch.randn(700, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    with torch.device("cuda"):
        link = LINKS[link]()

    def step():
        a.grad = b.grad = None
        triton.loss(Contrast(a, b, symmetric=True), link, 1 / 700).backward()

    step()
    expected = a.grad.clone()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    a.grad = b.grad = None
    with torch.cuda.graph(graph):
        triton.loss(Contrast(a, b, symmetric=True), link, 1 / 700).backward()
    graph.replay()
    torch.testing.assert_close(a.grad, expected, rtol=2e-2, atol=1e-6)


@gpu
def test_memory_grows_with_the_rows_not_their_square():
    a, b = (torch.randn(20000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    triton.loss(Contrast(a, b, symmetric=True), LogOdds(), None).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 600 * 2**20  # a dense matrix: 1600 MB, several times


if __name__ == "__main__":
    interpret()
