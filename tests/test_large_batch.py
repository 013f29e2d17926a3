"""Two passes give the gradients, buffers and random numbers of one graph, with the memory of a chunk."""

import copy
from collections import UserDict, namedtuple

import pytest
import torch
from torch import distributed, nn
from torch.nn.utils.parametrizations import spectral_norm

from taufree import InfoNCE, LearnableTemperature, NTXent, info_nce, nt_xent, sup_con
from taufree.large_batch import chunked_backward
from tests.support.chunked_ranks import on_two_ranks
from tests.support.chunked_steps import A, B, N, buffers, gradients, mlp, one_graph, rows


def all_gradients(step):
    loss, *calls = step
    return gradients(loss, *(encoder for encoder, _ in calls))


def relative_difference(gradient, expected):
    return (gradient - expected).norm() / expected.norm()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("chunk_size", [1, 4, 5, 11, N, 100])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_those_of_the_unchunked_step(dtype, tolerance, chunk_size, shared):
    def setting():
        first = mlp(nn.LayerNorm(8), dtype=dtype)
        second = first if shared else mlp(nn.LayerNorm(8), dtype=dtype, seed=1)
        loss = (NTXent if shared else InfoNCE)(link=LearnableTemperature()).to(dtype)
        return loss, (first, A.to(dtype)), (second, B.to(dtype))

    plain, chunked = setting(), setting()
    expected = one_graph(*plain)
    value = chunked_backward(*chunked, chunk_size=chunk_size)
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=0)
    assert not value.requires_grad
    for pair in zip(all_gradients(chunked), all_gradients(plain), strict=True):
        assert relative_difference(*pair) < tolerance


class Running(nn.Module):
    """Scales by a buffer, which each forward replaces by another tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", None)

    def forward(self, x):
        scale = torch.ones_like(x[0]) if self.scale is None else self.scale
        self.scale = scale + x.detach().mean(0)
        return scale * x


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Dropout(0.5),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.BatchNorm1d(8, momentum=None),
        lambda: spectral_norm(nn.Linear(8, 8)),
        Running,
    ],
    ids=["dropout", "batchnorm", "cumulative batchnorm", "spectral norm", "replaced buffer"],
)
def test_random_numbers_and_buffers_are_those_of_one_graph(layer):
    plain = mlp(layer())
    chunked = copy.deepcopy(plain)

    def loss(a, b):
        return nt_xent(a + 0.1 * torch.randn_like(a), b)

    torch.manual_seed(3)
    expected = one_graph(loss, (plain, A), (plain, B), chunks=3)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    value = chunked_backward(loss, (chunked, A), (chunked, B), chunk_size=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(chunked), gradients(plain), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(buffers(chunked), buffers(plain), rtol=1e-12, atol=1e-14)


def test_an_encoder_may_work_in_place_on_its_inputs():
    plain = nn.Sequential(nn.Dropout(0.5, inplace=True), mlp(nn.Identity()))
    chunked, a, b = copy.deepcopy(plain), A.clone(), B.clone()
    torch.manual_seed(3)
    one_graph(nt_xent, (plain, A.clone()), (plain, B.clone()))
    torch.manual_seed(3)
    chunked_backward(nt_xent, (chunked, a), (chunked, b), chunk_size=N)
    torch.testing.assert_close(gradients(chunked), gradients(plain), rtol=1e-11, atol=1e-12)
    assert torch.equal(a, A)


def test_each_chunk_counts_once_in_running_statistics():
    encoder = mlp(nn.BatchNorm1d(8))
    chunked_backward(nt_xent, (encoder, A), (encoder, B), chunk_size=5)
    assert encoder[1].num_batches_tracked == 2 * 3


def test_no_small_rest_is_left():
    sizes = []
    encoder = mlp(nn.BatchNorm1d(8))  # in training mode it refuses a single row
    encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    chunked_backward(nt_xent, (encoder, rows(9)), (encoder, rows(9)), chunk_size=8)
    assert sorted(set(sizes)) == [4, 5]


Masked = namedtuple("Masked", ["x", "mask"])


class Sentences(nn.Module):
    """An encoder with structured inputs, like a language model's."""

    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.kinds = set()

    def forward(self, batch):
        self.kinds.add(type(batch))
        if isinstance(batch, dict):
            assert batch["flag"] is None
            return self.body(batch["x"] * batch["more"]["mask"])
        x, mask = batch
        return self.body(x * mask)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x, mask: (x, mask), tuple),
        (lambda x, mask: Masked(x, mask), Masked),
        (lambda x, mask: [x, mask], list),
        (lambda x, mask: {"x": x, "more": {"mask": mask}, "flag": None}, dict),
        (lambda x, mask: UserDict(x=x, more={"mask": mask}, flag=None), dict),
    ],
    ids=["tuple", "namedtuple", "list", "dict", "mapping"],
)
def test_structured_inputs(make, kind):
    encoder, plain = Sentences(), mlp()
    mask = (B > 0).double()
    chunked_backward(nt_xent, (encoder, make(A, mask)), (encoder, make(B, mask)), chunk_size=5)
    one_graph(nt_xent, (plain, A * mask), (plain, B * mask))
    assert encoder.kinds == {kind}
    torch.testing.assert_close(gradients(encoder), gradients(plain), rtol=1e-12, atol=1e-12)


def test_one_call_and_calls_of_different_lengths():
    encoder, plain = mlp(), mlp()
    labels = torch.arange(N) % 4
    hard = rows(7, seed=3)
    chunked_backward(lambda z: sup_con(z, labels), (encoder, A), chunk_size=5)
    one_graph(lambda z: sup_con(z, labels), (plain, A))
    chunked_backward(info_nce, (encoder, A), (encoder, B), (encoder, hard), chunk_size=5)
    one_graph(info_nce, (plain, A), (plain, B), (plain, hard))
    torch.testing.assert_close(gradients(encoder), gradients(plain), rtol=1e-12, atol=1e-12)


def test_calls_add_up():
    encoder = mlp()
    chunked_backward(nt_xent, (encoder, A), (encoder, B), chunk_size=5)
    once = [gradient.clone() for gradient in gradients(encoder)]
    chunked_backward(nt_xent, (encoder, A), (encoder, B), chunk_size=5)
    torch.testing.assert_close(gradients(encoder), [2 * gradient for gradient in once])


class SometimesUsed(nn.Linear):
    """A layer that one chunk skips and another uses, as with stochastic depth."""

    def forward(self, x):
        return super().forward(x) if torch.rand(()) < 0.5 else x


def test_autocast_holds_for_both_passes():
    # The first chunk skips the layer, so its weight is first cast without a graph, and autocast keeps it.
    torch.manual_seed(1)
    assert torch.rand(1) > 0.5
    plain = mlp(SometimesUsed(8, 8), dtype=torch.float32)
    encoder = copy.deepcopy(plain)
    dtypes = []
    encoder.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    a, b = A.float(), B.float()
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(1)
        chunked_backward(nt_xent, (encoder, a), (encoder, b), chunk_size=2)
        torch.manual_seed(1)
        one_graph(nt_xent, (plain, a), (plain, b), chunks=6)
    assert dtypes == [torch.bfloat16] * 24
    for gradient, expected in zip(gradients(encoder), gradients(plain), strict=True):
        assert gradient.dtype == torch.float32
        assert relative_difference(gradient, expected) < 0.02


def test_a_scaler_scales_gradients_and_not_the_loss_returned():
    encoder, plain = mlp(), mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    value = chunked_backward(nt_xent, (encoder, A), (encoder, B), chunk_size=5, scaler=scaler)
    torch.testing.assert_close(value, one_graph(nt_xent, (plain, A), (plain, B)))
    torch.testing.assert_close(gradients(encoder), [1024 * gradient for gradient in gradients(plain)])
    scaler.unscale_(torch.optim.SGD(encoder.parameters(), lr=0.1))
    torch.testing.assert_close(gradients(encoder), gradients(plain))


class Towers(nn.Module):
    """Two encoders in one module, called through its methods."""

    def __init__(self):
        super().__init__()
        self.image, self.text = mlp(nn.BatchNorm1d(8)), mlp(nn.BatchNorm1d(8), seed=1)
        self.calls = []

    def encode_image(self, x):
        self.calls.append("image")
        return self.image(x)

    def encode_text(self, x):
        self.calls.append("text")
        return self.text(x)


@pytest.mark.parametrize("frozen", [True, False])
def test_methods_as_encoders_and_a_frozen_one_runs_once(frozen):
    model, plain = Towers(), Towers()
    model.image.requires_grad_(not frozen)
    plain.image.requires_grad_(not frozen)
    chunked_backward(info_nce, (model.encode_image, A), (model.encode_text, B), chunk_size=5)
    one_graph(info_nce, (plain.encode_image, A), (plain.encode_text, B), chunks=3)
    assert (model.calls.count("image"), model.calls.count("text")) == (3 if frozen else 6, 6)
    assert all((gradient is None) == frozen for gradient in gradients(model.image))
    torch.testing.assert_close(gradients(model.text), gradients(plain.text), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(buffers(model), buffers(plain))


def test_inputs_get_their_gradient_through_a_frozen_encoder():
    encoder = mlp().requires_grad_(False)
    prompt, expected = A.clone().requires_grad_(), A.clone().requires_grad_()
    chunked_backward(nt_xent, (encoder, prompt), (encoder, B), chunk_size=5)
    one_graph(nt_xent, (encoder, expected), (encoder, B))
    torch.testing.assert_close(prompt.grad, expected.grad, rtol=1e-12, atol=1e-12)


def test_activations_of_one_chunk_are_alive_at_a_time():
    class Saved:
        """A saved tensor that counts itself while a graph holds it."""

        alive = peak = 0

        def __init__(self, tensor):
            self.tensor = tensor.detach()  # or an output would keep its own graph alive
            Saved.alive += tensor.numel()
            Saved.peak = max(Saved.peak, Saved.alive)

        def __del__(self):
            Saved.alive -= self.tensor.numel()

    def peak(step):
        Saved.peak = 0
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            step()
        assert Saved.alive == 0
        return Saved.peak

    encoder = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    x = rows(256, torch.float32)

    def loss(a, b):
        return (a * b).sum()

    one_chunk = peak(lambda: encoder(x[:16]).sum().backward())
    chunked = peak(lambda: chunked_backward(loss, (encoder, x), (encoder, x), chunk_size=16))
    unchunked = peak(lambda: one_graph(loss, (encoder, x), (encoder, x)))
    assert chunked == one_chunk < unchunked / 8


class Gives(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("calls", "chunk_size", "error", "message"),
    [
        ([(mlp(), A)], 0, ValueError, "chunk_size must be an integer of at least 1, got 0"),
        ([(mlp(), A)], 2.5, ValueError, "chunk_size must be an integer of at least 1, got 2.5"),
        ([], 4, ValueError, "at least one pair"),
        ([mlp()], 4, TypeError, r"calls\[0\] must be a pair \(encoder, inputs\), got Sequential"),
        (
            [(lambda x: x, A)],
            4,
            TypeError,
            "must have a torch.nn.Module or a module's method .* got function",
        ),
        ([(mlp(), A[:0])], 4, ValueError, r"at least 1, got lengths \[0\]"),
        ([(mlp(), ["a sentence"])], 4, ValueError, r"got lengths \[\]"),
        ([(mlp(), A), (Sentences(), (A, B[:5]))], 4, ValueError, r"calls\[1\] .* got lengths \[5, 12\]"),
        ([(Gives(lambda x: (x, x)), A)], 4, TypeError, "gives a tensor, got tuple"),
        ([(Gives(lambda x: x[:, None]), A)], 4, ValueError, r"gives \[4, D\] for 4 rows, got \[4, 1, 6\]"),
        ([(Gives(lambda x: x[:2]), A)], 4, ValueError, r"gives \[4, D\] for 4 rows, got \[2, 6\]"),
        ([(mlp(), mlp()(A))], 4, ValueError, r"calls\[0\] must have inputs without a graph"),
        ([(mlp(), A.to("meta"))], 4, ValueError, "must be on CPU or CUDA, .* got meta"),
        ([(mlp(), A), (mlp(), B[:5])], 4, ValueError, "view_b must have the shape of view_a"),
    ],
)
def test_errors_name_what_is_wrong_and_leave_no_gradient(calls, chunk_size, error, message):
    with pytest.raises(error, match=message):
        chunked_backward(nt_xent, *calls, chunk_size=chunk_size)
    modules = [call[0] for call in calls if isinstance(call, tuple) and isinstance(call[0], nn.Module)]
    assert all(gradient is None for gradient in gradients(*modules))


@pytest.mark.parametrize(
    ("loss", "trains", "error", "message"),
    [
        (None, True, TypeError, "loss must be a function or a module, got NoneType"),
        (lambda a, b: nt_xent(a, b, reduction="none"), True, ValueError, r"a scalar, got shape \[8\]"),
        (lambda a, b: None, True, TypeError, "loss must give a scalar tensor, got NoneType"),
        (nt_xent, False, ValueError, "calls must hold an encoder with something to train, got none"),
    ],
)
def test_a_loss_that_cannot_be_trained_with(loss, trains, error, message):
    encoder = nn.Linear(3, 2).requires_grad_(trains)
    with pytest.raises(error, match=message):
        chunked_backward(loss, (encoder, torch.ones(4, 3)), (encoder, torch.ones(4, 3)), chunk_size=2)
    assert gradients(encoder) == [None, None]


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="gloo is not built in")
def test_ddp_exchanges_gradients_once(tmp_path):
    torch.multiprocessing.spawn(on_two_ranks, args=(tmp_path / "store",), nprocs=2)
