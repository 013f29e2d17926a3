"""The quicker Transformer: the numbers and the gradients of PyTorch's own."""

import torch
from torch import nn

from taufree.experiments.lean_transformer import encode, normed


def test_it_is_the_encoder_of_pytorch_with_the_same_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    for weight in encoder.parameters():
        nn.init.normal_(weight)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    strange = torch.rand(3, 5, 5) < 0.4
    strange.diagonal(dim1=1, dim2=2).fill_(False)
    bias = torch.zeros(3, 1, 5, 5, dtype=torch.float64).masked_fill(strange[:, None], -torch.inf)
    leaves = [x, *encoder.parameters()]
    wanted = torch.tensor([14, 3, 3, 0])
    found = encode(encoder, x, bias, wanted)
    expected = encoder(x, mask=strange.repeat_interleave(2, 0)).flatten(0, 1)[wanted]
    torch.testing.assert_close(found, expected)
    slopes, true = (torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected))
    torch.testing.assert_close(slopes, true)


def test_dropout_is_drawn_where_pytorch_draws_it():
    """Attention, both sums and the inner part have their own, in training alone."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x, bias, wanted = torch.randn(4, 6, 8), torch.zeros(4, 1, 6, 6), torch.arange(0, 24, 3)
    plain = encode(encoder, x, bias, wanted)
    first = encoder.layers[0]
    for part, name in ((first.self_attn, "dropout"), *((d, "p") for d in (first.dropout1, first.dropout))):
        setattr(part, name, 0.5)
        assert not torch.allclose(encode(encoder.train(), x, bias, wanted), plain)
        torch.testing.assert_close(encode(encoder.eval(), x, bias, wanted), plain)
        setattr(part, name, 0.0)


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
