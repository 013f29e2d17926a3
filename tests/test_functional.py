"""The losses as functions: hard cases, reductions, and the paper's scenario."""

import math

import pytest
import torch

from taufree import (
    CalibratedLogOdds,
    FittedLogOdds,
    LearnableTemperature,
    LogOdds,
    Temperature,
    info_nce,
    nt_xent,
    sigmoid_nce,
    sup_con,
)

BACKENDS = ["reference", "blockwise"]
LINKS = [LogOdds(), LogOdds(gain=3.0), Temperature(0.01), Temperature(1.0), LearnableTemperature()]


def rows(n, d=8, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def every_loss(a, b, **options):
    labels = torch.arange(len(a)) // 2
    yield info_nce(a, b, **options)
    yield info_nce(a, b, symmetric=True, ids=labels, **options)
    yield info_nce(a, b, b.flip(0), in_batch=True, **options)
    yield info_nce(a, b, b.flip(0)[:, None], **options)
    yield nt_xent(a, b, **options)
    yield nt_xent(a, b, ids=labels, **options)
    yield sup_con(a, labels, **options)
    yield sigmoid_nce(a, b, **options)
    yield sigmoid_nce(a, b, ids=labels, bias=torch.tensor(-9.0), **options)


def hard_pairs():
    x = rows(6)
    zero = x.clone()
    zero[::2] = 0
    duplicates = x[[0, 0, 1, 1, 2, 2]]
    return {
        "identical views": (x, x),
        "all rows equal": (x[:1].expand(6, -1), x[:1].expand(6, -1)),
        "opposite rows": (x, -x),
        "zero rows": (zero, x),
        "zero rows on both sides": (zero, zero),
        "nothing but zeros": (torch.zeros(6, 8), torch.zeros(6, 8)),
        "duplicates across ids": (duplicates, duplicates),
        "tiny": (x * 1e-20, x.flip(0) * 1e-20),
        "huge": (x * 1e20, x.flip(0) * 1e20),
        "tiny and huge": (x * 1e-20, x * 1e20),
        "subnormal": (x * 1e-40, x),
        "largest": (x / x.abs().max() * 3e38, x),
        "one row": (x[:1], x[1:2]),
        "one row, identical": (x[:1], x[:1]),
        "one dimension": (x[:, :1], x[:, 1:2]),
        "not contiguous": (rows(8, 6).T[:6], x[:, ::1]),
    }


HARD = [
    (name, dtype)
    for name, pair in hard_pairs().items()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if all(x.to(dtype).isfinite().all() for x in pair)
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "dtype"), HARD)
def test_hard_cases_are_finite(name, dtype, backend):
    a, b = (x.to(dtype) for x in hard_pairs()[name])
    for link in LINKS:
        leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        for loss in every_loss(*leaves, link=link, backend=backend):
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
            assert loss.isfinite()
            assert all(g is None or g.isfinite().all() for g in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_not_a_number_in_gives_not_a_number_out(backend):
    a, b = rows(6), rows(6, seed=1)
    a[2, 3] = math.nan
    for loss in every_loss(a, b, backend=backend):
        assert loss.isnan()
    a[2, 3] = math.inf
    for loss in every_loss(a, b, backend=backend):
        assert loss.isnan()
    assert info_nce(a, b, b[:0], backend=backend).isnan()  # without any negative


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_beyond_float32_is_infinite_and_raises_nothing(backend):
    """Training names the epoch in which the loss stops being a number; an error would hide it."""
    assert not nt_xent(rows(6), rows(6, seed=1), link=Temperature(1e-300), backend=backend).isfinite()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_row_and_no_negatives(backend):
    a, b = rows(1).requires_grad_(), rows(1, seed=1).requires_grad_()
    for loss in (info_nce(a, b, backend=backend), nt_xent(a, b, backend=backend)):
        assert loss.item() == 0
        assert all((g == 0).all() for g in torch.autograd.grad(loss, [a, b]))
    loss = sup_con(a, torch.tensor([3]), backend=backend)
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, a)[0] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_zero_row_has_cosine_zero_and_no_gradient(backend):
    a, b = rows(4), rows(4, seed=1)
    a[1] = 0
    a.requires_grad_()
    losses = info_nce(a, b, reduction="none", backend=backend)
    assert losses[1].item() == pytest.approx(math.log(4), rel=1e-6)
    assert (torch.autograd.grad(losses.sum(), a)[0][1] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_reductions(backend):
    a, b = rows(7), rows(7, seed=1)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3])  # the last two have no positive
    for function, counted in (
        (lambda **o: info_nce(a, b, symmetric=True, **o), 7),
        (lambda **o: nt_xent(a, b, **o), 14),
        (lambda **o: sigmoid_nce(a, b, **o), 7),
        (lambda **o: sup_con(a, labels, **o), 5),
    ):
        each = function(reduction="none", backend=backend)
        total = function(reduction="sum", backend=backend)
        assert total.item() == pytest.approx(each.sum().item(), rel=1e-6)
        assert function(backend=backend).item() == pytest.approx(total.item() / counted, rel=1e-6)
    assert each[5:].tolist() == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_has_all_digits_of_float64(backend):
    a, b = rows(80, dtype=torch.float64), rows(80, seed=1, dtype=torch.float64)
    for each, mean in zip(
        every_loss(a, b, reduction="none", backend=backend), every_loss(a, b, backend=backend), strict=True
    ):
        assert mean.item() == pytest.approx(math.fsum(each.tolist()) / len(each), rel=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_symmetric_is_the_mean_of_both_directions(backend):
    a, b, queue = rows(7), rows(7, seed=1), rows(5, seed=2)
    there = info_nce(a, b, queue, in_batch=True, reduction="none", backend=backend)
    back = info_nce(b, a, reduction="none", backend=backend)
    both = info_nce(a, b, queue, in_batch=True, symmetric=True, reduction="none", backend=backend)
    torch.testing.assert_close(both, (there + back) / 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_negatives_of_three_kinds_are_one_set(backend):
    a, b, queue = rows(5), rows(5, seed=1), rows(3, seed=2)
    shared = info_nce(a, b, queue, backend=backend)
    own = info_nce(a, b, queue.expand(5, 3, -1), backend=backend)
    torch.testing.assert_close(shared, own)
    others = torch.stack([b[[j for j in range(5) if j != i]] for i in range(5)])
    torch.testing.assert_close(info_nce(a, b, others, backend=backend), info_nce(a, b, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_leave_out_what_they_say(backend):
    a, b = rows(4), rows(4, seed=1)
    found = info_nce(a, b, ids=torch.tensor([7, 7, 8, 9]), reduction="none", backend=backend)
    torch.testing.assert_close(found[0], info_nce(a[:1], b[:1], b[2:], reduction="none")[0])
    torch.testing.assert_close(found[2], info_nce(a, b, reduction="none")[2])
    distinct = info_nce(a, b, ids=torch.arange(4), backend=backend)
    torch.testing.assert_close(distinct, info_nce(a, b))


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_inputs_and_a_queue_without_gradient(backend):
    a, b, queue = rows(5).requires_grad_(), rows(5, seed=1), rows(9, seed=2)
    info_nce(a, b, queue, backend=backend).backward()
    expected = torch.autograd.grad(info_nce(a, b.clone().requires_grad_(), queue), a)[0]
    torch.testing.assert_close(a.grad, expected)
    assert b.grad is None
    assert queue.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_mixed_dtypes_are_promoted_and_each_gradient_keeps_its_own(backend):
    half, single, double = rows(5, dtype=torch.float16), rows(5, seed=1), rows(6, seed=2, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (half, single)]
    loss = info_nce(*leaves, backend=backend)
    assert loss.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(loss, leaves)] == [torch.float16, torch.float32]
    assert info_nce(half, single, double, backend=backend).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_under_the_autocast_of_the_other_half_dtype(dtype):
    a, b = rows(5, dtype=dtype), rows(5, seed=1, dtype=dtype)
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    expected = list(every_loss(a, b))
    with torch.autocast("cpu", dtype=other):
        torch.testing.assert_close(list(every_loss(a, b)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hardness_and_weights_under_the_autocast_of_the_other_half_dtype(dtype):
    a, b = rows(5, dtype=dtype), rows(5, seed=1, dtype=dtype)
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    expected = nt_xent(a, b, hardness=2.0, weights=b[:, 0])
    with torch.autocast("cpu", dtype=other):
        assert torch.equal(nt_xent(a, b, hardness=2.0, weights=b[:, 0]), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_and_labels_from_inference_mode(backend):
    with torch.inference_mode():
        key, ids = rows(7, seed=1) * 2, torch.arange(7) // 2
    query = rows(7).requires_grad_()
    losses = [info_nce(query, k, ids=i, backend=backend) for k, i in ((key, ids), (key.clone(), ids.clone()))]
    assert torch.equal(*losses)
    assert torch.equal(*(torch.autograd.grad(loss, query)[0] for loss in losses))
    assert not sup_con(key, ids, backend=backend).requires_grad


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_from_inference_mode(backend, reduction):
    with torch.inference_mode():
        weights = torch.arange(7.0, dtype=torch.float64)
    query, key = rows(7, dtype=torch.float64).requires_grad_(), rows(7, seed=1)
    for loss in (info_nce, sigmoid_nce):
        losses = [
            loss(query, key, weights=w, reduction=reduction, backend=backend).sum()
            for w in (weights, weights.clone())
        ]
        assert torch.equal(*(torch.autograd.grad(x, query)[0] for x in losses))


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_layout_does_not_matter(backend):
    a, b = rows(6), rows(6, seed=1)
    apart = torch.zeros(12, 16)
    apart[::2, ::2] = a
    expected = info_nce(a, b, backend=backend)
    torch.testing.assert_close(info_nce(apart[::2, ::2], b, backend=backend), expected)
    torch.testing.assert_close(info_nce(a.T.contiguous().T, b, backend=backend), expected)


@pytest.mark.parametrize("n", [4, 300])
@pytest.mark.parametrize("link", [LogOdds(), CalibratedLogOdds()], ids=repr)
def test_shapes_alone_go_through(n, link):
    a, b = (torch.randn(n, 8, device="meta", requires_grad=True) for _ in range(2))
    for loss in (
        info_nce(a, b, symmetric=True, link=link),
        nt_xent(a, b, link=link, reduction="none"),
        sup_con(a, torch.arange(n, device="meta"), link=link),
        sigmoid_nce(a, b, link=link),
    ):
        assert torch.autograd.grad(loss.sum(), a)[0].shape == a.shape


def test_auto_on_a_cpu_is_blockwise_unless_only_the_reference_can(monkeypatch):
    import taufree.backends as backends

    called = []
    for name in BACKENDS:
        original = backends.IMPLEMENTATIONS[name]
        monkeypatch.setitem(
            backends.IMPLEMENTATIONS,
            name,
            lambda *args, name=name, original=original: (called.append(name), original(*args))[1],
        )
    info_nce(rows(2), rows(2, seed=1))
    info_nce(rows(129), rows(129, seed=1))
    info_nce(rows(2).to("meta"), rows(2).to("meta"))
    torch.func.grad(info_nce)(rows(2), rows(2, seed=1))
    assert called == ["blockwise", "blockwise", "reference", "blockwise", "reference"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_papers_scenario(n, backend):
    """One positive at C, N-1 negatives at -C: the closed forms come out of autograd."""
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for c in [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]:
        at = torch.tensor(c, dtype=torch.float64, requires_grad=True)
        side = (1 - at**2).sqrt()
        key = torch.stack([at, side])[None]
        negatives = torch.stack([-at, side])[None].expand(n - 1, 2)

        def scale(link, at=at, key=key, negatives=negatives):
            loss = info_nce(query, key, negatives, link=link, backend=backend)
            return loss.item(), -torch.autograd.grad(loss, at, retain_graph=True)[0].item()

        loss, slope = scale(LogOdds(resolution=0.0))
        above, below = (1 + c) ** 2, (n - 1) * (1 - c) ** 2
        assert loss == pytest.approx(math.log1p(below / above), rel=1e-10)
        assert slope == pytest.approx(
            4 * (n - 1) * (1 - c) / ((1 + c) * (n * (1 - c) ** 2 + 4 * c)), rel=1e-10
        )
        for tau in (0.1, 0.25, 0.5, 1.0):
            loss, slope = scale(Temperature(tau))
            e = math.exp(2 * c / tau)
            assert loss == pytest.approx(math.log1p((n - 1) / e), rel=1e-10)
            assert slope == pytest.approx((n - 1) * (2 / tau) / ((n - 1) + e), rel=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_learnable_scale_of_the_papers_scenario(backend):
    for c in [0.0, 0.1, 0.5, 0.9]:
        link = LearnableTemperature(init=0.5).double()
        scale = link.log_scale.exp().item()
        key = torch.tensor([[c, (1 - c * c) ** 0.5]], dtype=torch.float64)
        query, negative = torch.tensor([[1.0, 0.0]], dtype=torch.float64), key * torch.tensor([-1.0, 1.0])
        info_nce(query, key, negative, link=link, backend=backend).backward()
        expected = -2 * c * scale / (1 + math.exp(2 * c * scale))
        assert link.log_scale.grad.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_multiply_the_anchors_losses(backend, reduction):
    a, b, w = rows(6).requires_grad_(), rows(6, seed=1), torch.tensor([0.0, 1, 2, 0.5, 3, 1])
    labels = torch.tensor([0, 0, 1, 1, 2, 3])  # the last two have no positive
    for loss, each in (
        (lambda **kw: info_nce(a, b, symmetric=True, **kw), w),
        (lambda **kw: nt_xent(a, b, **kw), torch.cat([w, w])),
        (lambda **kw: sigmoid_nce(a, b, **kw), w),
        (lambda **kw: sup_con(a, labels, **kw), w * (labels < 2)),
    ):
        one = loss(reduction="none", backend="reference") * each
        expected = {"none": one, "sum": one.sum(), "mean": one.sum() / each.sum()}[reduction]
        found = loss(reduction=reduction, weights=w, backend=backend)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(x.sum(), a)[0] for x in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)
    assert info_nce(a, b, weights=0 * w, reduction=reduction, backend=backend).sum() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_decoupled_without_negatives_is_zero(backend):
    a = rows(1).requires_grad_()
    loss = info_nce(a, rows(1, seed=1), decoupled=True, backend=backend)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, a)[0].any()


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_views_of_a_sample_are_positives(backend):
    """With two views it is nt_xent, with labels the flattened call."""
    z, labels, w = torch.randn(5, 3, 4), torch.tensor([0, 1, 1, 2, 3]), torch.rand(5)
    options = {"backend": backend}
    pair = sup_con(z[:, :2], weights=w, **options)
    assert torch.allclose(pair, nt_xent(z[:, 0], z[:, 1], weights=w, **options), rtol=1e-5)
    flat = sup_con(z.flatten(0, 1), labels.repeat_interleave(3), reduction="none", **options)
    assert torch.equal(sup_con(z, labels, reduction="none", **options), flat.view(5, 3))


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_several_captions_of_an_image(backend):
    """One key of each label is one-way InfoNCE; with more, the mean over them."""
    image, text = torch.randn(4, 6), torch.randn(4, 5, 6)
    one = sup_con(image, torch.arange(4), text[:, 0], torch.arange(4), backend=backend)
    assert torch.allclose(one, info_nce(image, text[:, 0], backend=backend), rtol=1e-5)
    labels = torch.arange(4).repeat_interleave(5)
    link = LogOdds()
    logits = link(torch.nn.functional.cosine_similarity(image[:, None], text.view(1, 20, 6), dim=-1))
    expected = logits.logsumexp(1) - logits.view(4, 4, 5)[torch.arange(4), torch.arange(4)].mean(1)
    found = sup_con(image, torch.arange(4), text.flatten(0, 1), labels, reduction="none", backend=backend)
    assert torch.allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [FittedLogOdds, CalibratedLogOdds])
def test_a_measured_link_measures_keys(kind):
    """One key of each label is measured as the pairs of InfoNCE are, whatever the order of the keys."""
    a, b, order = torch.randn(20, 8), torch.randn(20, 8) / 2, torch.randperm(20)
    pairs, labelled = kind(), kind()
    info_nce(a, a + b, link=pairs)
    sup_con(a, torch.arange(20), (a + b)[order], order, link=labelled)
    assert pairs.gain > 1.01
    assert labelled.gain == pytest.approx(pairs.gain, rel=1e-5)
