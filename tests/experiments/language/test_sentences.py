import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from torch.nn.functional import cosine_similarity

from taufree import info_nce
from taufree.experiments.language.sentences import Sentences, SentencesSettings, read_stsb
from taufree.experiments.training.run import Run
from taufree.experiments.training.saved_model import read_model
from taufree.experiments.training.trainer import Training
from tests.support.breaking_off import assert_goes_on

PEOPLE = ["man", "woman", "boy", "girl", "nurse", "doctor", "dog", "cat"]


@pytest.fixture
def data(tmp_path):
    for name in ("snli", "stsb"):
        (tmp_path / name).mkdir()
    texts = {
        "s1": [f"The {one} is walking outside the house ." for one in PEOPLE],
        "s2": [f"A {one} walks ." for one in PEOPLE],
        "labels": ["entailment"] * len(PEOPLE),
    }
    for name, lines in texts.items():
        (tmp_path / "snli" / f"{name}.dev").write_text("\n".join(lines))
    rows = [
        f'"The {one}, outside","a {other} plays",{float(one == other) * 5}'
        for one in PEOPLE
        for other in PEOPLE
    ]
    for part in ("dev", "test"):
        (tmp_path / "stsb" / f"{part}.csv").write_text("\n".join(rows))
    return tmp_path


def begun(data, folder, link="free", **settings):
    settings = SentencesSettings(**{"epochs": 1, "batch_size": 8, "model": str(folder), **settings})
    recipe = Sentences(settings)
    recipe.load(data)
    return Training(Run("sentences", link, 0, settings), recipe)


def test_a_step_is_info_nce_of_mean_states_and_the_figure_is_spearmans(data, headless, tokenizer):
    training = begun(data, headless)  # no head is needed
    recipe, model = training.recipe, training.weights.eval()
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))

    def vector(text):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        return model.encoder(input_ids=ids).last_hidden_state[0].mean(0)

    with torch.no_grad():
        texts = tokenizer.batch_decode(batch[0], skip_special_tokens=True)
        vectors = torch.stack([vector(text) for text in texts])
        expected = info_nce(*vectors.chunk(2), link=training.link)
        assert recipe.step(model, batch, training.link).loss.item() == pytest.approx(
            expected.item(), rel=1e-4
        )
        rows = read_stsb(data / "stsb" / "dev.csv")
        cosines = [cosine_similarity(vector(a), vector(b), dim=0).item() for a, b, _ in rows]
        figure = 100 * spearmanr(cosines, [score for *_, score in rows]).statistic
        assert recipe.evaluate(model)["dev"] == pytest.approx(figure, abs=1e-3)


@pytest.mark.parametrize("link", ["free", "0.05"])
def test_training_brings_pairs_together(data, headless, link):
    training = begun(data, headless, link, epochs=20, learning_rate=1e-2)
    losses = [training.train_epoch() for _ in range(20)]
    assert losses[-1] < 0.3 * losses[0]


def test_a_damaged_benchmark_is_refused(data, headless):
    (data / "stsb" / "dev.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="must have rows of two sentences and a number"):
        begun(data, headless)
    (data / "stsb" / "dev.csv").unlink()
    with pytest.raises(ValueError, match=r"^No such file: .*, which must hold"):
        begun(data, headless)


def test_an_encoder_without_all_its_weights_is_refused(data, headless, tmp_path):
    folder = shutil.copytree(headless, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["wrapped.pooler"] = weights.pop("encoder.layer.0.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    missing = r"is without 1 of its weights, bert\.encoder\.layer\.0\.output\.dense\.weight among them\.$"
    with pytest.raises(ValueError, match=missing):
        begun(data, folder)


def test_an_empty_part_of_the_benchmark_is_refused(tmp_path):
    (tmp_path / "dev.csv").write_text("")
    with pytest.raises(
        ValueError, match=r"dev.csv must have rows of two sentences and a number, but is empty"
    ):
        read_stsb(tmp_path / "dev.csv")


def test_a_broken_off_run_goes_on_bit_for_bit(data, headless, tmp_path):
    assert_goes_on(lambda: begun(data, headless, "learnable", epochs=3, batch_size=4), tmp_path)


def test_a_saved_model_embeds_the_sentences_of_a_file(data, folder, tmp_path):
    training = begun(data, folder)
    training.train_epoch()
    training.save_model(tmp_path / "model", {})
    found = read_model(tmp_path / "model")
    texts = [f"The {one} is walking outside the house ." for one in PEOPLE]
    (tmp_path / "texts.txt").write_text("\n\n".join(texts))
    names, vectors = found.recipe.embed_new(found.model, tmp_path / "texts.txt", lambda done, total: None)
    assert names == texts
    tokens = training.recipe.tokens.take(torch.arange(0, 2 * len(PEOPLE), 2))  # the premises
    with torch.no_grad():
        expected = training.weights.eval()(tokens.ids, tokens.attention)
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    for content, sentence in ((b"", "but is empty"), (b"\xff", "must hold texts in UTF-8")):
        (tmp_path / "bad.txt").write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            found.recipe.embed_new(found.model, tmp_path / "bad.txt", lambda done, total: None)


@pytest.mark.parametrize("link", ["macl", "isogclr"])
def test_schemes_are_trained_with_both_directions_of_the_pairs_and_their_numbers(data, headless, link):
    training = begun(data, headless, link)
    recipe, model = training.recipe, training.weights.eval()
    batch = next(iter(recipe.batches(0, torch.Generator().manual_seed(0))))
    assert sorted(batch[2].tolist()) == list(range(len(PEOPLE)))
    with torch.no_grad():  # in which no scheme remembers anything
        found = recipe.step(model, batch, training.link).loss.item()
        views = model(*batch[:2]).chunk(2)
        needs = {"index": batch[2]} if training.link.needs else {}
        expected = training.link(*views, **needs).item()
    assert training.link.pairs
    assert found == pytest.approx(expected, rel=1e-5)
