"""CLIP: the step, frozen features that are computed once, resuming, bad images, and the command line."""

import json

import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy, normalize

from taufree import sigmoid_nce
from taufree.experiments.image_text import clip as clip_module
from taufree.experiments.image_text.clip import CLIP, TEST, CLIPSettings
from taufree.experiments.image_text.frozen import digest_of
from taufree.experiments.recipe import choose_settings
from taufree.experiments.training.run import Run
from taufree.experiments.training.saved_model import read_model
from taufree.experiments.training.trainer import Training
from tests.support.breaking_off import assert_goes_on
from tests.support.command import invoke
from tests.support.paths import DATA, ROOT, needs_data

WEIGHTS = DATA / "weights" / "resnet50_v1_imagenet.safetensors"
TINY = {
    "epochs": 3,
    "batch_size": 8,
    "crop": 32,
    "projection": 16,
    "backbone": "resnet18",
    "weights": "random",
}


@pytest.fixture
def begun(data, encoder):
    def begin(link="0.05", **changes):
        settings = CLIPSettings(**{**TINY, "model": str(encoder), **changes})
        recipe = CLIP(settings)
        recipe.load(data)
        return Training(Run("clip", link, 0, settings, data=data), recipe)

    return begin


def test_other_weights_of_a_tower_in_the_same_place_are_another_run(data, tmp_path):
    weights, model = tmp_path / "weights.pt", tmp_path / "model"
    model.mkdir()
    settings = CLIPSettings(**{**TINY, "weights": str(weights), "model": str(model)})
    found = set()
    for path in (weights, model / "model.safetensors", weights):
        for content in (b"one", b"other"):
            weights.touch()
            path.write_bytes(content)
            found.add(Run("clip", "0.05", 0, settings, data=data).key)
    assert len(found) == 5  # the last was there before


@pytest.mark.parametrize("frozen", [True, False])
def test_a_step_is_symmetric_info_nce_of_images_and_their_own_captions(begun, frozen):
    training = begun(frozen=frozen)
    recipe, model = training.recipe, training.weights.eval()
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    ids, images, *texts = batch
    assert len(set(ids.tolist())) == 8
    with torch.no_grad():
        if frozen:
            own = recipe._features[1].view(40, 2, -1)[ids]
            assert all(
                any(torch.equal(text, one) for one in of) for text, of in zip(texts[0], own, strict=True)
            )
            image, text = model(images, texts)
        else:
            box, flip, *texts = texts
            image, text = model(recipe._augment(recipe.images.lines[ids], box, flip), texts)
        logits = normalize(image, dim=-1) @ normalize(text, dim=-1).T / 0.05
        target = torch.arange(8)
        expected = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
        found = recipe.step(model, batch, training.link)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert found.observation.candidates == 8


def test_the_sigmoid_loss_with_the_prior_and_with_a_bias_that_is_learned(begun):
    losses, batch = [], None
    for name in ("sigmoid", "sigmoid-bias"):
        training = begun("learnable", frozen=True, loss=name)
        recipe, model = training.recipe, training.model
        batch = batch or next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
        loss = recipe.step(model.eval(), batch, training.link).loss
        losses.append(loss.item())
        loss.backward()
    image, text = model(batch[1], batch[2:])
    assert losses[0] == pytest.approx(sigmoid_nce(image, text, link=training.link).item(), rel=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # it begins at the prior
    assert model.bias.grad != 0
    begun("learnable", frozen=True, loss="sigmoid-bias").train_epoch()


def test_captions_of_one_image_are_no_negatives_of_each_other(begun):
    training = begun(frozen=True)
    recipe, model = training.recipe, training.weights.eval()
    ids, images, texts = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))

    def loss(ids):
        return recipe.step(model, (ids, images, texts), training.link).loss.item()

    assert loss(torch.zeros_like(ids)) == 0
    assert loss(ids) > 1


def test_a_temperature_for_each_image_and_for_each_text(begun):
    training = begun("isogclr", frozen=True)
    training.train_epoch()
    seen = training.link.log_u.isfinite()
    assert seen.shape == (2, training.recipe.images.training)
    assert seen.sum(1).tolist() == [training.recipe.steps * 8] * 2


@pytest.mark.parametrize("link", ["macl", "adap-tau", "dual"])
def test_a_scheme_is_trained_on_pairs_and_their_ids(begun, link):
    training = begun(link, frozen=True)
    recipe, model = training.recipe, training.weights.eval()
    ids, images, texts = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    with torch.no_grad():
        found = recipe.step(model, (ids, images, texts), training.link)
        assert found.loss.item() == training.link(*model(images, [texts]), ids=ids).item()
        assert recipe.step(model, (ids // 10, images, texts), training.link).loss.item() != found.loss.item()
    assert training.link.pairs
    training.train_epoch()


def test_every_caption_is_drawn_and_every_image_once(begun):
    recipe = begun(frozen=True).recipe
    drawn = [list(recipe.batches(epoch, torch.Generator().manual_seed(epoch))) for epoch in range(12)]
    assert {tuple(sorted(torch.cat([batch[0] for batch in epoch]).tolist())) for epoch in drawn} == {
        tuple(range(24))
    }
    seen = torch.cat([batch[2] for epoch in drawn for batch in epoch])
    assert len(seen.unique(dim=0)) == 48


@pytest.mark.parametrize(
    ("frozen", "link"), [(True, "learnable"), (False, "learnable"), (True, "calibrated")]
)
def test_broken_off_it_goes_on_as_if_it_was_not(begun, tmp_path, frozen, link):
    assert_goes_on(lambda: begun(link, frozen=frozen, dropout=0.1), tmp_path)


def test_a_learnable_temperature_and_both_towers_learn(begun):
    training = begun("learnable")
    before = {name: value.clone() for name, value in training.weights.named_parameters()}
    tau = training.curves["temperature_at_zero"]
    for _ in range(2):
        training.train_epoch()
    assert tau[1] != tau[0]
    still = [name for name, value in training.weights.named_parameters() if torch.equal(value, before[name])]
    assert still == []


def test_heads_alone_learn_captions_from_frozen_features(begun):
    training = begun(frozen=True, epochs=30, learning_rate=1e-2)
    assert {name.split("_")[0] for name, _ in training.weights.named_parameters()} == {"image", "text"}
    losses = [training.train_epoch() for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
    found = training.evaluate()
    assert list(found) == list(CLIP.metrics)
    assert found["dev_rsum"] == max(training.curves["dev_rsum"])


def test_frozen_features_are_computed_once_and_are_the_towers_own(begun, monkeypatch):
    calls = []

    def count(name):
        original = getattr(clip_module, name)

        def counted(*arguments):
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(clip_module, name, counted)

    count("image_features")
    count("text_features")
    first = begun(frozen=True).recipe
    assert calls == ["image_features", "text_features"]
    assert any("computed once" in note for note in first.notes)
    again = begun("free", frozen=True, epochs=1, batch_size=4).recipe
    assert len(calls) == 2
    assert again.notes == []
    assert all(torch.equal(a, b) for a, b in zip(first._features, again._features, strict=True))
    one = first.captions.tokens.take(torch.tensor([17]))
    with torch.no_grad():
        assert torch.allclose(first._text_tower(one.ids, one.attention)[0], first._features[1][17], atol=1e-5)
    begun(frozen=True, crop=40)
    assert calls[2:] == ["image_features"]  # the captions are the same


def test_the_digest_of_features_changes_with_each_weight():
    network = torch.nn.Linear(2, 2)
    before = digest_of(network, "resnet18")
    assert digest_of(network, "resnet18") == before != digest_of(network, "resnet34")
    with torch.no_grad():
        network.bias[1] += 1e-3
    assert digest_of(network, "resnet18") != before


def test_an_image_that_cannot_be_read_is_left_out_with_its_captions(begun, data):
    path = data / "images" / "003.jpg"
    path.write_bytes(path.read_bytes()[:200])
    recipe = begun(frozen=True).recipe
    assert "1 of 40 images cannot be read and are left out: images/003.jpg." in recipe.notes
    assert len(recipe.captions.texts) == 78
    assert recipe.captions.texts[6] == "A house with 0 0 4 people ."
    assert recipe.images.training == 23


def test_a_part_that_cannot_be_read_and_a_batch_too_large_are_refused(begun, data):
    with pytest.raises(ValueError, match=r"^batch_size must be at most 24, .* got 25\.$"):
        begun(batch_size=25)
    for name in (data / "dev.txt").read_text().split():
        (data / "images" / name).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"^none of the images of the part dev can be read\.$"):
        begun()


def test_the_presets_are_what_the_documentation_says():
    full, seeds = choose_settings(CLIP, "full")
    assert (full.frozen, full.epochs, full.batch_size, full.crop, seeds) == (False, 20, 256, 224, 3)
    frozen, seeds = choose_settings(CLIP, "frozen")
    assert (frozen.frozen, frozen.epochs, frozen.batch_size, frozen.dropout, seeds) == (True, 30, 256, 0.2, 5)
    quick, seeds = choose_settings(CLIP, "quick")
    assert (quick.frozen, quick.subset, quick.epochs, quick.crop, seeds) == (True, 256, 5, 64, 1)
    page = " ".join((ROOT / "docs" / "results" / "image-text.md").read_text().split())
    for words in ("20 epochs", "30 epochs", "256 images of each part"):
        assert words in page


def test_the_command_line_trains_resumes_and_shows_what_was_found(data, encoder, tmp_path):
    names = {**TINY, "epochs": 2, "model": encoder, "frozen": "true"}
    options = [word for name, value in names.items() for word in ("--set", f"{name}={value}")]
    command = ("run", "clip", "--data", data, "--seeds", 1, "--out", tmp_path / "out", *options)
    result = invoke(*command, "--links", "free,0.05")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["link"] for line in lines] == ["free", "0.05"]
    assert list(lines[0]["metrics"]) == list(CLIP.metrics)
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'id="found-images-1"' in page
    assert 'id="found-captions-1"' in page
    assert "A house with 0 3 2 people" in page
    (data / "captions.tsv").unlink()
    result = invoke(*command, "--links", "free")
    assert result.exit_code == 2
    assert "must hold captions.tsv, captions.csv or captions.txt" in " ".join(result.output.split())


@pytest.mark.slow
@needs_data("flickr8k", f"weights/{WEIGHTS.name}")
def test_photographs_find_their_captions_from_frozen_features(encoder):
    settings = CLIPSettings(
        frozen=True, subset=128, crop=64, epochs=20, batch_size=32, backbone="resnet50-v1",
        weights=str(WEIGHTS), model=str(encoder),
    )  # fmt: skip
    recipe = CLIP(settings)
    recipe.load(DATA / "flickr8k")
    training = Training(Run("clip", "0.05", 0, settings, data=DATA / "flickr8k"), recipe)
    for _ in range(20):
        training.train_epoch()
    assert len(recipe.captions.texts) == 5 * 3 * 128
    chance = sum(100 * k / 128 for k in (1, 5, 10)) * 2
    assert training.evaluate()["rsum"] > 1.5 * chance
    shown = recipe.keep(training.weights)
    assert shown["found_images"].shape == (10, 5, 64, 64, 3)
    assert Image.fromarray(shown["image_queries"][0, 0]).getbbox() is not None


@pytest.mark.parametrize("frozen", [True, False])
def test_saved_towers_give_images_and_texts_the_vectors_of_the_evaluation(begun, data, tmp_path, frozen):
    training = begun(frozen=frozen)
    images, texts, _ = (part.detach() for part in training.recipe._vectors(training.model.eval(), TEST))
    training.save_model(tmp_path / "model", {})
    found = read_model(tmp_path / "model")
    names, new = found.recipe.embed_new(found.model, data / "images", lambda done, total: None)
    tested = (data / "test.txt").read_text().split()
    rows = [names.index(name) for name in tested]
    torch.testing.assert_close(new[rows], images, rtol=1e-4, atol=1e-5)
    lines = (data / "captions.tsv").read_text().splitlines()
    captions = [line.split("\t")[1] for line in lines if line.partition("#")[0] in tested]
    (tmp_path / "texts.txt").write_text("\n".join(captions))
    same, vectors = found.recipe.embed_new(found.model, tmp_path / "texts.txt", lambda done, total: None)
    assert same == captions
    torch.testing.assert_close(vectors, texts, rtol=1e-4, atol=1e-5)
