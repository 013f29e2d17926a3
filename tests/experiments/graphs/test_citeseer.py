"""The CiteSeer recipe: on a small graph with every oddity, and on the real one where it is at hand."""

import json
import re

import pytest
import torch
from torch.nn.functional import normalize

import taufree
from taufree import LogOdds, Temperature
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.graphs.citeseer import CiteSeer, CiteSeerSettings, with_self_pairs
from taufree.experiments.graphs.grace import Graph
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training, train
from taufree.util.errors import BadInputError
from tests.support.breaking_off import assert_goes_on
from tests.support.command import invoke, shell
from tests.support.paths import DATA, needs_data


class Small(CiteSeer):
    """60 nodes: the last ten isolated without any word, node 1 a copy of node 0 with the same neighbours."""

    connected = True

    def load(self, data):
        draw = torch.Generator().manual_seed(0)
        labels = torch.arange(60) % 3
        features = (torch.rand(60, 40, generator=draw) < 0.1).float()
        features[torch.arange(60), labels] = 1
        features[1] = features[0]
        features[50:] = 0
        ends = torch.randint(2, 50, (2, 100), generator=draw)
        edges = torch.cat([ends, ends.flip(0), torch.tensor([[5, 5], [0, 1]])], dim=1)
        edges = edges if self.connected else edges[:, :0]
        self.graph = Graph(features / features.sum(1, keepdim=True).clamp(min=1), edges, labels)


class Unconnected(Small):
    connected = False


def begun(recipe_type=Small, link="free", seed=0, **settings):
    settings = CiteSeerSettings(**{"epochs": 4, "probe_epochs": 40, **settings})
    recipe = recipe_type(settings)
    recipe.load(None)
    return Training(Run("citeseer", link, seed, settings), recipe)


@pytest.mark.parametrize("mask", ["nt-xent", "pygcl"])
@pytest.mark.parametrize("recipe_type", [Small, Unconnected])
@pytest.mark.parametrize("link", ["free", "0.1", "learnable"])
def test_isolated_and_duplicate_nodes_and_no_edges_at_all_stay_finite(mask, recipe_type, link):
    training = begun(recipe_type, link, mask=mask)
    losses = [training.train_epoch() for _ in range(4)]
    metrics = training.evaluate()
    assert torch.tensor(losses).isfinite().all()
    assert all(torch.tensor(curve).isfinite().all() for curve in training.curves.values())
    assert all(weight.isfinite().all() for weight in training.weights.parameters())
    assert set(metrics) == set(CiteSeer.metrics)
    assert all(0 <= value <= 100 for value in metrics.values())


def test_a_step_is_nt_xent_of_the_two_views_projections():
    training = begun()
    recipe, model = training.recipe, training.weights
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    step = recipe.step(model, batch, LogOdds())
    views = [model(*(kept[i : i + 1] for kept in batch))[1] for i in (0, 1)]
    assert step.loss.item() == pytest.approx(taufree.nt_xent(*views).item(), rel=1e-5)
    assert step.observation.candidates == 2 * 60 - 1
    assert not torch.allclose(*views)


def test_schemes_get_the_nodes_numbers_and_what_the_network_predicts():
    samples, predicted, free = (begun(link=link) for link in ("isogclr", "tau-net", "free"))
    assert samples.link.tau.shape == (1, 60)
    samples.train_epoch()
    assert (samples.link.log_u > -torch.inf).all()
    own = predicted.weights.state_dict()
    assert all(torch.equal(own.pop(name), value) for name, value in free.weights.state_dict().items())
    assert set(own) == {"uncertainty.weight", "uncertainty.bias"}
    predicted.train_epoch()
    assert predicted.weights.uncertainty.weight.grad.abs().max() > 0


def test_links_of_a_seed_are_paired_and_a_seed_trains():
    free, tau = begun(link="free"), begun(link="0.5")
    assert all(map(torch.equal, free.weights.parameters(), tau.weights.parameters()))
    first = [next(iter(one.recipe.batches(0, torch.Generator().manual_seed(7)))) for one in (free, tau)]
    assert all(map(torch.equal, *first))
    long = begun(epochs=60)
    losses = [long.train_epoch() for _ in range(60)]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("mask", ["nt-xent", "pygcl"])
def test_a_broken_off_run_goes_on_bit_for_bit(tmp_path, mask):
    assert_goes_on(lambda: begun(link="learnable", mask=mask), tmp_path, epochs=4)


@pytest.mark.parametrize("link", [LogOdds(), Temperature(0.5)])
def test_pygcls_mask_leaves_the_self_pair_in(link):
    torch.manual_seed(0)
    a = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(6, 4, dtype=torch.float64)
    rows = normalize(torch.cat([a, b]), dim=-1)
    # An anchor's cosine with itself is 1 but for rounding, which the free link would show.
    logits = link((rows @ rows.T).masked_fill(torch.eye(12, dtype=torch.bool), 1.0))
    positive = logits[torch.arange(12), torch.arange(12).roll(6)]
    expected = (logits.logsumexp(1) - positive).mean()
    found = with_self_pairs(a, b, link)
    assert found.item() == pytest.approx(expected.item(), rel=1e-7)
    assert found > taufree.nt_xent(a, b, link=link)
    gradients = [torch.autograd.grad(loss, a)[0] for loss in (found, expected)]
    assert torch.allclose(*gradients, rtol=1e-6, atol=1e-9)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"mask must be one of nt-xent, pygcl, got 'diagonal'\."):
        CiteSeerSettings(mask="diagonal")


def test_an_observation_of_some_anchors_leaves_out_the_pair_with_itself():
    a, b = torch.eye(5)[:4], torch.eye(5)[:4]
    seen = observe_views(a, b, LogOdds(), anchors=3)
    assert seen.positive.tolist() == [1, 1, 1]
    assert seen.negative.tolist() == [[0.0] * 6] * 3


def test_without_pyg_it_says_what_to_install():
    found = shell("run", "citeseer", before="sys.modules['torch_geometric'] = None")
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert found.stderr.strip().endswith('pip install "taufree[graph]"')


def test_a_missing_folder_and_a_batch_size_are_one_sentence(tmp_path):
    folder = re.escape(str(tmp_path / "planetoid" / "CiteSeer" / "raw"))
    with pytest.raises(BadInputError, match=rf"^No such folder: {folder}, which must hold [^\n]*\.$"):
        train(Run("citeseer", "free", 0, CiteSeerSettings(), data=tmp_path), tmp_path)
    found = invoke("run", "citeseer", "--batch-size", "64", "--out", tmp_path / "out", columns=160)
    assert found.stderr == (
        "taufree: the recipe citeseer has no setting batch_size; it has epochs, learning_rate, edges, "
        "columns, probe_epochs, mask.\n"
    )


@needs_data("planetoid/CiteSeer/raw")
def test_the_real_graph_is_what_the_paper_used():
    recipe = CiteSeer(CiteSeerSettings())
    recipe.load(DATA)
    graph = recipe.graph
    assert graph.features.shape == (3327, 3703)
    assert graph.edges.shape == (2, 9104)
    assert graph.labels.bincount().tolist() == [264, 590, 668, 701, 596, 508]
    sums = graph.features.sum(1)
    assert (sums == 0).sum() == 15
    assert torch.allclose(sums[sums > 0], torch.ones(()))


@needs_data("planetoid/CiteSeer/raw")
def test_the_quick_preset_on_the_real_graph(tmp_path):
    arguments = ["--preset", "quick", "--epochs", "1", "--links", "free,0.5", "--device", "cpu"]
    found = invoke("run", "citeseer", *arguments, "--data", DATA, "--out", tmp_path, columns=160)
    assert found.exit_code == 0, found.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {(line["link"], line["seed"]) for line in lines} == {
        (link, seed) for link in ("free", "0.5") for seed in (0, 1)
    }
    for line in lines:
        assert len(line["curves"]["loss"]) == 1
        assert line["curves"]["candidates"] == 2 * 3327 - 1
        # An epoch teaches little; the largest class has 21 % of the nodes.
        assert 21 < line["metrics"]["micro"] < 65
    assert "No verdict: a quick run" in found.stdout
    assert "free minus" not in found.stdout
    assert (tmp_path / "report.html").exists()
