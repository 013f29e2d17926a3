"""The network of DCRec against its definition, and what a GPU asks of it."""

import itertools

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch.utils._python_dispatch import TorchDispatchMode

from taufree import LogOdds
from tests.support.shop import begun


def test_histories_that_share_a_row_are_read_as_if_alone(shop):
    training = begun(shop, dropout=0.0)
    model = training.weights.double().train()
    samples, _, slots = next(iter(training.recipe.batches(0, torch.Generator().manual_seed(0))))
    assert len(slots) <= 0.7 * len(samples)
    alone = []
    for row, end in model.train_samples[:, samples].T.tolist():
        vectors = model.items(model.train_items[row, :end]) + model.places.weight[:end]
        alone.append(model.encoder(model.entry_norm(vectors)[None])[0, -1])
    found = [model(samples, slots=slots).sequence, model(samples).sequence, torch.stack(alone)]
    slopes = [torch.autograd.grad(x.square().sin().sum(), model.items.weight)[0] for x in found]
    for x, slope in zip(found, slopes, strict=True):
        torch.testing.assert_close(x, found[-1], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(slope, slopes[-1], rtol=1e-10, atol=1e-10)


class Operations(TorchDispatchMode):
    """The names of all operations that are done."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.__name__.split(".")[0])
        return operation(*args, **(kwargs or {}))


def test_nothing_in_a_step_of_the_network_would_wait_for_a_gpu(shop):
    """Else it could not be recorded. Such are: a tensor's value or the number of its true entries that the
    program needs, and indices that come from it."""
    training = begun(shop, contrast=0.0)
    recipe, model = training.recipe, training.weights.train()
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    with Operations() as seen:
        recipe.step(model, batch, LogOdds()).loss.backward()
    waits = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh"}
    assert not seen.names & waits
    assert {"_sparse_mm_reduce_impl", "native_layer_norm_backward"} <= seen.names


def test_the_reading_compiles_to_one_graph_of_the_same_numbers(shop):
    """As it is done on a GPU; here by the compiler's front half, which needs none."""
    plain, compiled = (begun(shop, dropout=0.0, precision="64-true") for _ in range(2))
    compiled.weights.compile_reading(backend="aot_eager", fullgraph=True)
    losses = [[training.train_epoch() for _ in range(2)] for training in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for mine, other in zip(compiled.weights.parameters(), plain.weights.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def walked(model, weights):
    """norm(e + mean(e, Ae, AAe)), with a dense A."""
    vectors = model.vectors
    table = torch.zeros(len(vectors), len(vectors))
    table[model.train_edges[1], model.train_edges[0]] = weights
    once = table @ vectors
    return model.graph_norm(vectors + torch.stack([vectors, once, table @ once]).mean(0))


def test_conformity_follows_its_definition(shop):
    training = begun(shop, dropout=0.0)
    model = training.weights.train()
    samples = torch.arange(0, 300, 5)
    out = model(samples)
    row, end = model.train_samples[:, samples]
    edges, weights = model.train_edges.as_tensor(), model.train_weights
    own = torch.zeros(len(weights), dtype=torch.bool)
    for one in row.unique():
        walk = model.train_items[one, : model.train_lengths[one]].tolist()
        pairs = {frozenset(pair) for pair in itertools.pairwise(walk)}
        own |= torch.tensor([frozenset(pair) in pairs and len(set(pair)) == 2 for pair in edges.T.tolist()])
    whole = walked(model, weights)
    without = walked(model, weights * ~own)
    found = []
    for last in out.last.tolist():
        foreign, civil = (edges[0, (edges[1] == last) & chosen] for chosen in (~own, own))
        readout = whole[civil].mean(0) if len(civil) else torch.zeros(64)
        triple = ((whole[last], without[last]), (whole[last], whole[foreign].mean(0)))
        triple = (*triple, (readout, whole[foreign].mean(0)))
        found.append(sum(cosine_similarity(a, b, dim=0) for a, b in triple) / 3)
    expected = torch.stack(found).sigmoid()
    expected = expected - expected.min()
    expected = (0.4 * expected / expected.mean()).where(end > 1, 0.5)
    assert torch.allclose(out.conformity, expected, atol=1e-4)
