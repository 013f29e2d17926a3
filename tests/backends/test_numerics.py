"""Settings of precision around a loss do not reach it: autocast, matrix products of float32, a GradScaler."""

import pytest
import torch

from taufree import info_nce, nt_xent
from taufree.backends.numerics import float32_products


def rows(n, d=8, seed=0, dtype=torch.float32):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_autocast_does_not_reach_the_loss(dtype, backend):
    x = rows(300, 32)
    a, b = (x + 1e-3 * rows(300, 32, seed=1)).requires_grad_(), x
    for loss in (
        lambda: info_nce(a, b, symmetric=True, backend=backend),
        lambda: nt_xent(a, b, backend=backend),
        lambda: info_nce(a, b, reduction="none", backend=backend).mean(),
    ):
        plain = loss()
        expected = torch.autograd.grad(plain, a)[0]
        with torch.autocast("cpu", dtype=dtype):
            found = loss()
            grad = torch.autograd.grad(found, a)[0]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, plain, rtol=0, atol=0)
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_the_matmul_precision_setting_does_not_reach_the_loss(precision, backend):
    a, b = rows(300, 32), rows(300, 32, seed=1)
    expected = info_nce(a, b, backend=backend)
    torch.set_float32_matmul_precision(precision)
    try:
        torch.testing.assert_close(info_nce(a, b, backend=backend), expected, rtol=0, atol=0)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")


@pytest.mark.skipif(not NEWER, reason="this PyTorch has only the older setting")
@pytest.mark.parametrize(
    "settings", [{"": "tf32"}, {"cuda": "tf32"}, {"mkldnn": "bf16"}, {"": "tf32", "cuda": "ieee"}, {}]
)
def test_the_newer_precision_setting_stays_and_does_not_reach_the_loss(settings):
    everything, cuda, mkldnn = (
        torch.backends,
        torch.backends.cuda.matmul,
        torch.backends.mkldnn.matmul,
    )
    places = {"": everything, "cuda": cuda, "mkldnn": mkldnn}
    a, b = rows(300, 32).requires_grad_(), rows(300, 32, seed=1)
    expected = info_nce(a, b, backend="blockwise")
    for place in places.values():
        place.fp32_precision = "none"
    try:
        for name, value in settings.items():
            places[name].fp32_precision = value
        before = [place.fp32_precision for place in places.values()]
        loss = info_nce(a, b, backend="blockwise")
        loss.backward()
        torch.testing.assert_close(loss, expected, rtol=0, atol=0)
        assert [place.fp32_precision for place in places.values()] == before
        everything.fp32_precision = "tf32"  # reaches what was not set by itself
        assert cuda.fp32_precision == settings.get("cuda", "tf32")
    finally:
        for place in places.values():
            place.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


def test_threads_leave_the_matmul_precision_as_it_was():
    first, second = float32_products("highest"), float32_products("highest")
    torch.set_float32_matmul_precision("high")
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"  # the second is still at work
        second.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_a_grad_scaler_trains_through_collapse(backend):
    """fp16 embeddings that become identical: the scaler never meets NaN, and the step is taken."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = rows(16)
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nt_xent(model(x), model(x), backend=backend)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert all(p.grad.isfinite().all() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0
