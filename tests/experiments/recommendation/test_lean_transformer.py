"""The quicker Transformer: the numbers and the gradients of PyTorch's own."""

import pytest
import torch
from torch import nn

from taufree.experiments.recommendation.lean_transformer import encode, normed


def test_it_is_the_encoder_of_pytorch_with_the_same_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    for weight in encoder.parameters():
        nn.init.normal_(weight)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    own = torch.tensor([[0, 4, 0, 4, 4], [2, 2, 2, 2, 2], [5, 1, 1, 5, 3]])
    strange = own[:, :, None] != own[:, None, :]
    leaves = [x, *encoder.parameters()]
    wanted = torch.tensor([2, 11, 9, 14, 1, 10])
    assert own.flatten()[wanted].tolist() == [0, 1, 2, 3, 4, 5]
    found = encode(encoder, x, own, wanted)
    expected = encoder(x, mask=strange.repeat_interleave(2, 0)).flatten(0, 1)[wanted]
    torch.testing.assert_close(found, expected)
    slopes, true = (torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected))
    torch.testing.assert_close(slopes, true)


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_is_drawn_where_pytorch_draws_it(layers):
    """Attention, both sums and the inner part have their own, in training alone, in every layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    x, own, wanted = torch.randn(4, 6, 8), torch.arange(8).repeat_interleave(3), torch.arange(0, 24, 3)
    given = x, own.view(4, 6), wanted
    plain = encode(encoder, *given)
    for one in encoder.layers:
        for part, name in ((one.self_attn, "dropout"), *((d, "p") for d in (one.dropout1, one.dropout))):
            setattr(part, name, 0.5)
            assert not torch.allclose(encode(encoder.train(), *given), plain)
            torch.testing.assert_close(encode(encoder.eval(), *given), plain)
            setattr(part, name, 0.0)


def test_dropped_attention_has_the_spread_of_pytorchs():
    """Shares are dropped after the softmax, each head's by itself, and the others make up for them."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True).double()
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).train()
    encoder.layers[0].self_attn.dropout = 0.5
    times = 20_000
    x = torch.randn(1, 4, 8, dtype=torch.float64).expand(times, 4, 8)
    own, wanted = torch.arange(times)[:, None].expand(times, 4), torch.arange(times) * 4
    with torch.no_grad():
        found, true = encode(encoder, x, own, wanted), encoder(x)[:, 0]
    torch.testing.assert_close(found.mean(0), true.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(found.T.cov(), true.T.cov(), rtol=0, atol=0.03)
    assert true.var(0).max() > 0.1


@pytest.mark.parametrize("mixed", [True, False], ids=["autocast", "bfloat16 weights"])
def test_half_precision_is_as_good_as_pytorchs(mixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, own, wanted = torch.randn(2, 300, 8), torch.arange(2)[:, None].expand(2, 300), torch.tensor([7, 307])
    true = encoder.double()(x.double()).flatten(0, 1)[wanted]
    encoder = encoder.float() if mixed else encoder.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = encode(encoder, x if mixed else x.bfloat16(), own, wanted)
        plain = encoder(x if mixed else x.bfloat16()).flatten(0, 1)[wanted]
    error, plain_error = ((y.double() - true).abs().max() for y in (found, plain))
    assert 0 < error < 2 * plain_error < 0.1
    slopes = torch.autograd.grad(found.float().square().sum(), list(encoder.parameters()))
    assert all(slope.isfinite().all() for slope in slopes)


def test_a_norm_is_the_norm_of_pytorch():
    torch.manual_seed(0)
    norm = nn.LayerNorm(7, eps=1e-3).double()
    for weight in norm.parameters():
        nn.init.normal_(weight)
    x = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    leaves = [x, *norm.parameters()]
    slopes, true = (torch.autograd.grad(y.sin().sum(), leaves) for y in (normed(norm, x), norm(x)))
    torch.testing.assert_close(normed(norm, x), norm(x))
    torch.testing.assert_close(slopes, true)
