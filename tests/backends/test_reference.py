"""The dense backend: derivatives of first and second order, torch.compile, torch.func."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from taufree import CalibratedLogOdds, LearnableTemperature, LogOdds, Temperature, info_nce, nt_xent, sup_con
from taufree.backends import numerics as precision

LINKS = [LogOdds(), LogOdds(gain=2.0), Temperature(0.5), LearnableTemperature(0.5)]
LABELS = torch.tensor([0, 1, 0, 1, 1])
LOSSES = {
    "one-way": lambda a, b, **o: info_nce(a, b, **o),
    "symmetric": lambda a, b, **o: info_nce(a, b, a.flip(0) * 2, symmetric=True, in_batch=True, **o),
    "per query": lambda a, b, **o: info_nce(a, b, torch.stack([a.flip(0), b.flip(0)], 1), **o),
    "nt_xent": lambda a, b, **o: nt_xent(a, b, ids=LABELS[: len(a)] + torch.arange(len(a)) // 3 * 7, **o),
    "sup_con": lambda a, b, **o: sup_con(a * b, LABELS[: len(a)], **o),
}


def rows(n=5, d=3, seed=0, dtype=torch.float64):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("link", LINKS, ids=repr)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_of_first_and_second_order(name, link, reduction):
    def loss(a, b):
        return LOSSES[name](a, b, link=link, reduction=reduction, backend="reference")

    inputs = (rows(), rows(seed=1))
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize(
    "link", [LINKS[0], *(pytest.param(link, marks=pytest.mark.slow) for link in LINKS[1:])], ids=repr
)
@pytest.mark.parametrize("name", LOSSES)
def test_compiles_without_a_graph_break(name, link):
    def loss(a, b):
        return LOSSES[name](a, b, link=link, backend="reference")

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    a, b = rows(dtype=torch.float32), rows(seed=1, dtype=torch.float32)
    expected = torch.autograd.grad(loss(a, b), [a, b])
    torch.testing.assert_close(compiled(a, b), loss(a, b))
    torch.testing.assert_close(torch.autograd.grad(compiled(a, b), [a, b]), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_is_compiled_once_for_all_batch_sizes(name):
    link = CalibratedLogOdds()  # with the measurement that the other links do without

    def loss(a, b):
        return LOSSES[name](a, b, link=link, backend="reference")

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(loss, fullgraph=True, backend=counter, dynamic=True)
    for n in (4, 5):  # more than the three dimensions: fewer are measured in another way
        compiled(rows(n), rows(n, seed=1))
    assert counter.frame_count == 1


def test_compiles_with_the_default_compiler():
    def loss(a, b):
        return info_nce(a, b, symmetric=True, backend="reference")

    a, b = rows(dtype=torch.float32), rows(seed=1, dtype=torch.float32)
    torch.testing.assert_close(torch.compile(loss, fullgraph=True)(a, b), loss(a, b))


@pytest.mark.parametrize("name", LOSSES)
def test_works_under_vmap_and_grad(name):
    def loss(a, b):
        return LOSSES[name](a, b, backend="reference")

    a = torch.stack([rows(seed=s).detach() for s in range(3)])
    b = torch.stack([rows(seed=s + 9).detach() for s in range(3)])
    torch.testing.assert_close(
        torch.func.vmap(loss)(a, b), torch.stack([loss(x, y) for x, y in zip(a, b, strict=True)])
    )
    found = torch.func.vmap(torch.func.grad(loss))(a, b)
    leaf = a[1].clone().requires_grad_()
    torch.testing.assert_close(found[1], torch.autograd.grad(loss(leaf, b[1]), leaf)[0])


def test_second_derivatives_are_finite_where_it_is_hard():
    x = rows(4).detach()
    for a, b in ((x, x), (x, -x), (x[:1].expand(4, -1), x), (torch.zeros_like(x), x)):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        first = torch.autograd.grad(info_nce(a, b, symmetric=True), [a, b], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [a, b])
        assert all(g.isfinite().all() for g in (*first, *second))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_a_device_without_float64(dtype, monkeypatch):
    monkeypatch.setattr(precision, "wide_dtype", lambda device: torch.float32)  # as on MPS
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(9, 6, generator=generator).requires_grad_() for _ in range(2))
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            loss = nt_xent(a, b, backend="reference")
        results.append([loss, *torch.autograd.grad(loss, (a, b))])
    for plain, cast in zip(*results, strict=True):
        assert torch.equal(plain, cast)
