"""The tiled backend: memory, derivatives, and what must not disturb it."""

import weakref

import pytest
import torch
from torch.autograd import forward_ad

from taufree import (
    FittedLogOdds,
    InfoNCE,
    LearnableTemperature,
    Link,
    LogOdds,
    Temperature,
    info_nce,
    nt_xent,
    sup_con,
)
from taufree.backends.blockwise import engine as blockwise
from taufree.backends.blockwise import one_tile
from taufree.backends.blockwise.tiles import keep_freed_memory
from tests.support.largest import Largest


def rows(n, d=8, seed=0, dtype=torch.float32):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("link", [LogOdds(), Temperature(0.1)], ids=repr)
def test_no_tensor_grows_with_the_square_of_the_batch(link, monkeypatch):
    monkeypatch.setattr(blockwise, "TILE_SIZE", 32)
    monkeypatch.setattr(blockwise, "KEPT_BYTES", 0)
    keep_freed_memory()  # once per process: it asks for memory that is never used
    n, d = 160, 4
    a, b = rows(n, d).requires_grad_(), rows(n, d, seed=1).requires_grad_()
    ids = torch.arange(n) // 2
    for loss in (
        lambda: info_nce(a, b, ids=ids, link=link, backend="blockwise"),
        lambda: info_nce(a, b, symmetric=True, link=link, backend="blockwise"),
        lambda: info_nce(a, b, b.detach(), in_batch=True, link=link, reduction="none", backend="blockwise"),
        lambda: nt_xent(a, b, link=link, backend="blockwise"),
        lambda: sup_con(a, ids, link=link, backend="blockwise"),
    ):
        with Largest() as largest:
            loss().sum().backward()
        assert largest.numel <= max(2 * n * d, 2 * 64 * 32)  # the masks of a tile, one for the ids


def test_the_symmetric_matrix_is_computed_once(monkeypatch):
    """NT-Xent visits the tiles on and above the diagonal; both directions of a pair share theirs."""
    monkeypatch.setattr(blockwise, "TILE_SIZE", 16)
    monkeypatch.setattr(blockwise, "KEPT_BYTES", 0)
    seen = []
    original = blockwise.BlockwiseEngine._tile
    monkeypatch.setattr(
        blockwise.BlockwiseEngine, "_tile", lambda self, *args: (seen.append(1), original(self, *args))[1]
    )
    nt_xent(rows(32), rows(32, seed=1), backend="blockwise")
    assert len(seen) == 10  # 4 x 4 tiles, 10 of them on or above the diagonal
    seen.clear()
    info_nce(rows(64), rows(64, seed=1), symmetric=True, backend="blockwise")
    assert len(seen) == 16


@pytest.mark.parametrize(
    "link", [LogOdds(), LogOdds(gain=2.0), Temperature(0.5), LearnableTemperature(0.5)], ids=repr
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives(link, reduction, monkeypatch):
    monkeypatch.setattr(blockwise, "TILE_SIZE", 2)
    options = {"link": link, "reduction": reduction, "backend": "blockwise"}
    labels = torch.tensor([0, 1, 0, 1, 1])
    a, b, c = (rows(5, 3, seed, torch.float64).requires_grad_() for seed in range(3))
    own = torch.stack([b, c], 1).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, symmetric=True, **options), (a, b))
    assert torch.autograd.gradcheck(lambda a, b, c: info_nce(a, b, c, **options), (a, b, c))
    assert torch.autograd.gradcheck(lambda a, b, c: info_nce(a, b, c, in_batch=True, **options), (a, b, own))
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, ids=labels, **options), (a, b))
    assert torch.autograd.gradcheck(lambda a: sup_con(a, labels, **options), (a,))


@pytest.mark.parametrize("link", [Temperature(0.01), LogOdds(gain=20.0)], ids=repr)
def test_an_anchor_without_positive_and_with_a_large_logit_stays_finite(link):
    """It has no gradient of its own, whatever exp(logit) is: 100 and more is beyond float32."""
    a = rows(3)[[0, 1, 2, 0]].requires_grad_()  # the last label is on no other row
    labels = torch.tensor([0, 0, 1, 2])
    losses = [sup_con(a, labels, link=link, backend=backend) for backend in ("blockwise", "reference")]
    found, expected = (torch.autograd.grad(loss, a)[0] for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("link", [Temperature(0.005), LogOdds(gain=30.0)], ids=repr)
def test_decoupled_positives_far_ahead_of_all_negatives_have_finite_gradients(link):
    """Their weight over that of the negatives, which they have no part in, is beyond float32."""
    a = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).requires_grad_()
    keys, labels = torch.tensor([[1.0, 0.4, 0.0], [0.0, 0.4, 1.0]]), torch.arange(2)
    options = {"keys": keys, "key_labels": labels, "decoupled": True, "link": link}
    losses = [sup_con(a, labels, **options, backend=backend) for backend in ("blockwise", "reference")]
    found, expected = (torch.autograd.grad(loss, a)[0] for loss in losses)
    assert expected.abs().max() > 1
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("n", [3, 130])  # one tile in float64, and one in float32
def test_opposite_pairs_without_negatives_have_no_gradient(n):
    """The only weight of such an anchor, that of its positive, is too small for float32."""
    a, one_id = rows(n, 40).requires_grad_(), torch.zeros(n, dtype=torch.long)
    for loss in (info_nce, nt_xent):
        value = loss(a, -a.detach(), ids=one_id, link=LogOdds(gain=15.0), backend="blockwise")
        assert value == 0
        assert not torch.autograd.grad(value, a)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_negatives_that_are_all_opposite_push_as_the_reference_says(dtype):
    """Their weights, and the positive's, are too small for float32."""
    a, apart = rows(1, 5, dtype=dtype), 1e-2 * rows(8, 5, seed=1, dtype=dtype)
    keys, queries = -(a + apart), (a + apart.flip(0)).requires_grad_()
    link = LogOdds(gain=20.0)
    losses = [info_nce(queries, keys, link=link, backend=backend) for backend in ("blockwise", "reference")]
    found, expected = (torch.autograd.grad(loss, queries)[0] for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_a_key_at_a_right_angle_is_pulled_as_any_other():
    def gradients(backend):
        a, b = torch.eye(6)[:3].requires_grad_(), torch.eye(6)[3:].requires_grad_()
        paired = torch.autograd.grad(info_nce(a, b, backend=backend), [a, b])
        return paired + torch.autograd.grad(nt_xent(a, b, backend=backend), [a, b])

    for found, expected in zip(gradients("blockwise"), gradients("reference"), strict=True):
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(found, expected)


def test_an_opposite_negative_has_no_weight_without_a_resolution():
    query = rows(64).requires_grad_()
    for i in range(len(query)):  # with some of them rounding makes 1 + c a little less than 0
        one = query[i : i + 1]
        loss = info_nce(one, one.flip(1), -one.detach(), link=LogOdds(resolution=0.0), backend="blockwise")
        loss.backward()
        assert loss.item() < 1e-12
    assert query.grad.abs().max() < 1e-6


class Held(Link):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def logit(self, cosine, gap, rise):
        return self.scale.detach() * cosine


@pytest.mark.parametrize("make", [Held, LogOdds, lambda: LogOdds(2.0), lambda: Temperature(0.5)])
def test_a_parameter_that_has_no_part_in_the_logit_learns_nothing(make):
    def gradient(backend):
        link = make()
        link.spare = torch.nn.Parameter(torch.tensor(1.0))
        a = rows(4).requires_grad_()
        info_nce(a, rows(4, seed=1), link=link, backend=backend).backward()
        assert link.spare.grad is None or link.spare.grad == 0
        return a.grad

    torch.testing.assert_close(gradient("blockwise"), gradient("reference"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_link_may_give_logits_of_another_dtype(dtype):
    class Cast(Link):
        def logit(self, cosine, gap, rise):
            return 5 * cosine.to(dtype)

    def gradient(backend):
        a = rows(4).requires_grad_()
        nt_xent(a, rows(4, seed=1), link=Cast(), backend=backend).backward()
        return a.grad

    torch.testing.assert_close(gradient("blockwise"), gradient("reference"), atol=1e-3, rtol=1e-3)


class LearnedCubic(Link):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def logit(self, cosine, gap, rise):
        return self.scale * cosine**3


def test_a_link_of_ones_own_that_changed_before_the_backward_is_refused():
    link, a, b = LearnedCubic(), rows(4).requires_grad_(), rows(4, seed=1)
    other = {"link.scale": torch.tensor(1.0, requires_grad=True)}
    losses = [
        info_nce(a, b, link=link, reduction="none", backend="blockwise").sum(),
        torch.func.functional_call(
            InfoNCE(link=link, reduction="none", backend="blockwise"), other, (a, b)
        ).sum(),
    ]
    losses[0].backward(retain_graph=True)
    with torch.no_grad():
        link.scale += 1
    for loss in losses:
        with pytest.raises(RuntimeError, match="parameters must be those of the forward"):
            loss.backward()


def test_the_backward_has_the_scale_of_its_forward():
    link, a, b = LearnableTemperature(0.1), rows(4).requires_grad_(), rows(4, seed=1)
    found = []
    for step in (0, 1):
        loss = info_nce(a, b, link=link, reduction="none", backend="blockwise").sum()
        with torch.no_grad():
            link.log_scale += step
        found.append(torch.autograd.grad(loss, [a, link.log_scale]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_tensor_of_someone_elses_graph_may_be_the_temperature():
    a, b = rows(6).requires_grad_(), rows(6, seed=1)
    found = []
    for backend in ("reference", "blockwise"):
        scale = torch.tensor(2.0, requires_grad=True)
        info_nce(a, b, link=1 / scale.exp(), backend=backend).backward()
        found.append(scale.grad)
    torch.testing.assert_close(*found)


def forward_mode(loss):
    def tangent(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(loss(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    return tangent


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, forward_mode])
def test_a_transform_of_torch_func_names_the_backend_that_knows_it(transform):
    key = rows(4, seed=1)

    def loss(x):
        return info_nce(x, key, backend="blockwise")

    with pytest.raises(RuntimeError, match=r'blockwise backend.*backend="reference"'):
        transform(loss)(rows(4).expand(2, 4, 8) if transform is torch.func.vmap else rows(4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_computed_where_none_is_asked_for(mode, monkeypatch):
    link, a, b = LearnableTemperature(0.1), rows(4).requires_grad_(), rows(4, seed=1)
    expected = info_nce(a, b, link=link, backend="blockwise").detach()
    monkeypatch.delattr(blockwise.BlockwiseEngine, "_gradients")
    with mode():
        assert torch.equal(info_nce(a, b, link=link, backend="blockwise"), expected)


def test_a_parameter_of_bfloat16_learns_from_every_tile(monkeypatch):
    """The parts of many tiles are too small, each, to move a sum of eight digits."""
    monkeypatch.setattr(blockwise, "TILE_SIZE", 8)
    link, a, b = LearnableTemperature(0.1).bfloat16(), rows(150), rows(150, seed=1)
    found = [
        torch.autograd.grad(nt_xent(a, a + b, link=one, backend="blockwise"), one.parameters())[0].item()
        for one in (link, LearnableTemperature(link.tau).double())
    ]
    assert found[0] == pytest.approx(found[1], rel=0.1)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("link", [LogOdds(), LearnableTemperature(0.5), LearnedCubic()], ids=repr)
def test_second_and_third_derivatives_are_those_of_the_reference(link, reduction):
    a, b, c = (rows(5, 3, seed, torch.float64).requires_grad_() for seed in range(3))
    inputs = (a, b, c, *link.parameters())
    found = []
    for backend in ("reference", "blockwise"):
        derivative = info_nce(a, b, c, in_batch=True, link=link, reduction=reduction, backend=backend).sum()
        for _ in range(2):
            first = torch.autograd.grad(derivative, inputs, create_graph=True)
            derivative = sum(x.sin().sum() for x in first)
        found.append(torch.autograd.grad(derivative, inputs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_that_is_kept_does_not_keep_the_embeddings(reduction):
    embeddings = rows(4).requires_grad_() * 2
    alive = weakref.ref(embeddings)
    loss = info_nce(embeddings, rows(4, seed=1), reduction=reduction, backend="blockwise").sum()
    loss.backward()
    del embeddings
    assert loss.grad_fn is not None
    assert alive() is None


@pytest.mark.parametrize("link", [LogOdds(), LogOdds(2.0), LogOdds(40.0), Temperature(0.1)], ids=repr)
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_one_tile_of_float32_rows_is_of_float32(link, symmetric):
    a, b = rows(600, 40).requires_grad_(), rows(600, 40, seed=1)
    with Largest() as most:
        info_nce(a, b, symmetric=symmetric, link=link).backward()
    assert most.nbytes == 4 * 600**2


def test_a_few_anchors_do_not_copy_a_long_queue():
    """One tile would copy all of it in float64 and compute its gradient."""
    a, b = rows(8, 32).requires_grad_(), rows(8, 32, seed=1)
    queue = rows(20_000, 32, seed=2)
    with Largest() as most:
        info_nce(a, b, queue).backward()
    assert most.nbytes < 2 * queue.nbytes


def test_a_small_batch_is_computed_once(monkeypatch):
    """The backward of "none" uses the pairs of the forward, and the loss those that a link has measured."""
    seen, original = [], one_tile.matrix_of
    monkeypatch.setattr(one_tile, "matrix_of", lambda *args: (seen.append(1), original(*args))[1])
    a, b = rows(5).requires_grad_(), rows(5, seed=1)
    for link in (LogOdds(), FittedLogOdds()):
        seen.clear()
        info_nce(a, b, link=link, reduction="none", backend="blockwise").sum().backward()
        assert len(seen) == 1


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_gradients_of_a_small_batch_share_no_memory(reduction):
    a, b = rows(5).requires_grad_(), rows(5, seed=1).requires_grad_()
    of_a, of_b = torch.autograd.grad(info_nce(a, b, reduction=reduction).sum(), (a, b))
    assert of_a.untyped_storage().data_ptr() != of_b.untyped_storage().data_ptr()
    assert of_a.untyped_storage().nbytes() == of_a.nbytes


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_scaled_upstream(reduction):
    """The first backward uses up the gradient that the forward pass left; the second computes it again."""
    link = LearnableTemperature(0.5)
    a, b = rows(5).requires_grad_(), rows(5, seed=1).requires_grad_()
    for loss in (info_nce, nt_xent):
        value = loss(a, b, link=link, reduction=reduction, backend="blockwise").sum()
        inputs = (a, b, link.log_scale)
        once = torch.autograd.grad(value, inputs, retain_graph=True)
        kept = [gradient.clone() for gradient in once]
        again = torch.autograd.grad(value, inputs, retain_graph=True)
        tripled = torch.autograd.grad(3 * value, inputs)
        for first, copy, second, third in zip(once, kept, again, tripled, strict=True):
            torch.testing.assert_close(first, copy, rtol=0, atol=0)
            torch.testing.assert_close(second, first)
            torch.testing.assert_close(third, 3 * first)


def test_ids_and_labels_that_changed_before_the_backward_are_refused():
    """As torch refuses embeddings that changed: what the tiles left out is not known any more."""
    a, groups = rows(6).requires_grad_(), torch.arange(6) // 2
    options = {"reduction": "none", "backend": "blockwise"}
    for loss in (
        lambda groups: info_nce(a, a.detach() + 1, ids=groups, **options),
        lambda groups: sup_con(a, groups, **options),
    ):
        value = loss(groups)
        groups += torch.arange(6)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.sum().backward()


def test_is_called_from_compiled_code():
    a, b = rows(300).requires_grad_(), rows(300, seed=1)
    compiled = torch.compile(lambda a, b: 2 * info_nce(a, b, backend="blockwise"), backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), 2 * info_nce(a, b, backend="blockwise"))


@pytest.mark.parametrize("link", [LogOdds(), LogOdds(gain=2.0), Temperature(0.1)], ids=repr)
@pytest.mark.parametrize("labels", [1, 3])
def test_labels_in_a_narrow_cone_have_exact_gradients(link, labels):
    """All rows nearly agree: a positive's coefficient is the small difference of two nearly equal shares."""
    x = rows(1, 64) + 1e-3 * rows(200, 64, seed=1)
    groups = torch.arange(200) % labels
    gradients = []
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "blockwise")):
        z = x.to(dtype, copy=True).requires_grad_()
        sup_con(z, groups, link=link, backend=backend).backward()
        gradients.append(z.grad.double())
    assert (gradients[1] - gradients[0]).norm() < 2e-7 * gradients[0].norm()


SMALL_LINKS = [LogOdds(), LogOdds(gain=3.0), Temperature(0.05), LearnableTemperature(0.1).double()]


@pytest.mark.parametrize("link", SMALL_LINKS, ids=repr)
@pytest.mark.parametrize("spread", [1.0, 1e-3, 0.0], ids=["apart", "alike", "equal"])
def test_the_smallest_batches_are_exact_at_any_distance(link, spread):
    """Float32 rows whose matrix is computed in float64, against the reference on the same numbers."""
    a, b = (rows(1, 16) + spread * rows(24, 16, seed=seed) for seed in (1, 2))
    labels, few = torch.arange(24) % 5, torch.arange(24) // 2
    losses = {
        "pairs": lambda a, b, **options: info_nce(a, b, **options),
        "both ways": lambda a, b, **options: info_nce(a, b, symmetric=True, ids=few, **options),
        "queue": lambda a, b, **options: info_nce(a, b, b.flip(0), in_batch=True, **options),
        "views": lambda a, b, **options: nt_xent(a, b, **options),
        "decoupled": lambda a, b, **options: nt_xent(a, b, decoupled=True, **options),
        "labels": lambda a, b, **options: sup_con(a + 0 * b, labels, **options),
    }
    for name, loss in losses.items():
        found = []
        for dtype, backend in ((torch.float64, "reference"), (torch.float32, "blockwise")):
            x, y = (z.to(dtype, copy=True).requires_grad_() for z in (a, b))
            value = loss(x, y, link=link, backend=backend)
            learned = list(link.parameters())
            gradients = torch.autograd.grad(value, [x, y, *learned])
            found.append([value, *gradients])
        for expected, got in zip(*found, strict=True):
            largest = expected.abs().max().item()
            torch.testing.assert_close(
                got.double(),
                expected.double(),
                rtol=2e-6,
                atol=2e-6 * largest + 1e-9,
                msg=lambda x, name=name: f"{name}: {x}",
            )
