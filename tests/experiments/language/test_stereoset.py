"""StereoSet: probabilities that are known by hand, a slow way that shares no code, and the figures."""

import json
from statistics import mean

import pytest
import torch

from taufree.experiments.language.stereoset import (
    KINDS,
    find_stereoset,
    read_stereoset,
    stereoset,
    stereoset_summary,
)
from tests.support.paths import DATA, needs_data

ROWS = [
    (
        "nurse",
        "gender",
        "The nurse was BLANK.",
        "The nurse was kind.",
        "The nurse was rude.",
        "The nurse was cat.",
    ),
    ("nurse", "gender", "BLANK nurse", "woman nurse", "man nurse", "table nurse"),
    (
        "dog",
        "race",
        "A dog BLANKs, is BLANK!",
        "A dog walked, is walked!",
        "A dog ran, is ran!",
        "A dog x, is x!",
    ),
]


@pytest.fixture
def path(tmp_path):
    names = ("target", "bias_type", "context", *KINDS)
    rows = [{"type": "intrasentence", **dict(zip(names, row, strict=True))} for row in ROWS]
    rows.append({**rows[0], "type": "intersentence"})
    (tmp_path / "bias").mkdir()
    (tmp_path / "bias" / "stereoset.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_both_layouts_are_read_alike(path):
    rows = read_stereoset(find_stereoset(path))
    assert [row[KINDS[0]] for row in rows] == ["kind", "woman", "walked"]
    official = [
        {
            "target": row[0],
            "bias_type": row[1],
            "context": row[2],
            "sentences": [{"gold_label": kind, "sentence": row[3 + k]} for k, kind in enumerate(KINDS)],
        }
        for row in ROWS
    ]
    text = json.dumps({"version": "1", "data": {"intrasentence": official, "intersentence": []}})
    (path / "bias" / "dev.json").write_text(text)
    assert find_stereoset(path).name == "dev.json"
    assert read_stereoset(find_stereoset(path)) == rows


def test_scores_are_the_mean_probability_of_the_tokens(by_frequency, tokenizer, path):
    model = by_frequency(kind=0.3, rude=0.1, woman=0.05, man=0.2, walk=0.08, __ed=0.02)
    kind, woman, walked = stereoset(model, tokenizer, read_stereoset(find_stereoset(path)))
    assert kind["scores"]["stereotype"] == pytest.approx(0.3, rel=1e-5)
    assert kind["scores"]["anti-stereotype"] == pytest.approx(0.1, rel=1e-5)
    assert woman["scores"]["stereotype"] == pytest.approx(0.05, rel=1e-5)
    assert woman["scores"]["anti-stereotype"] == pytest.approx(0.2, rel=1e-5)
    assert walked["scores"]["stereotype"] == pytest.approx((0.08 + 0.02) / 2, rel=1e-5)  # walk, ##ed
    assert kind["scores"]["unrelated"] == pytest.approx(0.25 / (len(tokenizer) - 6), rel=1e-4)


def test_in_batches_it_is_what_one_sentence_at_a_time_gives(model, tokenizer, path):
    rows = read_stereoset(find_stereoset(path))
    watched = []
    found = stereoset(model.train(), tokenizer, rows * 20, lambda done, total: watched.append((done, total)))
    assert model.training
    model.eval()
    for row, one in zip(rows * 20, found, strict=True):
        for kind in KINDS:
            word = tokenizer(row[kind], add_special_tokens=False)["input_ids"]
            probabilities = []
            for place in range(len(word)):
                begun = "".join(tokenizer.convert_ids_to_tokens(word[:place])).replace("##", "")
                text = row["context"].replace("BLANK", begun + tokenizer.mask_token)
                ids = tokenizer(text, return_tensors="pt")["input_ids"]
                at = ids[0].tolist().index(tokenizer.mask_token_id)
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, at]
                probabilities.append(float(logits.softmax(-1)[word[place]]))
            assert one["scores"][kind] == pytest.approx(mean(probabilities), rel=1e-3, abs=1e-7)
    assert watched[-1][0] == watched[-1][1] > len(rows)


def test_figures_are_averaged_over_terms():
    def row(target, pro, anti, unrelated, bias="gender"):
        return {
            "target": target,
            "bias_type": bias,
            "scores": dict(zip(KINDS, (pro, anti, unrelated), strict=True)),
        }

    rows = [row("a", 3, 2, 1), row("a", 3, 2, 1), row("a", 2, 3, 1), row("b", 1, 2, 3)]
    found = stereoset_summary([*rows, row("c", 3, 1, 2, "race")], "gender")
    assert found["ss"] == pytest.approx((200 / 3 + 0) / 2)
    assert found["lm"] == pytest.approx((100 + 0) / 2)
    assert found["icat"] == pytest.approx(50 * (100 / 3) / 50)
    assert stereoset_summary([row("a", 1, 1, 1)]) == {"lm": 0, "ss": 0, "icat": 0}
    with pytest.raises(ValueError, match="'religion', got none"):
        stereoset_summary(rows, "religion")


def test_files_and_models_that_do_not_fit_are_refused(tokenizer, model, tmp_path):
    with pytest.raises(ValueError, match=r"^No such file: .*, which must hold"):
        read_stereoset(tmp_path / "dev.json")
    (tmp_path / "dev.json").write_text("{}")
    with pytest.raises(ValueError, match=r"does not hold StereoSet's examples \(KeyError\)"):
        read_stereoset(tmp_path / "dev.json")
    (tmp_path / "dev.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"does not hold StereoSet's examples \(UnicodeDecodeError\)"):
        read_stereoset(tmp_path / "dev.json")
    (tmp_path / "none.jsonl").write_text('{"type": "intersentence"}')
    with pytest.raises(ValueError, match="but has none"):
        read_stereoset(tmp_path / "none.jsonl")
    row = {"context": "man " * 600 + "BLANK", **dict.fromkeys(KINDS, "kind")}
    with pytest.raises(ValueError, match="must take sentences of 603 tokens, but it takes 512"):
        stereoset(model, tokenizer, [row])


@needs_data("bias")
def test_the_real_file_has_its_known_sizes():
    rows = read_stereoset(find_stereoset(DATA))
    assert len(rows) == 2106
    assert sum(row["bias_type"] == "gender" for row in rows) == 255
    assert all(row[kind] for row in rows for kind in KINDS)
