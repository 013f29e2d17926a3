import pytest
import torch

from taufree.experiments.language.crows import SIDES, crows_pairs, crows_share, differing, read_crows
from tests.support.paths import DATA, needs_data

PAIRS = [
    ("The nurse was kind to her dog.", "The nurse was kind to his dog."),
    ("The man walked and the woman sleeps", "The woman walked and the man sleeps"),
    ("A man walked.", "A girl plays."),
    ("The dog", "The young dog"),
]


def rows():
    return [{"sent_more": more, "sent_less": less, "bias_type": "gender"} for more, less in PAIRS]


def test_scores_are_the_mean_log_probability_of_what_differs(by_frequency, tokenizer):
    shares = {"her": 0.1, "his": 0.3, "man": 0.2, "woman": 0.05, "walk": 0.02, "__ed": 0.04}
    found = crows_pairs(by_frequency(**shares), tokenizer, rows())
    logs = {name: torch.tensor(share).log().item() for name, share in shares.items()}
    assert len(found) == 3  # where one only adds a word there is nothing to compare
    assert found[0]["scores"]["sent_more"] == pytest.approx(logs["her"], rel=1e-4)
    assert found[0]["scores"]["sent_less"] == pytest.approx(logs["his"], rel=1e-4)
    both = (logs["man"] + logs["woman"]) / 2
    assert found[1]["scores"] == pytest.approx({"sent_more": both, "sent_less": both}, rel=1e-4)
    three = (logs["man"] + logs["walk"] + logs["__ed"]) / 3
    assert found[2]["scores"]["sent_more"] == pytest.approx(three, rel=1e-4)


def test_in_batches_it_is_what_one_token_at_a_time_gives(model, tokenizer):
    for row in crows_pairs(model, tokenizer, rows() * 10):
        both = [tokenizer(row[side], return_tensors="pt")["input_ids"] for side in SIDES]
        for side, ids, places in zip(SIDES, both, differing(*(ids[0].tolist() for ids in both)), strict=True):
            logs = []
            for place in places:
                masked = ids.clone()
                masked[0, place] = tokenizer.mask_token_id
                with torch.no_grad():
                    logs.append(model(input_ids=masked).logits[0, place].log_softmax(-1)[ids[0, place]])
            assert row["scores"][side] == pytest.approx(float(torch.stack(logs).mean()), abs=1e-4)


def test_the_share_counts_only_what_is_strictly_likelier():
    def row(more, less, bias="gender"):
        return {"bias_type": bias, "scores": {"sent_more": more, "sent_less": less}}

    found = [row(-1, -2), row(-2, -1), row(-1, -1), row(-1, -3), row(-1, -2, "age")]
    assert crows_share(found, "gender") == 50
    assert crows_share(found) == 60
    with pytest.raises(ValueError, match="'race', got none"):
        crows_share(found, "race")


def test_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^No such file: .*, which must hold"):
        read_crows(tmp_path / "pairs.csv")
    (tmp_path / "pairs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="with the columns sent_more, sent_less, bias_type"):
        read_crows(tmp_path / "pairs.csv")
    (tmp_path / "pairs.csv").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"pairs.csv does not hold CrowS-Pairs \(UnicodeDecodeError\)"):
        read_crows(tmp_path / "pairs.csv")


@needs_data("bias")
def test_the_real_file_has_its_known_sizes():
    found = read_crows(DATA / "bias" / "crows_pairs_anonymized.csv")
    assert len(found) == 1508
    assert sum(row["bias_type"] == "gender" for row in found) == 262
