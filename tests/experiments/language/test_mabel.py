"""MABEL: its loss against one written down by hand, its settings, and whole runs on real sentences."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, normalize
from typer.testing import CliRunner

from taufree import LogOdds, Temperature
from taufree.cli import build
from taufree.experiments.language.mabel import Mabel, MabelSettings, alignment
from taufree.experiments.language.sentences import SentencesSettings
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training
from tests.support.breaking_off import assert_goes_on
from tests.support.paths import DATA, needs_data


@pytest.fixture
def data(tmp_path):
    """A few pairs, contexts and sentences of our own."""
    for name in ("snli", "bias"):
        (tmp_path / name).mkdir()
    people = ["man", "woman", "boy", "girl"]
    premises = [f"The {person} walks his dog with {letter} ." for person in people for letter in "abcd"]
    hypotheses = [f"A {person} is outside ." for person in people for _ in range(4)]
    for name, lines in (("s1", premises), ("s2", hypotheses), ("labels", ["entailment"] * 16)):
        (tmp_path / "snli" / f"{name}.dev").write_text("\n".join(lines))
    context = {
        "type": "intrasentence",
        "target": "nurse",
        "bias_type": "gender",
        "context": "The nurse is BLANK",
    }
    fillings = {"stereotype": "The nurse is kind", "anti-stereotype": "The nurse is rude"}
    row = json.dumps({**context, **fillings, "unrelated": "The nurse is table"})
    (tmp_path / "bias" / "stereoset.jsonl").write_text(row)
    head = "sent_more,sent_less,stereo_antistereo,bias_type\n"
    pair = "The man walks,The woman walks,stereo,gender\n"
    (tmp_path / "bias" / "crows_pairs_anonymized.csv").write_text(head + pair)
    return tmp_path


def begun(data, folder, link="free", precision="32-true", **settings):
    settings = MabelSettings(**{"epochs": 2, "batch_size": 4, "model": str(folder), **settings})
    recipe = Mabel(settings)
    recipe.load(data)
    return Training(Run("mabel", link, 0, settings, precision), recipe)


@pytest.mark.parametrize(
    ("link", "score"), [("free", lambda c: 2 * (c / 1.0001).atanh()), ("0.05", lambda c: c / 0.05)]
)
@pytest.mark.parametrize("aligned", ["same", "0.05"])
def test_a_step_is_the_three_losses_written_down(data, folder, link, score, aligned):
    training = begun(data, folder, link, alignment=aligned)
    recipe, model = training.recipe, training.weights.eval()
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    ids, attention, masked, positions, targets = batch
    step = recipe.step(model, batch, training.link)

    states = model.language_model.base_model(input_ids=ids, attention_mask=attention).last_hidden_state[:, 0]
    p, h, other_p, other_h = normalize(model.head(states).double(), dim=-1).chunk(4)
    scores = score(torch.cat([p, other_p]) @ torch.cat([h, other_h]).T)
    contrastive = cross_entropy(scores, torch.arange(8))
    alike = score if aligned == "same" else lambda c: c / 0.05
    difference = (alike(p @ h.T) - alike(other_p @ other_h.T)).square().sum(1).mean()
    logits = model.language_model(input_ids=masked, attention_mask=attention).logits.flatten(0, 1)[positions]
    expected = contrastive + 0.05 * difference + 0.1 * cross_entropy(logits, targets)
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert step.observation.candidates == 8


def test_another_model_in_the_same_folder_is_another_run(data, folder, tmp_path):
    model = shutil.copytree(folder, tmp_path / "model")
    found = set()
    for recipe, settings in (("mabel", MabelSettings), ("sentences", SentencesSettings)):
        for _ in range(2):
            run = Run(recipe, "free", 0, settings(model=str(model)), data=data)
            found.add(run.key)
            assert not run.tells_data_apart
            weights = load_file(model / "model.safetensors")
            next(iter(weights.values())).add_(1)
            save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert len(found) == 4
    assert "content" not in Run("mabel", "free", 0, MabelSettings(), data=data).recorded_settings


def test_a_batch_holds_pairs_and_their_swapped_copies(data, folder, tokenizer):
    recipe = begun(data, folder).recipe
    batches = list(recipe.batches(0, torch.Generator().manual_seed(0)))
    assert len(batches) == 4
    seen = set()
    for ids, *_ in batches:
        premises, hypotheses, others, _ = (
            tokenizer.batch_decode(part, skip_special_tokens=True) for part in ids.chunk(4)
        )
        for premise, hypothesis, other in zip(premises, hypotheses, others, strict=True):
            person = premise.split()[1]
            assert person in hypothesis
            assert other.split()[1] == {"man": "woman", "woman": "man", "boy": "girl", "girl": "boy"}[person]
            assert (" his " in premise) == (" her " in other)
            seen.add(premise)
    assert len(seen) == 16


def test_near_cosine_0_the_alignment_term_is_a_hundred_times_smaller_without_temperature():
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(64, 4096, generator=draw)  # cosines near 0
    ratio = alignment(vectors, Temperature(0.05)) / alignment(vectors, LogOdds())
    assert ratio.item() == pytest.approx(100, rel=0.01)
    assert alignment(vectors[:32].repeat(2, 1), LogOdds()) == 0


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("link", ["free", "0.05", "learnable"])
def test_training_stays_finite_and_gives_every_figure(data, folder, link, precision):
    training = begun(data, folder, link, precision, learning_rate=1e-3)
    before = [weight.clone() for weight in training.weights.parameters()]
    assert all(torch.tensor(training.train_epoch()).isfinite() for _ in range(2))
    assert any(not torch.equal(a, b) for a, b in zip(before, training.weights.parameters(), strict=True))
    assert all(weight.isfinite().all() for weight in training.weights.parameters())
    metrics = training.evaluate()
    assert set(metrics) == set(Mabel.metrics)
    assert all(0 <= value <= 100 for value in metrics.values())
    assert training.curves["ss"][-1] in (0, 100)  # one context
    terms = [training.curves[name] for name in ("contrastive", "aligning", "modelling")]
    for loss, contrastive, aligning, modelling in zip(training.curves["loss"], *terms, strict=True):
        assert loss == pytest.approx(contrastive + 0.05 * aligning + 0.1 * modelling, rel=1e-3)
    assert metrics["balance"] == 0


def test_gradients_are_cut_to_length_1(data, folder):
    training = begun(data, folder, "0.05")
    lengths = []
    optimizer = training.optimizer.optimizer
    optimizer.register_step_pre_hook(
        lambda *_: lengths.append(
            torch.stack([w.grad.norm() for w in training.weights.parameters() if w.grad is not None]).norm()
        )
    )
    training.train_epoch()
    assert lengths
    assert all(length <= 1.0001 for length in lengths)


def test_what_cannot_be_trained_is_refused_in_a_sentence(data, folder, headless):
    for wrong in ("cold", "learnable", "calibrated", "-1", "0.050", "0.05,0.1"):
        with pytest.raises(ValueError, match="alignment must be same, free or a temperature"):
            MabelSettings(alignment=wrong)
    with pytest.raises(ValueError, match="batch_size must be at most 16"):
        begun(data, folder, batch_size=17)
    with pytest.raises(ValueError, match=r"whole masked language model, but .* pretrain-mlm adapts it"):
        begun(data, headless)
    with pytest.raises(ValueError, match="need --data FOLDER with snli or mnli"):
        begun(None, folder)


@needs_data("snli", "bias")
def test_the_quick_preset_on_real_sentences(folder, tmp_path):
    arguments = [
        "mabel",
        "--preset",
        "quick",
        "--links",
        "free,0.05",
        "--set",
        "alignment=0.05",
        "--device",
        "cpu",
    ]
    places = ["--set", f"model={folder}", "--data", str(DATA), "--out", str(tmp_path)]
    found = CliRunner().invoke(build(), ["run", *arguments, *places])
    assert found.exit_code == 0, found.stderr
    assert "20 of 4582 gendered pairs are left out" in found.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["link"] for line in lines} == {"free", "0.05"}
    for line in lines:
        assert line["settings"]["alignment"] == "0.05"
        assert line["curves"]["candidates"] == 32
        assert 0 <= line["curves"]["crows"][0] <= 100
    assert "No verdict: a quick run" in found.stdout
    assert "free minus" not in found.stdout
    assert (tmp_path / "report.html").exists()


@needs_data("snli", "bias")
def test_the_command_bias_writes_an_answer_for_every_example(folder, tmp_path):
    (tmp_path / "bias").mkdir()
    for name, kept in (("stereoset.jsonl", slice(300)), ("crows_pairs_anonymized.csv", slice(100))):
        lines = (DATA / "bias" / name).read_text(encoding="utf-8").splitlines()[kept]
        (tmp_path / "bias" / name).write_text("\n".join(lines), encoding="utf-8")
    found = CliRunner().invoke(
        build(), ["bias", str(folder), "--data", str(tmp_path), "--out", str(tmp_path), "--device", "cpu"]
    )
    assert found.exit_code == 0, found.stderr
    rows = [json.loads(line) for line in (tmp_path / "stereoset.jsonl").read_text().splitlines()]
    assert f"StereoSet, all ({len(rows)} contexts): LM " in found.stdout
    assert set(rows[0]["scores"]) == {"stereotype", "anti-stereotype", "unrelated"}
    pairs = (tmp_path / "crows.jsonl").read_text().splitlines()
    assert 90 < len(pairs) < 100
    assert f"CrowS-Pairs, all ({len(pairs)} pairs): " in found.stdout


def test_the_command_bias_counts_the_pairs_that_it_cannot_compare(data, folder):
    path = data / "bias" / "crows_pairs_anonymized.csv"
    head, pair = path.read_text().splitlines()
    for pairs, kept in (([pair, "The dog,The young dog,stereo,age"], 1), (["The dog,The dog,stereo,age"], 0)):
        path.write_text("\n".join([head, *pairs]))
        found = CliRunner().invoke(build(), ["bias", str(folder), "--data", str(data), "--out", str(data)])
        assert found.exit_code == 0, found.output
        assert ("CrowS-Pairs, all (1 pairs)" in found.stdout) == kept
        assert f"1 of {len(pairs)} pairs of CrowS-Pairs are left out" in found.stdout


def test_the_command_bias_refuses_in_a_sentence(headless, data, tmp_path):
    for model, sentence in ((headless, "whole masked language model"), (tmp_path, "cannot be loaded")):
        found = CliRunner().invoke(build(), ["bias", str(model), "--data", str(data), "--out", str(tmp_path)])
        assert found.exit_code == 2
        assert sentence in found.stderr


def test_a_broken_off_run_goes_on_bit_for_bit(data, folder, tmp_path):
    assert_goes_on(lambda: begun(data, folder, "calibrated", epochs=3, batch_size=4), tmp_path)
