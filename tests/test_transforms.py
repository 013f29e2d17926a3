"""torch.compile, torch.export, torch.func and second derivatives of the automatic choice, at any size."""

import pytest
import torch
import torch._dynamo.testing

from taufree import (
    CalibratedLogOdds,
    FittedLogOdds,
    LearnableTemperature,
    Link,
    LogOdds,
    Temperature,
    info_nce,
    nt_xent,
    sigmoid_nce,
    sup_con,
)

SIZES = (20, 140)  # below and above what once changed the behaviour
LABELS = torch.arange(140) % 7
LOSSES = {
    "nt_xent": lambda a, b, link: nt_xent(a, b, link=link),
    "info_nce": lambda a, b, link: info_nce(a, b, symmetric=True, link=link, reduction="sum"),
    "queue": lambda a, b, link: info_nce(a, b, b.detach().flip(0), link=link),
    "balanced": lambda a, b, link: info_nce(
        a, b, symmetric=True, ids=LABELS[: len(a)], balanced=True, link=link
    ),
    "own": lambda a, b, link: info_nce(a, b, torch.stack([b, a], 1).flip(0), in_batch=True, link=link),
    "ids": lambda a, b, link: info_nce(a, b, ids=LABELS[: len(a)], link=link),
    "none": lambda a, b, link: info_nce(a, b, link=link, reduction="none").square().sum(),
    "sup_con": lambda a, b, link: sup_con(a + b, LABELS[: len(a)], link=link),
    "sigmoid": lambda a, b, link: sigmoid_nce(a, b, link=link),
    "sigmoid ids": lambda a, b, link: sigmoid_nce(a, b, ids=LABELS[: len(a)], link=link, bias=a.mean()),
    "sigmoid none": lambda a, b, link: sigmoid_nce(a, b, link=link, reduction="none").square().sum(),
}
LINKS = [LogOdds(), LogOdds(2.0), Temperature(0.1), LearnableTemperature(), CalibratedLogOdds().eval()]


class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return 5 * cosine**3


def views(n):
    generator = torch.Generator().manual_seed(n)
    return tuple(torch.randn(n, 8, generator=generator).requires_grad_() for _ in range(2))


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", LOSSES)
def test_compiled_in_one_graph(name, n):
    inputs, link = views(n), LearnableTemperature() if n == SIZES[0] else LogOdds()
    found = []
    torch._dynamo.reset()
    for loss in (LOSSES[name], torch.compile(LOSSES[name], fullgraph=True, backend="aot_eager")):
        value = loss(*inputs, link)
        found.append([value, *torch.autograd.grad(value, (*inputs, *link.parameters()))])
    close(*found)


@pytest.mark.parametrize("link", [CalibratedLogOdds, FittedLogOdds])
def test_a_link_that_measures_compiles(link):
    """In one graph, where it measures as it does in plain code."""
    plain, kept, first = link(), link(), torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    inputs = first, first + torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: nt_xent(a, b, link=kept), fullgraph=True, backend="aot_eager")
    for _ in range(3):
        close([compiled(*inputs)], [nt_xent(*inputs, link=plain)])
    assert kept.gain == pytest.approx(plain.gain, rel=1e-5)
    assert kept.gain > 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("link", [LogOdds(), LearnableTemperature(), Cubic()], ids=repr)
def test_exported(link, n):
    if isinstance(link, LearnableTemperature) and torch.__version__ < "2.9":
        pytest.skip("before PyTorch 2.9 torch.export refuses parameters that are clamped in place")

    class Loss(torch.nn.Module):
        def forward(self, a, b):
            return nt_xent(a, b, link=link)

    inputs = tuple(x.detach() for x in views(n))
    close([torch.export.export(Loss(), inputs).module()(*inputs)], [nt_xent(*inputs, link=link)])


def balanced_with_ids(a, b):
    return info_nce(a, b, ids=torch.arange(a.shape[0]) // 2, symmetric=True, balanced=True)


@pytest.mark.parametrize("loss", [nt_xent, info_nce, sigmoid_nce, balanced_with_ids])
def test_exported_for_any_batch(loss):
    class Loss(torch.nn.Module):
        def forward(self, a, b):
            return loss(a, b)

    rows = torch.export.Dim("rows", min=2, max=512)
    inputs = tuple(x.detach() for x in views(6))
    exported = torch.export.export(Loss(), inputs, dynamic_shapes=({0: rows}, {0: rows})).module()
    for n in (6, 140):
        more = tuple(x.detach() for x in views(n))
        close([exported(*more)], [loss(*more)])


@pytest.mark.parametrize("changed", ["hardness", "link", "bias"])
def test_compiled_in_one_graph_for_numbers_that_change(changed):
    a, b = views(6)
    function = sigmoid_nce if changed == "bias" else info_nce
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for number in (0.5, 2.0):
        close([compiled(a, b, **{changed: number})], [function(a, b, **{changed: number})])


@pytest.mark.parametrize("function", [nt_xent, sigmoid_nce])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("link", [*LINKS, FittedLogOdds().eval(), Cubic()], ids=repr)
def test_transformed_and_differentiated_twice(link, n, function):
    inputs, ones = tuple(x.detach() for x in views(n)), [torch.ones(n, 8)] * 2
    found = []
    for backend in ("auto", "reference"):

        def loss(a, b, backend=backend):
            return function(a, b, link=link, backend=backend)

        leaves = views(n)
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        found.append(
            [
                *torch.func.grad(loss, argnums=(0, 1))(*inputs),
                torch.func.jvp(loss, inputs, tuple(ones))[1],
                torch.vmap(loss)(*(torch.stack([x, x.flip(1)]) for x in inputs)),
                *torch.autograd.grad(sum(x.square().sum() for x in first), leaves),
            ]
        )
    close(*found)


def test_a_link_without_a_formula_names_what_compiles_it():
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: nt_xent(a, b, link=Cubic()), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match='backend="reference"'):
        compiled(*views(20))


@pytest.mark.parametrize("n", [6, 530])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_where_the_loss_is_not_the_end(n, reduction):
    found = []
    for backend in ("auto", "reference"):
        a, b = (x.detach().double().requires_grad_() for x in views(n))
        loss = info_nce(a, b, reduction=reduction, backend=backend).pow(2).sum()
        (first,) = torch.autograd.grad(loss, a, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), (a, b)))
    close(*found)


@pytest.mark.parametrize("loss", [nt_xent, info_nce, sigmoid_nce])
def test_compiled_once_for_all_sizes(loss):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, fullgraph=True, backend=counter, dynamic=True)
    counts = []
    for n in (20, 30, 41, 200):
        a, b = views(n)
        close([compiled(a, b)], [loss(a, b)])
        counts.append(counter.frame_count)  # the first call may begin again where it meets a plain number
    assert len(set(counts)) == 1


@pytest.mark.parametrize("link", [CalibratedLogOdds, FittedLogOdds])
def test_a_link_that_measures_says_what_to_do_under_torch_func(link):
    a, b, kept = *(x.detach() for x in views(5)), link()
    with pytest.raises(RuntimeError, match=r"call eval\(\) on the link"):
        torch.func.grad(lambda x: info_nce(x, b, link=kept))(a)
