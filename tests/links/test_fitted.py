"""FittedLogOdds and FittedTemperature: they follow the scale that makes a batch most likely, and stay where
they must."""

import copy
from types import SimpleNamespace

import pytest
import torch
from scipy.optimize import minimize_scalar

from taufree import (
    CalibratedLogOdds,
    FittedLogOdds,
    FittedTemperature,
    InfoNCE,
    LogOdds,
    info_nce,
    nt_xent,
    sigmoid_nce,
    sup_con,
)
from taufree.backends import likelihood, moments
from taufree.backends.blockwise import one_tile
from taufree.backends.measure import ContrastMeasure
from taufree.contrast import Bias, Contrast
from taufree.links import Likelihood
from taufree.links.temperature import Scaled

IDS = torch.arange(60) // 2


def pairs(n=60, d=8, noise=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return first, first + noise * torch.randn(n, d, generator=generator, dtype=torch.float64)


CONTRASTS = {
    "pairs": lambda a, b: Contrast(a, b),
    "views": lambda a, b: Contrast(torch.cat([a, b]), shift=len(a)),
    "ids": lambda a, b: Contrast(a, b, ids=IDS),
    "labels": lambda a, b: Contrast(a, labels=IDS % 9),
    "queue": lambda a, b: Contrast(a, b, queue=b.flip(0)[:31], in_batch=False),
    "queue and batch": lambda a, b: Contrast(a, b, queue=a.flip(0)[:31]),
    "sigmoid": lambda a, b: Contrast(a, b, bias=Bias(0.0, None, True)),
    "sigmoid, ids": lambda a, b: Contrast(a, b, ids=IDS, bias=Bias(1.0, torch.tensor(-3.0), False)),
    "own": lambda a, b: Contrast(a, b, own_negatives=torch.stack([b.flip(0), a.roll(1, 0)], 1)),
}
LOSSES = {
    "pairs": lambda a, b, **kw: info_nce(a, b, **kw),
    "views": lambda a, b, **kw: nt_xent(a, b, **kw),
    "ids": lambda a, b, **kw: info_nce(a, b, ids=IDS, **kw),
    "labels": lambda a, b, **kw: sup_con(a, IDS % 9, **kw),
    "queue": lambda a, b, **kw: info_nce(a, b, b.flip(0)[:31], **kw),
    "queue and batch": lambda a, b, **kw: info_nce(a, b, a.flip(0)[:31], in_batch=True, **kw),
    "sigmoid": lambda a, b, **kw: sigmoid_nce(a, b, **kw),
    "sigmoid, ids": lambda a, b, **kw: sigmoid_nce(a, b, ids=IDS, bias=-2.0, **kw),
    "own": lambda a, b, **kw: info_nce(a, b, torch.stack([b.flip(0), a.roll(1, 0)], 1), in_batch=True, **kw),
}


@pytest.mark.parametrize("name", ["pairs", "views", "float16 keys"])
@pytest.mark.parametrize("n", [3, 60, 500])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_plain_contrast_is_measured_at_once_as_part_by_part(name, n, dtype):
    """With a short row, an identical and an opposite pair; keys of float16 are of lengths that it has, but
    that others would take for longer than they may be."""
    a, b = pairs(n)
    a[0], b[1], b[2] = 0, a[1], -a[2]
    b = (b * 1e-4).half() if name == "float16 keys" else b.to(dtype)
    contrast, link = CONTRASTS[name.replace("float16 keys", "pairs")](a.to(dtype), b), LogOdds(2.0)
    assert likelihood.plain(contrast)
    sample = likelihood.AnchorSample(contrast, link)
    sample.add_own()
    expected = likelihood.summary(sample.sums(contrast.n))
    torch.testing.assert_close(
        torch.stack(likelihood.of_rows(contrast, link)), torch.stack(expected), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("room", [2**22, 500])
@pytest.mark.parametrize("name", CONTRASTS)
def test_the_derivatives_are_those_of_the_loss(name, room, monkeypatch):
    """With respect to the logarithm of the gain; a huge number of anchors hides the smoothing."""
    monkeypatch.setattr(likelihood, "MAX_ANCHORS", 10**6)
    monkeypatch.setattr(likelihood, "MAX_NUMBERS", room)
    a, b = pairs()
    a[3], b[5] = 0, 0  # rows of length zero, whose cosines are 0
    sample = likelihood.AnchorSample(CONTRASTS[name](a, b), LogOdds(2.0))
    sample.add_own()
    found = likelihood.summary(sample.sums(10**12))
    h = 1e-4
    low, here, high = (
        LOSSES[name](a, b, link=LogOdds(2.0 * 2.718281828459045**x), backend="reference").item()
        for x in (-h, 0, h)
    )
    assert found.gradient.item() == pytest.approx((high - low) / (2 * h), rel=1e-5, abs=1e-8)
    second = (high - 2 * here + low) / h**2
    assert (found.variance + found.gradient).item() == pytest.approx(second, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [40, 200])
@pytest.mark.parametrize("name", ["pairs", "views", "queue"])
@pytest.mark.parametrize("link", [LogOdds(2.0), Scaled(8.0)], ids=["log-odds", "linear"])
def test_a_batch_in_one_matrix_is_measured_as_any_other(link, name, n, dtype):
    a, b = (x.to(dtype) for x in pairs(n=n, d=32))
    queue = torch.randn(31, 32, generator=torch.Generator().manual_seed(5)).to(dtype)
    contrast = Contrast(a, b, queue=queue) if name == "queue" else CONTRASTS[name](a, b)
    for copied in (False, True):
        if copied:  # of which one matrix in float32 would be wrong
            contrast.anchors[5] = contrast.anchors[7]
        measure = ContrastMeasure(contrast, link)
        sample = likelihood.AnchorSample(contrast, link)
        sample.add_own()
        expected = likelihood.summary(sample.sums(contrast.n))
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4 if copied else 1e-5
        torch.testing.assert_close(measure.likelihood(link), expected, rtol=tolerance, atol=0)
        near = copied and name == "views" and (n == 200 or dtype == torch.float64)
        assert (not measure.contrast.matrix) == near
        squares = ContrastMeasure(contrast, link).squared_cosine()
        torch.testing.assert_close(squares, moments.measure(contrast), rtol=tolerance, atol=1e-9)


def test_a_single_anchor_leaves_the_calibrated_gain():
    query, key = pairs(n=1)
    queue = torch.randn(31, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    contrast, link = Contrast(query, key, queue=queue), CalibratedLogOdds()
    mean, error = ContrastMeasure(contrast, link).squared_cosine()
    assert (mean, error) == moments.measure(contrast)
    assert error == torch.inf
    info_nce(query, key, queue, in_batch=True, link=link)
    assert link.gain == 1


@pytest.mark.parametrize("name", CONTRASTS)
def test_only_plain_contrasts_are_measured_in_one_matrix(name):
    a, b = pairs()
    contrast = CONTRASTS[name](a, b)
    assert one_tile.measurable(contrast) == (name in ("pairs", "views", "queue and batch"))
    a[3] = 0
    measure = ContrastMeasure(contrast, LogOdds())
    measure.likelihood(LogOdds())
    assert not measure.contrast.matrix


@pytest.mark.parametrize("name", CONTRASTS)
@pytest.mark.parametrize("kind", [FittedLogOdds, FittedTemperature])
def test_it_comes_to_the_most_likely_gain(kind, name):
    """Of one batch again and again; of different ones to a mean of theirs."""
    a, b = pairs(d=4)
    link = kind()
    for _ in range(60):
        link.curvature.zero_()  # or it would get there ever more slowly
        LOSSES[name](a, b, link=link)

    def smoothed(scale):
        made = LogOdds(scale) if kind is FittedLogOdds else Scaled(scale)
        return ContrastMeasure(CONTRASTS[name](a, b), link).likelihood(made).gradient.item() ** 2

    best = minimize_scalar(smoothed, bounds=(0.05, 60), method="bounded", options={"xatol": 1e-6}).x
    assert link.formula_scale() == pytest.approx(max(1 if kind is FittedLogOdds else 2, best), rel=1e-3)
    assert kind is FittedLogOdds or link.tau == 1 / link.formula_scale()


def test_later_batches_move_it_less():
    """All batches count alike: the hundredth by a hundredth."""
    sharp, blurred, link, moved = pairs(200, 64, noise=0.8), pairs(200, 64, noise=1.5), FittedLogOdds(), []
    for batch in [sharp] * 10 + [blurred] + [sharp] * 90 + [blurred]:
        before = link.gain
        info_nce(*batch, link=link)
        moved.append(abs(link.gain / before - 1))
    assert moved[10] > 4 * moved[-1] > 0


def batch(t, cone):
    """Other pairs for each t; in a cone they are near one direction, where all cosines are near 1."""
    a, b = pairs(128, 32, seed=t)
    axis = torch.eye(32, dtype=torch.float64)[0]
    return (axis + 0.01 * a, axis + 0.01 * b) if cone else (a, b)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [(FittedTemperature, info_nce), (FittedTemperature, sigmoid_nce), (FittedLogOdds, sigmoid_nce)],
)
def test_what_was_fitted_in_a_cone_is_forgotten(kind, loss):
    """Vectors of an untrained network lie in one; the scale they ask for is wrong by far when they spread."""
    link, other = kind(), kind()
    for t in range(40):
        loss(*(x.requires_grad_() for x in batch(t, cone=True)), link=link)
    in_cone = link.formula_scale()
    for t in range(100, 140):
        for one in (link, other):
            loss(*(x.requires_grad_() for x in batch(t, cone=False)), link=one)
    assert in_cone < other.formula_scale() / 2 or in_cone > other.formula_scale() * 2
    assert link.formula_scale() == pytest.approx(other.formula_scale(), rel=0.05)


def test_batches_of_another_kind_now_and_then_are_no_reason_to_forget():
    link = FittedTemperature()
    for t in range(60):
        scale = link.formula_scale()
        info_nce(*(x.requires_grad_() for x in batch(t, cone=t % 8 == 7)), link=link)
        assert t < 8 or abs(link.formula_scale() / scale - 1) < 0.1
    assert link.far_in_a_row.item() <= 1


def test_a_separable_batch_has_a_finite_gain_that_grows_with_its_size():
    gains = []
    for n in (8, 64, 512):
        one, none, link = torch.eye(n, dtype=torch.float64), torch.zeros(n, n), FittedLogOdds()
        for _ in range(40):  # cosine 1/2 with the positive, 0 with all others
            info_nce(torch.cat([one, one, none], 1), torch.cat([one, none, one], 1), link=link)
        gains.append(link.gain)
    assert 1 < gains[0] < gains[1] < gains[2] < 20


def test_pairs_that_say_nothing_leave_the_papers_link():
    a, b = pairs(200)
    link = FittedLogOdds()
    for _ in range(5):
        info_nce(a, b.flip(0), link=link)
    assert link.gain == 1


ROWS, ONE_LABEL = torch.eye(4, 3) + 0.1, torch.zeros(4, dtype=torch.long)
TELL_NOTHING = {
    "NaN": lambda **kw: info_nce(torch.full((4, 3), torch.nan), ROWS, **kw),
    "one NaN": lambda **kw: nt_xent(ROWS, ROWS.where(torch.eye(4, 3) == 0, torch.nan), **kw),
    "infinity": lambda **kw: info_nce(ROWS, ROWS * torch.inf, **kw),
    "a single row": lambda **kw: info_nce(ROWS[:1], ROWS[:1], **kw),
    "a single sample": lambda **kw: nt_xent(ROWS[:1], ROWS[1:2], **kw),
    "all the same": lambda **kw: info_nce(torch.ones(4, 3), torch.ones(4, 3), **kw),
    "zeros": lambda **kw: info_nce(torch.zeros(4, 3), torch.zeros(4, 3), **kw),
    "zero keys": lambda **kw: info_nce(ROWS, torch.zeros(4, 3), **kw),
    "ids that leave no negatives": lambda **kw: info_nce(ROWS, ROWS.flip(0), ids=ONE_LABEL, **kw),
    "the same of two views": lambda **kw: nt_xent(ROWS, ROWS.flip(0), ids=ONE_LABEL, **kw),
    "the same of the sigmoid": lambda **kw: sigmoid_nce(ROWS, ROWS.flip(0), ids=ONE_LABEL, **kw),
    "one label": lambda **kw: sup_con(ROWS, ONE_LABEL, **kw),
    "labels without positives": lambda **kw: sup_con(ROWS, torch.arange(4), **kw),
    "an empty queue": lambda **kw: info_nce(ROWS, ROWS.flip(0), ROWS[:0], **kw),
}


@pytest.mark.parametrize("name", TELL_NOTHING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_that_tells_nothing_leaves_no_trace(name, dtype):
    a, b = (x.to(dtype) for x in pairs(noise=0.3))
    link, plain = FittedLogOdds(), FittedLogOdds()
    for _ in range(3):
        TELL_NOTHING[name](link=link)  # neither before the first batch that is fitted at once, nor later
        for one in (link, plain):
            info_nce(a, b, link=one)
    assert link.state_dict() == plain.state_dict()
    assert link.gain > 1


@pytest.mark.parametrize("scale", [1e-200, 1e200])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_whose_squares_leave_the_range_of_float64_are_measured_as_others(name, scale):
    a, b = pairs(noise=0.3)
    for kind in (FittedLogOdds, CalibratedLogOdds):
        links = [kind(), kind()]
        for link, factor in zip(links, (1, scale), strict=True):
            LOSSES[name](factor * a, factor * b, link=link)
        torch.testing.assert_close(links[1].state_dict(), links[0].state_dict())
        assert any(not torch.equal(x, y) for x, y in zip(kind().buffers(), links[0].buffers(), strict=True))


@pytest.mark.parametrize("n", [25, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_all_agree_leave_the_papers_link(dtype, n):
    """Whose derivatives are rounding errors: their quotient once was a gain of 2,000."""
    for seed in range(8):
        row = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)).to(dtype).expand(n, 8)
        link = FittedLogOdds()
        for _ in range(3):
            info_nce(row, 1.5 * row, link=link)
        assert link.gain == 1


def test_the_first_batch_is_fitted_at_once():
    a, b = pairs(500, 64, noise=1.0)
    link, later = FittedLogOdds(), FittedLogOdds()
    info_nce(a, b, link=link)
    for _ in range(20):
        later.begins = True
        info_nce(a, b, link=later)
    assert link.gain == pytest.approx(later.gain, rel=0.05)
    again = FittedLogOdds()
    again.load_state_dict(link.state_dict())
    assert not again.begins


def test_one_step_is_at_most_a_factor_of_two():
    a, b = pairs(500, 64, noise=1.0)
    link = FittedLogOdds()
    link.begins = False
    info_nce(a, b, link=link)
    assert link.gain == pytest.approx(2)


def test_evaluation_and_no_grad_leave_it():
    a, b = pairs(noise=0.3)
    loss = InfoNCE(link="fitted")
    loss.eval()(a, b)
    with torch.no_grad():
        loss.train()(a, b)
    assert loss.link.gain == 1
    loss(a, b)
    assert loss.link.gain > 1


def test_it_is_saved_and_copied():
    a, b = pairs(noise=0.3)
    loss = InfoNCE(link="fitted")
    loss(a, b)
    again = InfoNCE(link="fitted")
    again.load_state_dict(loss.state_dict())
    assert again.link.gain == copy.deepcopy(loss.link).gain == loss.link.gain
    assert f"gain={loss.link.gain:.3g}" in repr(again)


def test_the_backward_has_the_gain_of_its_forward():
    a, b = pairs(noise=0.3)
    a.requires_grad_()
    link = FittedLogOdds()
    loss = info_nce(a, b, link=link)
    expected = torch.autograd.grad(info_nce(a, b, link=LogOdds(link.gain)), a)[0]
    info_nce(a, b, link=link)
    torch.testing.assert_close(torch.autograd.grad(loss, a)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_measures_alike(dtype):
    a, b = pairs(200, 32)
    found = []
    for kind in (torch.float64, dtype):
        link = FittedLogOdds()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(6):
                info_nce(a.to(kind), b.to(kind), link=link)
        found.append(link.gain)
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize("name", ["pairs", "views", "ids"])
@pytest.mark.parametrize("width", [0.1, 0.01, 0.003])
def test_in_a_cone_float32_finds_the_temperature_of_float64(name, width):
    """All logits are nearly as large as the scale, from which E[l^2] - E[l]^2 would be rounding alone."""
    found = []
    for dtype in (torch.float32, torch.float64):
        link, axis = FittedTemperature(), torch.eye(8, dtype=torch.float64)[0]
        for t in range(12):
            a, b = ((axis + width * x).to(dtype) for x in pairs(noise=0.5, seed=t))
            LOSSES[name](a, b, link=link)
        found.append(link.tau)
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[1] < 0.01


@pytest.mark.parametrize("kind", [FittedLogOdds, FittedTemperature, CalibratedLogOdds])
@pytest.mark.parametrize("n", [40, 200, 1500])
def test_autocast_rounds_nothing_that_is_measured(kind, n):
    a, b = (x.float() for x in pairs(n, 32, noise=0.3))
    states = []
    for rounded in (False, True):
        link = kind()
        with torch.autocast("cpu", dtype=torch.float16, enabled=rounded):
            for _ in range(3):
                info_nce(a, b, link=link)
        states.append(link.state_dict())
    assert states[0] == states[1]


@pytest.mark.parametrize("kind", [FittedLogOdds, FittedTemperature, CalibratedLogOdds])
def test_made_in_inference_mode_or_on_the_meta_device_it_can_be_shown_and_used(kind):
    with torch.inference_mode():
        link = kind()
    info_nce(*pairs(noise=0.3), link=link)
    assert link.formula_scale() > 1
    with torch.device("meta"):
        assert "?" in repr(kind())


def test_a_backend_that_cannot_run_is_refused_before_anything_is_measured():
    link = FittedLogOdds()
    with pytest.raises(ValueError, match="triton"):
        info_nce(*pairs(noise=0.3), link=link, backend="triton")
    assert link.gain == 1


def test_a_batch_of_infinite_curvature_leaves_no_trace():
    link = FittedLogOdds()
    info_nce(*pairs(noise=0.3), link=link)
    before = copy.deepcopy(link.state_dict())
    wild = Likelihood(torch.tensor(-1.0), torch.tensor(torch.inf))
    link._step(SimpleNamespace(likelihood=lambda _: wild, fit_gain=lambda *_: False))
    assert link.state_dict() == before


def test_a_checkpoint_from_before_batches_were_forgotten_loads():
    link = FittedLogOdds()
    info_nce(*pairs(noise=0.3), link=link)
    old = {name: x for name, x in link.state_dict().items() if name != "far_in_a_row"}
    again = InfoNCE(link="fitted")
    again.load_state_dict({f"link.{name}": x for name, x in old.items()})
    assert again.link.gain == link.gain


def test_a_near_copy_among_the_negatives_is_found_once(monkeypatch):
    """Such a matrix is left to the engine; it must not be made again by each measurement and by the loss."""
    made, original = [], one_tile.matrix_of
    monkeypatch.setattr(one_tile, "matrix_of", lambda *args: made.append(original(*args)) or made[-1])
    a, b = (x.float() for x in pairs(200, 32))
    b[1] = a[0]
    link = FittedLogOdds()
    loss = info_nce(a, b, link=link)
    assert made == [None]
    assert loss.item() == pytest.approx(
        info_nce(a, b, link=LogOdds(link.gain), backend="reference").item(), rel=1e-5
    )


def test_a_cone_is_measured_as_well_as_the_sphere():
    """All cosines above 0.999: 1 - c must come from small differences of rows."""
    generator = torch.Generator().manual_seed(0)
    cone = torch.cat([torch.full((300, 1), 100.0), torch.randn(300, 8, generator=generator)], 1)
    other = cone + 0.3 * torch.cat([torch.zeros(300, 1), torch.randn(300, 8, generator=generator)], 1)
    found = []
    for dtype in (torch.float64, torch.float32):
        link = FittedLogOdds(resolution=1e-6)
        for _ in range(6):
            info_nce(cone.to(dtype), other.to(dtype), link=link)
        found.append(link.gain)
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize("kind", [FittedLogOdds, FittedTemperature])
def test_weights_stay_in_range_in_the_narrowest_cone(kind):
    """Where ever more gain is likelier, as in a network before its training."""
    generator = torch.Generator().manual_seed(0)
    a = torch.ones(1, 16) + 0.02 * torch.randn(64, 16, generator=generator)
    link = kind()
    for _ in range(20):
        info_nce(a, a + 0.002 * torch.randn(64, 16, generator=generator), link=link)
    logit = link.formula_scale() * link.largest
    assert logit <= 690.0 * (1 + 1e-6)
    assert kind is FittedLogOdds or logit == pytest.approx(690.0)
