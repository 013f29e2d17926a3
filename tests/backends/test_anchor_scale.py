"""A scale for each anchor: every kind of contrast against a dense sketch, on every backend."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from taufree import Temperature, info_nce, nt_xent
from taufree.backends import blockwise, reference
from taufree.backends.blockwise import engine
from taufree.links.log_odds import with_gain
from tests.support.contrasts import contrasts, rows
from tests.support.largest import Largest

N, D = 7, 5
KINDS = sorted(contrasts(N, D).keys() - {"labelled keys"})  # which the sketch does not know
LINKS = {"temperature": Temperature, "log-odds": lambda tau: with_gain(1 / tau, 1e-3)}


def sketch(contrast, link, tau):
    """The losses [N], by a loop over the anchors of each direction."""
    unit = torch.nn.functional.normalize

    def logits(anchor, others, tau):
        cosine = unit(others, dim=-1) @ unit(anchor, dim=-1)
        return cosine / tau if link == "temperature" else torch.log((1.001 + cosine) / (1.001 - cosine)) / tau

    def one(i, anchors, keys, tau, more):
        groups = torch.arange(N * 2) if contrast.groups is None else contrast.groups
        apart = [j for j in range(len(keys)) if groups[j] != groups[i]]
        if contrast.labels is not None:
            alike = [j for j in range(len(keys)) if groups[j] == groups[i] and j != i]
            found = logits(anchors[i], keys[alike + apart], tau)
            positive, negative = found[: len(alike)], found[len(alike) :]
            bottom = negative if contrast.decoupled else found
            return bottom.logsumexp(0) - positive.mean()
        target = (i + contrast.shift) % len(keys)
        apart = [j for j in apart if j != target] if contrast.in_batch else []
        others = torch.cat([keys[[target]], keys[apart], *more])
        found = logits(anchors[i], others, tau)
        return found[1 if contrast.decoupled else 0 :].logsumexp(0) - found[0]

    keys, losses = contrast.anchors if contrast.keys is None else contrast.keys, []
    for i in range(contrast.n):
        more = [] if contrast.queue is None else [contrast.queue]
        if contrast.queue_ids is not None:
            more = [contrast.queue[contrast.queue_ids != contrast.ids[i]]]
        more += [] if contrast.own_negatives is None else [contrast.own_negatives[i]]
        losses.append(one(i, contrast.anchors, keys, tau[i], more))
        if contrast.symmetric:
            back = one(i, keys, contrast.anchors, tau[contrast.n + i], [])
            losses[-1] = (losses[-1] + back) / 2
    return torch.stack(losses)


def gradients(losses, inputs):
    weights = torch.linspace(0.5, 2, len(losses), dtype=torch.float64)
    return torch.autograd.grad((losses * weights).sum(), inputs, retain_graph=True)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_all_gradients_are_those_of_the_sketch(kind, link, decoupled):
    contrast = replace(contrasts(N, D)[kind], decoupled=decoupled)
    fields = [
        name for name in ("anchors", "keys", "queue", "own_negatives") if getattr(contrast, name) is not None
    ]
    contrast = replace(contrast, **{name: getattr(contrast, name).requires_grad_() for name in fields})
    tau = rows(contrast.n * (2 if contrast.symmetric else 1), seed=9).abs().add(0.1).requires_grad_()
    inputs = [*(getattr(contrast, name) for name in fields), tau]
    truth = sketch(contrast, link, tau)
    expected = gradients(truth, inputs)
    made = LINKS[link](tau)
    found = [reference.loss(contrast, made, None)]
    with patch.object(engine, "TILE_SIZE", 3):  # several tiles, and those of one_tile's size
        found.append(blockwise.loss(contrast, made, None))
        everything = [gradients(losses, inputs) for losses in found]
        weighted = blockwise.loss(contrast, made, torch.linspace(0.5, 2, contrast.n, dtype=torch.float64))
    everything.append(torch.autograd.grad(weighted, inputs))
    for losses in found:
        torch.testing.assert_close(losses, truth.detach())
    for one in everything:
        torch.testing.assert_close(one, expected)


def test_equal_scales_are_one_scale():
    a, b = rows(6, 4), rows(6, 4, seed=1)
    for function, anchors, more in (
        (nt_xent, 12, {}),
        (info_nce, 6, {}),
        (info_nce, 12, {"symmetric": True}),
    ):
        each = function(a, b, link=torch.full((anchors,), 0.2).double(), **more)
        torch.testing.assert_close(each, function(a, b, link=0.2, **more))


def test_a_compiled_loss_learns_each_anchors_scale():
    a, b = rows(6, 4), rows(6, 4, seed=1)
    tau = torch.full((12,), 0.2, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(nt_xent(a, b, link=tau), tau)
    compiled = torch.compile(lambda tau: nt_xent(a, b, link=tau), backend="eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(tau), tau)
    torch.testing.assert_close(found, plain)


def test_memory_is_linear_in_the_anchors():
    a, b = (rows(128, 2, seed=seed).requires_grad_() for seed in (0, 1))
    tau = torch.full((256,), 0.2, dtype=torch.float64, requires_grad=True)
    nt_xent(a, b, link=tau, backend="blockwise")  # the first makes the allocator keep what is freed
    with patch.object(engine, "TILE_SIZE", 16), patch.object(engine, "KEPT_BYTES", 0), Largest() as seen:
        nt_xent(a, b, link=tau, backend="blockwise").backward()
    assert seen.numel < 256 * 256 // 16
