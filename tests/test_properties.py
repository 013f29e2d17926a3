"""Every function x link x backend against truths that share no code with it, on random problems."""

import math
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taufree import LearnableTemperature, LogOdds, Temperature
from taufree.backends.blockwise import engine as blockwise
from tests.support.oracles import Case, digits50, float64

LINKS = st.sampled_from(
    [
        LogOdds(),
        LogOdds(resolution=1e-3),
        LogOdds(gain=2.0),
        LogOdds(gain=0.5),
        Temperature(0.1),
        Temperature(1.0),
        LearnableTemperature(0.07),
    ]
)
# blockwise with one tile, with several that are kept for the gradient, and with several computed twice
BACKENDS = st.sampled_from(
    [("reference", 0, 0), ("blockwise", 512, 2**20), ("blockwise", 3, 2**20), ("blockwise", 2, 0)]
)
SHAPES = st.sampled_from(
    [
        "one-way",
        "symmetric",
        "queue",
        "queue and batch",
        "queue ids",
        "queue and batch ids",
        "own",
        "own and batch",
        "ids",
        "nt_xent",
        "nt_xent ids",
        "sup_con",
        "sup_con keys",
        "sigmoid",
        "sigmoid ids",
    ]
)


@st.composite
def cases(draw, dtype=torch.float32, most_rows=9, most_dims=9, near=False):
    """A call with random rows of very different lengths; ``near`` puts some rows close to others."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    n, d = draw(st.integers(1, most_rows)), draw(st.integers(2, most_dims))
    shape, m = draw(SHAPES), draw(st.integers(0, 4))
    count = n if shape == "sup_con" else 2 * n
    count += m if "queue" in shape else n * m if "own" in shape else 0
    rows = torch.randn(count, d, generator=generator, dtype=torch.float64)
    if near and count > 1:
        for _ in range(draw(st.integers(1, 3))):
            i, j = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
            angle = 10 ** draw(st.floats(-6, -1.5))
            step = torch.nn.functional.normalize(
                torch.randn(d, generator=generator, dtype=torch.float64), dim=0
            )
            sign = draw(st.sampled_from([1, 1, -1]))
            rows[i] = sign * (torch.nn.functional.normalize(rows[j], dim=0) + angle * step)
    rows = (rows * 10 ** (2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1)).to(dtype)
    decoupled = draw(st.sampled_from([{}, {}, {"decoupled": True}, {"balanced": True}]))
    if draw(st.integers(0, 3)) == 0:
        decoupled |= {"hardness": draw(st.sampled_from([0.5, 3.0])), "scale_hardness": draw(st.booleans())}
    if shape == "sup_con keys":
        labels, key_labels = torch.randint(0, 3, (2 * n,), generator=generator).tensor_split([n])
        keys = draw(st.integers(1, n))
        options = {"labels": labels, "key_labels": key_labels[:keys], **decoupled}
        return Case("sup_con", [rows[:n], rows[n : n + keys]], options)
    if shape == "sup_con":
        labels = torch.randint(0, 3, (n,), generator=generator)
        return Case("sup_con", [rows], {"labels": labels, **decoupled})
    ids = torch.randint(0, max(1, n // 2 + 1), (n,), generator=generator)
    if shape.startswith("nt_xent"):
        return Case("nt_xent", [rows[:n], rows[n:]], ({"ids": ids} if "ids" in shape else {}) | decoupled)
    theirs = torch.randint(0, max(1, n // 2 + 1), (m,), generator=generator)
    tensors = [rows[:n], rows[n : 2 * n]]
    if shape.startswith("sigmoid"):
        bias = draw(st.sampled_from([{}, {"bias": -10.0}, {"bias": 0.5}, {"bias": 30.0}]))
        return Case("sigmoid_nce", tensors, ({"ids": ids} if "ids" in shape else {}) | bias)
    if "queue" in shape:
        tensors.append(rows[2 * n :])
    elif "own" in shape:
        tensors.append(rows[2 * n :].reshape(n, m, d))
    options = {
        "symmetric": {"symmetric": True},
        "queue and batch": {"in_batch": True, "symmetric": True},
        "own and batch": {"in_batch": True},
        "queue ids": {"ids": ids, "negative_ids": theirs},
        "queue and batch ids": {"ids": ids, "negative_ids": theirs, "in_batch": True, "symmetric": True},
        "ids": {"ids": ids, "symmetric": True},
    }
    return Case("info_nce", tensors, options.get(shape, {}) | decoupled)


def check(case, link, backend, truth, tolerance, rounding=0.0):
    """Loss and gradient within ``tolerance``, the gradient's rounding to its dtype apart."""
    name, tile, kept = backend
    with patch.multiple(blockwise, TILE_SIZE=tile, KEPT_BYTES=kept):
        loss, rows, params = case.call(name, link)
    assert loss.isfinite()
    assert rows.isfinite().all()
    size = float(abs(truth.loss))
    if case.options.get("decoupled"):  # the difference of two logits, which may cancel
        size += len(case.anchors()) * abs(link(torch.tensor(1.0)).item())
    assert float(abs(loss - truth.loss)) <= tolerance * size + 1e-40
    double = case.tensors[0].dtype == torch.float64
    eps = torch.finfo(torch.float64 if double else torch.float32).eps
    cancelled = 4 * eps * truth.pulls
    if not double:  # a weight is the exponential of a rounded logit: its relative error grows with the logit
        largest = abs(link(torch.tensor(1.0)).item()) + abs(case.options.get("bias", 0.0))
        cancelled = (4 + largest) * eps * truth.terms
    info = torch.finfo(case.tensors[0].dtype)
    underflow = info.smallest_normal * info.eps * rows.numel()
    error = float((rows - truth.rows).norm())
    assert error <= (tolerance + rounding) * float(truth.rows.norm()) + cancelled + underflow
    for found, true in zip(params, truth.params, strict=False):
        assert math.isclose(found, true, rel_tol=tolerance, abs_tol=10 * eps * len(case.anchors()) / 0.07)


@settings(max_examples=700, deadline=None)
@given(cases(), LINKS, BACKENDS)
def test_float32(case, link, backend):
    check(case, link, backend, float64(case, link), 1e-3 if case.closest() < 1e-2 else 1e-5)


@settings(max_examples=400, deadline=None)
@given(cases(dtype=torch.float64, most_rows=5, most_dims=5), LINKS, BACKENDS)
def test_float64(case, link, backend):
    check(case, link, backend, digits50(case, link), 1e-11)


@settings(max_examples=400, deadline=None)
@given(cases(most_rows=4, most_dims=4, near=True), LINKS, BACKENDS)
def test_float32_near_the_poles(case, link, backend):
    check(case, link, backend, digits50(case, link), 1e-3 if case.closest() < 1e-2 else 1e-5)


@settings(max_examples=300, deadline=None)
@given(cases(dtype=torch.float64, most_rows=4, most_dims=4, near=True), LINKS, BACKENDS)
def test_float64_near_the_poles(case, link, backend):
    check(case, link, backend, digits50(case, link), 1e-11)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([torch.float16, torch.bfloat16]).flatmap(lambda dtype: cases(dtype=dtype)),
    LINKS,
    BACKENDS,
)
def test_half_precision_inputs(case, link, backend):
    # The gradient is rounded to the input's dtype at the very end: half a unit in its last place.
    rounding = torch.finfo(case.tensors[0].dtype).eps / 2
    check(case, link, backend, float64(case, link), 1e-3, rounding)
