"""DCRec, the recipe: its step, its data, its best epoch, and the command line."""

import itertools
import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize
from typer.testing import CliRunner

import taufree
from taufree import LogOdds, Temperature
from taufree.cli import build
from taufree.experiments.recommendation.dcrec import DCRec, DCRecSettings
from taufree.experiments.recommendation.interactions import COLUMNS
from taufree.experiments.recommendation.network import contrastive, divergence
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train
from taufree.util.errors import BadInputError
from tests.support.breaking_off import assert_goes_on
from tests.support.paths import DATA, needs_data
from tests.support.shop import assert_seeded_dropout, begun


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_it_trains_and_is_judged_in_other_precisions(shop, precision):
    training = begun(shop, precision=precision)
    training.train_epoch()
    metrics = training.evaluate()
    assert metrics["full_hr10"] >= 0
    assert [metrics["choice"]] == training.curves["choice"]  # a rounded one would choose another epoch


def test_a_step_is_the_sum_of_its_three_terms(shop):
    training = begun(shop, dropout=0.0)
    recipe, model = training.recipe, training.weights.train()
    batch = samples, expected, _ = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    out = model(samples)
    row, end = model.train_samples[:, samples]
    items = recipe.data.train.items[row]
    assert torch.equal(out.last, items[torch.arange(64), end - 1])
    assert torch.equal(out.targets, items[torch.arange(64), end])
    terms = (
        cross_entropy(out.wanted @ model.vectors.T, out.targets),
        0.1 * contrastive(out, out.last, LogOdds()),
        0.01 * divergence(out.conformity, expected),
    )
    assert recipe.step(model, batch, LogOdds()).loss.item() == pytest.approx(sum(terms).item(), rel=1e-5)
    weight = out.conformity
    assert weight[end > 1].min() >= 0
    assert (weight[end == 1] == 0.5).all()


@pytest.mark.parametrize("ids", [True, False])
def test_the_contrastive_term_is_that_of_the_public_code_but_for_ids(shop, ids):
    training = begun(shop, dropout=0.0)
    out = training.weights.double().train()(torch.arange(90))
    units = [normalize(x.detach(), dim=1) for x in (out.sequence, out.adjacent, out.similar)]
    weight, top = out.conformity.tolist(), out.conformity.max().item()
    total = 0.0
    for i in range(90):
        others = [j for j in range(90) if j != i and not (ids and out.last[i] == out.last[j])]
        assert (len(others) == 89) or ids
        terms = []
        for query, key in itertools.pairwise(units):
            pull = {j: math.exp(float(query[i] @ key[j]) / 0.8) for j in (i, *others)}
            terms.append(-math.log(pull[i] / sum(pull.values())))
        total += weight[i] * terms[0] + (top - weight[i]) * terms[1]
    found = contrastive(out, out.last if ids else None, Temperature(0.8))
    assert found.item() == pytest.approx(total / 90, rel=1e-9)


def test_every_step_has_its_own_dropout_and_the_seed_says_which(shop):
    training = begun(shop, dropout=0.5)
    assert_seeded_dropout(training)


def test_the_same_last_item_is_a_false_negative_unless_ids_tell(shop):
    training = begun(shop, dropout=0.0)
    model = training.weights.train()
    out = model(torch.arange(128))
    assert len(out.last.unique()) < 128
    twins = (out.last[:, None] == out.last).fill_diagonal_(False).any(1)
    with_ids, without = (
        taufree.info_nce(out.sequence, out.adjacent, ids=ids, reduction="none") for ids in (out.last, None)
    )
    assert (without[twins] > with_ids[twins]).all()
    assert torch.allclose(without[~twins], with_ids[~twins])
    losses = {}
    for ids in (True, False):
        one = begun(shop, ids=ids)
        losses[ids] = one.train_epoch()
    assert losses[False] > losses[True]


def test_a_contrast_of_0_is_a_control_that_no_link_changes(shop):
    free, tau = begun(shop, "free", contrast=0.0), begun(shop, "0.1", contrast=0.0)
    assert free.train_epoch() == tau.train_epoch()
    assert begun(shop).train_epoch() != begun(shop, "0.1").train_epoch()


def test_it_learns_the_ring_and_the_best_epoch_is_the_one_that_is_tested(shop):
    training = begun(shop, epochs=12, batch_size=64, learning_rate=0.02, dropout=0.1)
    before = training.recipe._figures(training.weights.eval(), "test")["hr5"]
    seen = []
    for _ in range(12):
        training.train_epoch()
        weights = [weight.clone() for weight in training.weights.parameters()]
        seen.append((training.curves["choice"][-1], weights))
    figure, best = max(seen, key=lambda pair: pair[0])
    metrics = training.evaluate()
    assert metrics["choice"] == figure
    assert all(map(torch.equal, best, training.weights.parameters()))
    assert metrics["hr5"] > before + 30
    assert metrics["full_hr5"] > 50


def test_training_stops_when_patience_is_over(shop, tmp_path):
    chosen = DCRecSettings(dataset=str(shop), epochs=40, batch_size=64, patience=2, learning_rate=0.1)
    line = train(Run("dcrec", "0.5", 0, chosen), tmp_path / "checkpoints")
    choice = line["curves"]["choice"]
    assert len(choice) < 40
    assert choice.index(max(choice)) == len(choice) - 3
    assert line["metrics"]["choice"] == max(choice)
    assert "positive_histogram" in line["curves"]


def test_a_broken_off_run_goes_on_bit_for_bit_with_its_best_epoch(shop, tmp_path):
    assert_goes_on(lambda: begun(shop, "learnable", epochs=4, learning_rate=0.05), tmp_path, epochs=4)


def test_data_are_prepared_once_and_again_when_they_change(shop, tmp_path):
    for path in shop.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    first, again = begun(tmp_path).recipe, begun(tmp_path, seed=1).recipe
    assert again.data is first.data
    with (tmp_path / "shop.test.inter").open("a") as file:
        file.write("x\t1 2 3\t4\n")
    assert len(begun(tmp_path).recipe.data.test.lengths) == 121


def test_a_data_set_that_is_made_again_is_trained_on_again_if_it_is_another(shop, tmp_path):
    def run():
        return Run("dcrec", "free", 0, DCRecSettings(dataset=str(tmp_path)))

    for path in shop.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    before = run()
    key = before.key
    (tmp_path / "shop.test.inter").write_text((shop / "shop.test.inter").read_text())
    assert run().key == key
    with (tmp_path / "shop.test.inter").open("a") as file:
        file.write("x\t1 2 3\t4\n")
    assert run().key != key
    assert before.key == key  # of a run that had begun
    (tmp_path / "gone.inter").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInputError, match=r"gone\.inter"):
        run().key  # noqa: B018


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ("nowhere", r"^No such folder: nowhere; dataset must be beauty, reddit or a folder .*\.$"),
        ("beauty", "the data set beauty needs --data FOLDER with dcrec/beauty in it"),
    ],
)
def test_data_that_are_not_there_are_named(dataset, sentence):
    with pytest.raises(ValueError, match=sentence):
        begun(dataset)


def test_the_command_knows_the_settings(tmp_path):
    chosen = ["--set", "ids=false", "--set", "dataset=x", "--set", "protocol=lucky"]
    found = CliRunner().invoke(build(), ["run", "dcrec", *chosen, "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert found.stderr == "taufree: protocol must be one of validation, public, got 'lucky'.\n"


def test_a_batch_that_is_too_large_is_refused(shop):
    with pytest.raises(ValueError, match=r"batch_size must be at most \d+, the number of histories"):
        begun(shop, batch_size=5000)


def test_users_with_nothing_to_train_on_are_refused(tmp_path):
    rows = {"train": "{}\t{}\t{}", "test": "{0}\t{1} {2}\t{3}"}
    for part, text in rows.items():
        lines = [text.format(user, user % 5, (user + 1) % 5, (user + 2) % 5) for user in range(9)]
        (tmp_path / f"few.{part}.inter").write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n")
    with pytest.raises(ValueError, match=r"must have users with two items .* got 0 histories to train on\.$"):
        begun(tmp_path)


@needs_data("dcrec/beauty")
def test_the_quick_preset_on_beauty(tmp_path):
    arguments = [
        "--preset",
        "quick",
        "--epochs",
        "1",
        "--links",
        "free,0.5",
        "--device",
        "cpu",
        "--data",
        str(DATA),
    ]
    found = CliRunner().invoke(build(), ["run", "dcrec", *arguments, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.stderr
    assert "validation items never occur in the histories to train on" in found.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["link"] for line in lines} == {"free", "0.5"}
    for line in lines:
        assert set(line["metrics"]) == set(DCRec.metrics)
        assert 0 <= line["metrics"]["full_hr10"] <= line["metrics"]["hr10"] <= 100
    assert "No verdict: a quick run" in found.stdout
    assert "free minus" not in found.stdout
    assert (tmp_path / "report.html").exists()
