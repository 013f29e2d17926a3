import json

import pytest

from taufree.experiments.language.nli_pairs import read_entailments, read_pairs, swap_pairs
from tests.support.paths import DATA, ROOT, needs_data


def write_columns(folder, premises, hypotheses, labels):
    folder.mkdir(exist_ok=True)
    for name, lines in (("s1", premises), ("s2", hypotheses), ("labels", labels)):
        (folder / f"{name}.dev").write_text("".join(f"{line} \n" for line in lines), encoding="utf-8")


def test_both_layouts_give_the_entailments_once_each(tmp_path):
    write_columns(
        tmp_path / "snli", ["a", "a", "b"], ["c", "c", "d"], ["entailment", "entailment", "neutral"]
    )
    (tmp_path / "mnli").mkdir()
    rows = [{"sentence1": "e", "sentence2": "f", "gold_label": label} for label in ("entailment", "-")]
    (tmp_path / "mnli" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(list(read_pairs(tmp_path))) == 5
    assert read_entailments(tmp_path) == [("a", "c"), ("e", "f")]


def test_a_sentence_ends_with_its_line_alone(tmp_path):
    strange = "one\u2028two\x85three\x0cfour"
    write_columns(tmp_path / "snli", [strange, "b"], ["c", "d"], ["entailment", "neutral"])
    assert read_entailments(tmp_path) == [(strange, "c")]


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda folder: (folder / "s2.dev").unlink(), "; missing: s2.dev"),
        (lambda folder: (folder / "s2.dev").write_bytes(b"\xff\n"), "snli must be text in UTF-8"),
        (lambda folder: (folder / "s2.dev").write_text("one\n"), "s1.dev 2, s2.dev 1, labels.dev 2"),
        (
            lambda folder: (folder / "more.jsonl").write_text('{"sentence1": "a"}'),
            "more.jsonl:1 must be JSON",
        ),
        (
            lambda folder: (folder / "more.jsonl").write_bytes(b'{"sentence1": "\xe9"}'),
            r"more.jsonl:1 must be JSON in UTF-8 .*\(UnicodeDecodeError\)",
        ),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "must hold s1"),
        (lambda folder: folder.rename(folder.with_name("other")), "need --data FOLDER with snli or mnli"),
    ],
)
def test_what_is_wrong_with_the_files_is_said_in_a_sentence(tmp_path, break_it, sentence):
    write_columns(tmp_path / "snli", ["a", "b"], ["c", "d"], ["entailment", "neutral"])
    break_it(tmp_path / "snli")
    with pytest.raises(ValueError, match=sentence):
        read_entailments(tmp_path)


@needs_data("snli")
def test_the_counts_in_the_docs_are_those_of_the_data():
    page = (ROOT / "docs" / "results" / "language.md").read_text(encoding="utf-8")
    page = " ".join(page.split())  # wherever its lines end
    pairs = swap_pairs(read_entailments(DATA))
    rows = pairs.quadruples
    same = [sum(row[side] == row[side + 2] for row in rows) for side in (1, 0)]
    assert f"In {same[0]:,} of the {len(rows):,} pairs the hypothesis, and in {same[1]:,} the premise" in page
    assert f"{pairs.left_out} of SNLI's {len(rows) + pairs.left_out:,} gendered pairs" in page
