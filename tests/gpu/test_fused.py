"""The fused kernels against the reference."""

import pytest
import torch

from taufree import FittedLogOdds, FittedTemperature, Link, LogOdds, Temperature, info_nce
from taufree.backends import fused
from taufree.contrast import Bias, Contrast
from tests.gpu.random_cases import Limits, wrong_cases
from tests.support.devices import require_gpu
from tests.support.fit_cases import FIT_LOSSES, fit_steps
from tests.support.fused_cases import (
    DECOUPLED,
    LINKS,
    ROWS,
    SCALES,
    SIGMOID,
    TOLERANCE,
    each_tau,
    errors,
    evaluate,
    make,
    tracked_error,
)

pytestmark = require_gpu()


class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return cosine**3


@pytest.mark.parametrize(
    ("change", "link", "reason"),
    [
        ({}, Cubic(), "Cubic"),
        ({}, LogOdds(resolution=1e-8), "at least 1e-07"),
        ({"dtype": torch.bfloat16}, LogOdds(resolution=1e-6), "at least 1e-05"),
        ({"dtype": torch.float64}, LogOdds(), "float64"),
        ({"d": 5000}, LogOdds(), "5000"),
        ({}, LogOdds(gain=100.0), "2^1000"),
        ({}, LogOdds(), None),
        ({}, Temperature(torch.ones(3)), None),
        ({"symmetric": True}, Temperature(torch.ones(6)), "in losses of one direction"),
    ],
)
def test_says_what_it_cannot_do(change, link, reason):
    rows = torch.ones(3, change.get("d", 8), dtype=change.get("dtype", torch.float32), device="cuda")
    found = fused.unsupported(Contrast(rows, rows, symmetric=change.get("symmetric", False)), link)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("shape", [(1, 8), (130, 16), (515, 200), (1100, 1030)], ids=str)
@pytest.mark.parametrize("name", ["symmetric", "views", "all", "few labels", *DECOUPLED, *SIGMOID])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_agrees_with_the_reference(shape, name, dtype):
    if shape[0] == 1:
        x = torch.randn(1, 8, device="cuda", dtype=dtype, requires_grad=True)
        value = fused.loss(Contrast(x, x.detach(), symmetric=True), LogOdds(), None)
        assert value.item() == 0
        assert not torch.autograd.grad(value.sum(), x)[0].any()
        return
    assert max(errors(name, *shape, dtype, LogOdds(), "cuda")) < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(130, 16), (1100, 1030)], ids=str)
@pytest.mark.parametrize("name", ["symmetric", "views", "all", "own", "few labels", "keys"])
@pytest.mark.parametrize(("link", "dtype"), [("odds", torch.float32), ("tau", torch.bfloat16)], ids=str)
def test_statistics_agree_with_the_reference(shape, name, link, dtype):
    assert tracked_error(name, *shape, dtype, LINKS[link](), "cuda") < 1e-5


@pytest.mark.parametrize("name", ["one-way", "queue", "views", "decoupled views"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_temperature_for_each_anchor(name, dtype):
    tau = each_tau(1030 if "views" in name else 515)
    assert max(errors(name, 515, 200, dtype, tau, "cuda")) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["symmetric", "views", "all", "few labels"])
@pytest.mark.parametrize("link", ["gain", "learned"])
def test_sums_of_some_columns_at_a_time(name, link, monkeypatch):
    from taufree.backends.fused import tile_passes as launch

    monkeypatch.setattr(launch, "PARTIAL_SUM_BYTES", 1)  # one column of tiles
    torch.use_deterministic_algorithms(True)
    try:
        found = errors(name, 515, 200, torch.float32, LINKS[link](), "cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert max(found) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gains_and_scales_of_all_sizes(rows, scale, dtype):
    """Next to a duplicate the log-odds are as exact as 1 - c is, and a gain multiplies what they miss."""
    found = errors(rows, 515, 200, dtype, SCALES[scale](), "cuda")
    if "gain" in scale and rows != "random":
        assert all(x < float("inf") for x in found)
    else:
        assert max(found) < 2 * TOLERANCE[dtype]


def test_random_cases():
    """``python -m tests.gpu.random_cases`` does more of them."""
    assert list(wrong_cases(range(60), Limits(300, (20, 64)), "cuda")) == []


def test_deterministic_gradients_are_bit_equal():
    torch.use_deterministic_algorithms(True)
    try:
        case = make("symmetric", 1500, 96, torch.bfloat16, "cuda")
        results = [evaluate(fused.loss, *case, LogOdds()) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", SIGMOID)
@pytest.mark.parametrize("link", LINKS)
def test_the_sigmoid_loss_with_every_link(name, link):
    assert max(errors(name, 515, 200, torch.float32, LINKS[link](), "cuda")) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("contrast", [{"symmetric": True}, {"bias": Bias(0.0, None, True)}], ids=str)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_step_never_waits_for_the_gpu_and_fits_a_graph(link, dtype, contrast):
    a, b = (torch.randn(700, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    with torch.device("cuda"):
        link = LINKS[link]()

    def step():
        a.grad = b.grad = None
        fused.loss(Contrast(a, b, **contrast), link, 1 / 700).backward()

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
        fused.loss(Contrast(a, b, **contrast), link, 1 / 700).backward()
    graph.replay()
    torch.testing.assert_close(a.grad, expected, rtol=2e-2, atol=1e-6)


def test_memory_grows_with_the_rows_not_their_square():
    a, b = (torch.randn(20000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused.loss(Contrast(a, b, symmetric=True), LogOdds(), None).sum().backward()
    fused.loss(Contrast(a, b, bias=Bias(0.0, None, True)), LogOdds(), 1.0).backward()
    assert torch.cuda.max_memory_allocated() - before < 600 * 2**20  # a dense matrix: 1600 MB, several times


@pytest.mark.parametrize("kind", [FittedLogOdds, FittedTemperature])
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        *((name, (700, 200), torch.float32) for name in FIT_LOSSES),
        ("pairs", (4000, 130), torch.bfloat16),
        ("pairs", (20000, 130), torch.bfloat16),  # several blocks of candidates for a program
        ("views", (40, 16), torch.float16),
    ],
    ids=str,
)
def test_a_fitted_gain_is_the_same_by_kernels(kind, name, shape, dtype, monkeypatch):
    """The curvature has a part that is the gradient, of which few digits are left at the minimum, and in a
    cone all of it is left by differences."""
    monkeypatch.setattr(fused, "MAX_FITTED", 2**20)
    expected, found = (fit_steps(kind, name, *shape, dtype, "cuda", exactly=x) for x in (True, False))
    assert found == pytest.approx(expected, rel=3e-3, abs=1e-5)


def test_a_fitted_gain_is_taken_by_two_kernels():
    """The measuring of torch takes a hundred."""
    a, b = torch.randn(2, 256, 128, device="cuda")
    link = FittedLogOdds().cuda()
    info_nce(a, b, link=link)  # fitted at once
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watched:
        info_nce(a, b, link=link)
        torch.cuda.synchronize()
    names = [event.key for event in watched.key_averages()]
    assert {"sample_logits", "newton"} <= set(names)
    assert len(names) < 25, names
