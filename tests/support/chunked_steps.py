"""Encoders and rows for chunked_backward, and a step of theirs in one graph."""

from itertools import pairwise

import torch
from torch import nn

N = 12


def mlp(*middle, dtype=torch.float64, seed=0):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), *middle, nn.GELU(), nn.Linear(8, 5)).to(dtype)


def rows(n=N, dtype=torch.float64, seed=0):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


A, B = rows(seed=1), rows(seed=2)


def gradients(*modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def buffers(*modules):
    return [buffer for module in modules for buffer in module.buffers()]


def one_graph(loss, *calls, chunks=1):
    """The truth: every chunk in one graph, cut into nearly equal parts."""
    embeddings = []
    for encoder, x in calls:
        edges = pairwise(len(x) * k // chunks for k in range(chunks + 1))
        embeddings.append(torch.cat([encoder(x[i:j]) for i, j in edges]))
    value = loss(*embeddings)
    value.backward()
    return value.detach()
