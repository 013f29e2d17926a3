"""A ``torch.nn.TransformerEncoder`` computed with fewer and quicker kernels: the same numbers to rounding.

For a small network on a GPU the time is that of the launches, and of the few kernels that use a few of its
processors only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear, scaled_dot_product_attention
from torch_geometric.utils import softmax


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """``norm(x)``, [..., width]; the gradients of its weight and bias are sums that use the whole GPU.

    Those of PyTorch's own kernel are left to a block for each 32 columns, however many rows there are.
    """
    return torch.addcmul(norm.bias, layer_norm(x, norm.normalized_shape, eps=norm.eps), norm.weight)


def encode(encoder: nn.TransformerEncoder, x: Tensor, own: Tensor, wanted: Tensor) -> Tensor:
    """What an encoder makes of a place of each group in x [N, T, width]; its layers normalise after the sum.

    Attention does not leave the layout of ``x``; PyTorch's module moves the sequence to the front and back.
    In the last layer attention is computed for the wanted places alone.

    Args:
        own: [N, T], the group 0 to K - 1 that a place belongs to: places of one group, which are in one row,
            see each other and nothing else. On a GPU T must be a multiple of 8.
        wanted: [K], the number n T + t of the place of each group; the result is [K, width].
    """
    *others, last = encoder.layers
    foreign = own[:, None, :, None] != own[:, None, None, :]
    bias = torch.zeros_like(foreign, dtype=x.dtype).masked_fill(foreign, -torch.inf)
    for layer in others:
        x = _sum_up(layer, x, _attend(layer.self_attn, x, bias))
    x = x.flatten(0, 1)
    asking = x.index_select(0, wanted)
    return _sum_up(last, asking, _attend_once(last.self_attn, x, own.flatten(), asking))


def _attend(attention: Any, x: Tensor, bias: Tensor) -> Tensor:
    """[N, T, width], the heads side by side; what follows is done place by place."""
    together = linear(x, attention.in_proj_weight, attention.in_proj_bias)
    split = together.view(*x.shape[:2], 3, attention.num_heads, -1)
    # Taken apart like this, the gradients are put together in the layout of ``x`` at once.
    query, key, value = (part.transpose(1, 2) for part in split.unbind(2))
    heads = scaled_dot_product_attention(query, key, value, bias, dropout_p=_share(attention))
    return heads.transpose(1, 2).flatten(-2)


def _attend_once(attention: Any, x: Tensor, own: Tensor, asking: Tensor) -> Tensor:
    """[K, width]: a place of each group, ``asking``, attends to those of x [P, width] that are its own."""
    count, width = asking.shape
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    query = linear(asking, weight[:width], bias[:width])
    both = linear(x, weight[width:], bias[width:])
    key, value = both.view(len(x), 2, attention.num_heads, -1).unbind(1)
    asked = query.index_select(0, own).view_as(key)
    # Sums over a group are added up one by one, which halves are too coarse for.
    wide = torch.promote_types(key.dtype, torch.float32)
    scores = (asked * key).sum(-1, dtype=wide) / key.shape[-1] ** 0.5
    shares = dropout(softmax(scores, own, num_nodes=count), _share(attention))
    seen = (shares[..., None] * value).flatten(1)
    return seen.new_zeros(count, width).index_add(0, own, seen).to(key.dtype)


def _share(attention: Any) -> float:
    """Of the weights that are dropped."""
    return attention.dropout if attention.training else 0.0


def _sum_up(layer: Any, x: Tensor, heads: Tensor) -> Tensor:
    """The rest of a layer, [..., width]."""
    x = normed(layer.norm1, x + layer.dropout1(layer.self_attn.out_proj(heads)))
    inner = layer.dropout(layer.activation(layer.linear1(x)))
    return normed(layer.norm2, x + layer.dropout2(layer.linear2(inner)))
