"""A ``torch.nn.TransformerEncoder`` computed with fewer and quicker kernels: the same numbers to rounding.

For a small network on a GPU the time is that of the launches, and of the few kernels that use a few of its
processors only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """``norm(x)``, [..., width]; the gradients of its weight and bias are sums that use the whole GPU.

    Those of PyTorch's own kernel are left to a block for each 32 columns, however many rows there are.
    """
    return torch.addcmul(norm.bias, layer_norm(x, norm.normalized_shape, eps=norm.eps), norm.weight)


def encode(encoder: nn.TransformerEncoder, x: Tensor, bias: Tensor, wanted: Tensor) -> Tensor:
    """What an encoder whose layers normalise after the sum makes of some places of x [N, T, width].

    Attention does not leave the layout of ``x``; PyTorch's module moves the sequence to the front and back.
    After the last attention only the places that are wanted go on.

    Args:
        bias: [N, 1, T, T], added to the scores of the attention. A GPU wants T to be a multiple of 8.
        wanted: [K], numbers n T + t of places; the result is [K, width].
    """
    *others, last = encoder.layers
    for layer in others:
        x = _sum_up(layer, x, _attend(layer.self_attn, x, bias))
    found, start = (y.flatten(0, 1).index_select(0, wanted) for y in (_attend(last.self_attn, x, bias), x))
    return _sum_up(last, start, found)


def _attend(attention: Any, x: Tensor, bias: Tensor) -> Tensor:
    """[N, T, width], the heads side by side; what follows is done place by place."""
    together = linear(x, attention.in_proj_weight, attention.in_proj_bias)
    split = together.view(*x.shape[:2], 3, attention.num_heads, -1)
    # Taken apart like this, the gradients are put together in the layout of ``x`` at once.
    query, key, value = (part.transpose(1, 2) for part in split.unbind(2))
    share = attention.dropout if attention.training else 0.0
    heads = scaled_dot_product_attention(query, key, value, bias, dropout_p=share)
    return heads.transpose(1, 2).flatten(-2)


def _sum_up(layer: Any, x: Tensor, heads: Tensor) -> Tensor:
    """The rest of a layer, [..., width]."""
    x = normed(layer.norm1, x + layer.dropout1(layer.self_attn.out_proj(heads)))
    inner = layer.dropout(layer.activation(layer.linear1(x)))
    return normed(layer.norm2, x + layer.dropout2(layer.linear2(inner)))
