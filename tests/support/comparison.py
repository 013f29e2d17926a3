"""Random rows and pairs, and the agreement of two losses in value and gradients."""

import torch


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def agree(ours, theirs, *inputs, retain=False):
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    grads = (torch.autograd.grad(loss, inputs, retain_graph=retain) for loss in (ours, theirs))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def noisy_pairs(rows=40, dimensions=8, noise=0.7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    first, other = torch.randn(2, rows, dimensions, generator=generator)
    return first, first + noise * other
