"""The statistics of a loss: against lists of pairs in float64, on every backend, however it is called."""

import copy
import pickle
from unittest.mock import patch

import pytest
import torch

from taufree import (
    CalibratedLogOdds,
    InfoNCE,
    LearnableTemperature,
    Link,
    LogOdds,
    NTXent,
    SupCon,
    Temperature,
)
from taufree.backends.blockwise import engine
from taufree.large_batch import chunked_backward
from taufree.stats import Stats
from tests.support.oracles import Case, statistics

N, D = 19, 7
GENERATOR = torch.Generator().manual_seed(0)
A, B, MORE = torch.randn(3, N, D, generator=GENERATOR)
B = A + 0.8 * B
OWN = torch.randn(N, 3, D, generator=GENERATOR)
IDS = torch.randint(0, 9, (N,), generator=GENERATOR)
CASES = {
    "one-way": Case("info_nce", [A, B]),
    "symmetric": Case("info_nce", [A, B], {"symmetric": True}),
    "symmetric, ids": Case("info_nce", [A, B], {"symmetric": True, "ids": IDS}),
    "queue": Case("info_nce", [A, B, MORE[:11]]),
    "queue and batch": Case("info_nce", [A, B, MORE[:11]], {"symmetric": True, "in_batch": True}),
    "own": Case("info_nce", [A, B, OWN]),
    "own and batch": Case("info_nce", [A, B, OWN], {"in_batch": True}),
    "empty queue": Case("info_nce", [A, B, MORE[:0]], {"in_batch": True}),
    "views": Case("nt_xent", [A, B]),
    "views, ids": Case("nt_xent", [A, B], {"ids": IDS}),
    "labels": Case("sup_con", [A], {"labels": IDS}),
    "two labels": Case("sup_con", [A], {"labels": IDS % 2}),
    "keys": Case("sup_con", [A, MORE[:13]], {"labels": IDS, "key_labels": IDS[:13]}),
    "decoupled": Case("nt_xent", [A, B], {"decoupled": True}),
    "one pair": Case("info_nce", [A[:1], B[:1]]),
}
LINKS = {"odds": LogOdds, "gain": lambda: LogOdds(2.0), "tau": lambda: Temperature(0.1)}
# The reference, one tile, several ragged tiles, and such that are computed twice.
BACKENDS = {
    "reference": ("reference", 512, 0),
    "one tile": ("blockwise", 512, 2**20),
    "tiles": ("blockwise", 4, 2**20),
    "tiles twice": ("blockwise", 3, 0),
}
OPTIONS = ("symmetric", "in_batch", "decoupled")


def module(case, **options):
    """The loss of a case as a module, and what it is called with."""
    kind = {"info_nce": InfoNCE, "nt_xent": NTXent, "sup_con": SupCon}[case.function]
    chosen = {name: case.options[name] for name in OPTIONS if name in case.options}
    given = {name: value for name, value in case.options.items() if name not in OPTIONS}
    tensors = list(case.tensors)
    if "key_labels" in given:
        given["keys"] = tensors.pop()
    return kind(track=True, **chosen, **options), tensors, given


def found(stats):
    return [float(x) for x in (stats.accuracy, stats.positive_cosine, stats.negative_cosine, stats.dimension)]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_every_loss_backend_and_link(name, backend, link):
    case, (chosen, tile, kept) = CASES[name], BACKENDS[backend]
    loss, tensors, given = module(case, backend=chosen, link=LINKS[link]())
    tensors = [x.clone().requires_grad_() for x in tensors]
    with patch.multiple(engine, TILE_SIZE=tile, KEPT_BYTES=kept):
        value = loss(*tensors, **given)
        before = loss.stats
        value.backward()
        plain, _, _ = module(case, backend=chosen, link=LINKS[link]())
        plain.track = False
        assert torch.allclose(plain(*tensors, **given), value, rtol=1e-6)
    assert loss.stats is before
    assert found(loss.stats) == pytest.approx(statistics(case), rel=1e-5, abs=1e-6, nan_ok=True)
    assert loss.stats.gain == {"odds": 1, "gain": 2, "tau": 10}[link]
    assert all(x.shape == () and x.dtype == torch.float32 and not x.requires_grad for x in loss.stats)
    assert plain.stats is None


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(backend, dtype):
    case = Case("nt_xent", [A.to(dtype), B.to(dtype)], {"ids": IDS})
    loss, tensors, given = module(case, backend=backend)
    value = loss(*tensors, **given)
    assert found(loss.stats) == pytest.approx(statistics(case), rel=1e-5, abs=1e-6)
    assert {x.dtype for x in loss.stats} == {value.dtype}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_collapsed_network_finds_nothing(backend):
    """Equal rows, also such that are equal but for rounding."""
    chosen, tile, kept = BACKENDS[backend]
    same = torch.randn(1, 300, generator=torch.Generator().manual_seed(1)).expand(40, 300)
    labels = torch.arange(40) % 4
    with patch.multiple(engine, TILE_SIZE=tile, KEPT_BYTES=kept):
        for x in (same, same + 1e-5 * torch.randn(40, 300), torch.zeros(40, 3)):
            for loss, args in (
                (NTXent(track=True, backend=chosen), (x, x.flip(0))),
                (InfoNCE(symmetric=True, track=True, backend=chosen), (x, x.flip(0))),
                (SupCon(track=True, backend=chosen), (x, labels)),
            ):
                loss(*args)
                assert loss.stats.accuracy == 0


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("n", [6, 30])
def test_nan_in_nan_out(backend, n):
    a = torch.randn(n, 4)
    a[2, 1] = torch.nan
    for loss, args in (
        (NTXent(track=True, backend=backend), (a, torch.randn(n, 4))),
        (SupCon(track=True, backend=backend), (a, torch.arange(n) // 3)),
    ):
        with patch.object(engine, "TILE_SIZE", 8):
            loss(*args)
        assert all(x.isnan() for x in (*loss.stats[:3], loss.stats.dimension))


def test_an_anchor_without_a_positive_or_a_negative_is_passed_over():
    x = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.0, 1.0]])
    loss = SupCon(track=True)
    loss(x, torch.tensor([0, 0, 1]))
    assert loss.stats.accuracy == 1
    loss(x, torch.tensor([0, 0, 0]))
    assert loss.stats.accuracy.isnan()
    assert loss.stats.negative_cosine.isnan()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_and_reductions_change_nothing(reduction):
    loss = NTXent(track=True, reduction=reduction)
    value = loss(A.clone().requires_grad_(), B, weights=torch.rand(N, generator=GENERATOR))
    value.sum().backward()
    expected = pytest.approx(statistics(CASES["views"]), rel=1e-5)
    assert found(loss.stats) == expected
    with torch.no_grad():
        loss.eval()(A, B)
    assert found(loss.stats) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss(A, B)
    assert found(loss.stats) == expected
    with torch.inference_mode():
        loss(A, B)
    assert found(loss.stats) == expected


def test_two_pass_training():
    encoder, loss = torch.nn.Linear(D, 5), InfoNCE(symmetric=True, track=True)
    chunked_backward(loss, (encoder, A), (encoder, B), chunk_size=4)
    case = Case("info_nce", [encoder(A).detach(), encoder(B).detach()], {"symmetric": True})
    assert found(loss.stats) == pytest.approx(statistics(case), rel=1e-4)


def test_gains_that_are_learned_or_measured():
    class Cubic(Link):
        def logit(self, cosine, gap, rise):
            return 5 * cosine**3

    learnable, calibrated = (
        NTXent(link=LearnableTemperature(0.2), track=True),
        NTXent(link=CalibratedLogOdds(), track=True),
    )
    for _ in range(2):
        learnable(A, B).backward()
        calibrated(A, B)
        assert learnable.stats.gain.item() == pytest.approx(1 / learnable.link.tau, rel=1e-6)
        assert calibrated.stats.gain.item() == pytest.approx(calibrated.link.gain, rel=1e-6)
        with torch.no_grad():
            learnable.link.log_scale += 1
    own = NTXent(link=Cubic(), track=True)
    own(A, B)
    assert own.stats.gain.isnan()
    assert found(own.stats) == pytest.approx(statistics(CASES["views"]), rel=1e-5)


def test_copies_and_state():
    loss = NTXent(link=LearnableTemperature(), track=True)
    assert loss.stats is None
    loss(A.clone().requires_grad_(), B)
    assert set(loss.state_dict()) == {"link.log_scale"}
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert isinstance(other.stats, Stats)
        assert found(other.stats) == found(loss.stats)
    assert "track=True" in repr(loss)
    assert "track" not in repr(NTXent())


@pytest.mark.parametrize("name", ["symmetric, ids", "queue and batch", "own", "views", "labels", "keys"])
def test_compiled_in_one_graph(name):
    torch._dynamo.reset()
    case = CASES[name]
    loss, tensors, given = module(case, link=LearnableTemperature())

    def step(*tensors):
        return loss(*tensors, **given), loss.stats.accuracy + 0

    tensors = [x.clone().requires_grad_() for x in tensors]
    value, accuracy = torch.compile(step, fullgraph=True, backend="aot_eager")(*tensors)
    value.backward()
    assert found(loss.stats) == pytest.approx(statistics(case), rel=1e-5, abs=1e-6)
    assert not any(x.requires_grad for x in loss.stats)
    assert accuracy == loss.stats.accuracy
    assert tensors[0].grad is not None


def test_without_statistics_where_they_have_no_meaning():
    """torch.export has no attributes to leave them in, and what torch.func computes is gone afterwards."""
    for backend in ("auto", "reference"):
        loss = NTXent(track=True, backend=backend)
        for _ in range(2):  # without statistics of an earlier call, and with them
            exported = torch.export.export(loss, (A, B)).module()
            torch.testing.assert_close(exported(A, B), loss(A, B))
        torch.func.grad(lambda x, loss=loss: loss(x, B))(A)
        assert loss.stats is None
        loss(A, B)
        torch.vmap(lambda x, loss=loss: loss(x, B))(torch.stack([A, B]))
        assert loss.stats is None
