import gzip

import pytest
import torch
from typer.testing import CliRunner

from taufree.cli import build
from taufree.experiments.language import pretrain as module
from taufree.experiments.language.pretrain import PretrainSettings, batches, pretrain, read_sentences
from taufree.experiments.language.tokens import load_masked_lm, tokenise

SETTINGS = PretrainSettings(epochs=3, tokens=256, learning_rate=3e-3)
PEOPLE = ("man", "woman", "nurse", "doctor", "boy", "girl")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "text"
    folder.mkdir(parents=True)
    lines = [
        f"The {one} was {how} to the {other} ."
        for one in PEOPLE
        for other in PEOPLE
        for how in ("kind", "rude")
    ]
    (folder / "a.txt").write_text("\n".join(lines[:40]) + "\n\n")
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n".join(lines[30:]))
    return tmp_path / "data"


def test_every_sentence_is_read_once(data, tmp_path):
    assert len(read_sentences(data)) == 72
    with pytest.raises(ValueError, match=r"must hold sentences in text/\*\.txt"):
        read_sentences(tmp_path / "nowhere")


def test_batches_hold_every_sentence_once_and_few_lengths(tokenizer):
    tokens = tokenise(tokenizer, ["man " * (1 + number % 40) for number in range(200)], length=64)
    groups = list(batches(tokens, 128, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(groups).tolist()) == list(range(200))
    for rows in groups:
        assert tokens.take(rows).ids.numel() <= 128
        assert len(set((-(-tokens.lengths[rows] // 16)).tolist())) == 1


def test_an_encoder_becomes_a_masked_language_model_that_predicts_better(data, headless, tmp_path):
    notes = []
    found = pretrain(str(headless), data, tmp_path / "out", SETTINGS, note=notes.append)
    assert found["after"] < found["before"] / 3
    assert "start at random" in notes[0]
    assert load_masked_lm(str(tmp_path / "out"))[1] == []
    assert not (tmp_path / "out" / "checkpoint").exists()
    weights = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert pretrain(str(headless), data, tmp_path / "out", SETTINGS, note=notes.append) == found
    assert "is not trained again, even if the data have changed" in notes[1]
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == weights
    with pytest.raises(ValueError, match="holds a model trained otherwise"):
        pretrain(str(headless), data, tmp_path / "out", PretrainSettings(epochs=1))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_interrupted_it_goes_on_to_the_same_end(data, headless, tmp_path, monkeypatch, precision):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    whole = pretrain(str(headless), data, tmp_path / "whole", SETTINGS, precision=precision)

    def stop(done, total):
        if done > total * 0.7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(str(headless), data, tmp_path / "parts", SETTINGS, precision=precision, watch=stop)
    assert (tmp_path / "parts" / "checkpoint" / "epoch-2").is_dir()
    with pytest.raises(ValueError, match="holds a model trained otherwise"):
        pretrain(str(headless), data, tmp_path / "parts", PretrainSettings(epochs=9), precision=precision)
    parts = pretrain(str(headless), data, tmp_path / "parts", SETTINGS, precision=precision)
    assert (parts["before"], parts["after"]) == (whole["before"], whole["after"])
    first, second = (load_masked_lm(str(tmp_path / name))[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_command_says_the_perplexities_and_refuses_in_a_sentence(data, headless, tmp_path):
    arguments = ["pretrain-mlm", str(headless), "--data", str(data), "--device", "cpu", "--tokens", "512"]
    found = CliRunner().invoke(build(), [*arguments, "--out", str(tmp_path / "out"), "--epochs", "1"])
    assert found.exit_code == 0, found.stderr
    assert "Perplexity on 7 held-out sentences: " in found.stdout
    found = CliRunner().invoke(build(), [*arguments, "--out", str(tmp_path / "out"), "--epochs", "0"])
    assert found.exit_code == 2
    assert "epochs must be at least 1, got 0." in found.stderr
    with pytest.raises(ValueError, match=r"learning_rate must be positive and finite, got -1\.0\.$"):
        PretrainSettings(learning_rate=-1.0)
    blocked = CliRunner().invoke(build(), [*arguments, "--out", str(data / "text" / "a.txt")])
    assert blocked.exit_code == 2
    assert "a.txt cannot be written to: File exists." in blocked.stderr
    (tmp_path / "out" / "pretraining.json").write_text("{")
    damaged = CliRunner().invoke(build(), [*arguments, "--out", str(tmp_path / "out")])
    assert damaged.exit_code == 2
    assert "pretraining.json is damaged (JSONDecodeError), remove it to start again." in damaged.stderr


def test_the_model_it_begins_with_is_not_replaced(data, headless):
    with pytest.raises(ValueError, match=r"^out must be another folder than the model's"):
        pretrain(str(headless), data, headless / ".", PretrainSettings())


def test_damaged_files_are_named(data, headless, tmp_path):
    folder = tmp_path / "out" / "checkpoint" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"cut off")
    with pytest.raises(ValueError, match=r"checkpoint is damaged \(SafetensorError\), remove it to start"):
        pretrain(str(headless), data, tmp_path / "out", SETTINGS)
    path = data / "text" / "b.txt.gz"
    for content in (path.read_bytes()[:-20], b"no gzip at all"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"b\.txt\.gz must be text in UTF-8, but cannot be read"):
            read_sentences(data)
