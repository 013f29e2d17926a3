"""Every implementation that runs on a CPU computes the loss it is measured for."""

import pytest
import torch
import torch.nn.functional as F

from taufree import LogOdds, Temperature, info_nce, nt_xent
from taufree.bench import methods
from taufree.bench.measure import StepTimer, pairs, relative, stepper

LINKS = {"free": LogOdds(), "tau": Temperature(methods.TAU)}


def oracle(loss, link, a, b):
    """The loss by the reference, in float64."""
    rows = torch.cat([a, b]).detach().double().requires_grad_()
    views, link = rows.chunk(2), LINKS[link]
    if loss == "nt-xent":
        value = nt_xent(*views, link=link, backend="reference")
    else:
        value = info_nce(*views, symmetric=True, link=link, backend="reference")
    return value.detach(), torch.autograd.grad(value, rows)[0]


@pytest.mark.parametrize("link", ["free", "tau"])
@pytest.mark.parametrize("loss", methods.LOSSES)
@pytest.mark.parametrize("size", [7, methods.SLICE_SIZE], ids=["sliced", "whole"])
def test_the_truth_is_the_reference(loss, link, size, monkeypatch):
    monkeypatch.setattr(methods, "SLICE_SIZE", size * 46)
    a, b = pairs(23, 8, "cpu", torch.float32)
    for found, true in zip(
        methods.truth(loss, methods.BY_HAND[link], a, b), oracle(loss, link, a, b), strict=True
    ):
        assert relative(found, true) < 1e-5


@pytest.mark.parametrize(
    ("loss", "method"),
    [
        pytest.param(loss, method, id=f"{loss}, {method.name}")
        for loss in methods.LOSSES
        for method in methods.methods("cpu", loss)
    ],
)
def test_methods_compute_the_loss(loss, method):
    a, b = pairs(48, 16, "cpu", torch.float32)
    value = stepper(method.make(loss), a, b)()
    true, grad = oracle(loss, method.link, a, b)
    assert relative(value, true) < 1e-5
    assert relative(torch.cat([a.grad, b.grad]), grad) < 1e-5


@pytest.mark.parametrize("link", ["fitted", "calibrated", "learnable", 0.2])
@pytest.mark.parametrize("loss", methods.LOSSES)
def test_other_links_agree_with_dense_code_at_the_scale_they_have(loss, link):
    (ours,) = (m for m in methods.methods("cpu", loss, [link]) if "blockwise" in m.name)
    row = StepTimer(loss, *pairs(48, 16, "cpu", torch.float32), 1.0).row(ours)
    assert row["method"] == f"taufree blockwise, {'tau 0.2' if link == 0.2 else link}"
    assert max(row["loss_error"], row["gradient_error"]) < 1e-5


def test_what_is_measured_where():
    symmetric = {m.name for m in methods.methods("cpu", "symmetric")}
    assert {
        "taufree blockwise, free",
        "taufree reference, free",
        "dense eager, tau",
        "open_clip, tau",
    } <= symmetric
    assert ("F.linear_cross_entropy x2, tau" in symmetric) == hasattr(F, "linear_cross_entropy")
    assert "lightly, tau" in {m.name for m in methods.methods("cpu", "nt-xent")}
    gpu = [m.name for m in methods.methods("cuda", "symmetric")]
    assert gpu[0] == "taufree triton, free"
    for peer in ("Inf-CL", "cut-cross-entropy", "Liger", "open_clip", "torch.compile dense", "FlexAttention"):
        assert any(name.startswith(peer) for name in gpu), peer
    assert not any(name.startswith(("Inf-CL", "Liger", "FlexAttention")) for name in symmetric)


def test_inf_cl_is_not_called_where_it_reads_past_the_end(monkeypatch):
    monkeypatch.setattr(methods, "_load", lambda module, name: lambda *_, **__: pytest.fail("called"))
    (inf_cl,) = (m for m in methods.PEERS if m.package == "inf-cl")
    for n, d in ((60, 16), (64, 20)):
        with pytest.raises(ValueError, match="multiple of 64 and D a multiple of 16"):
            inf_cl.make("symmetric")(*pairs(n, d, "cpu", torch.float32))
