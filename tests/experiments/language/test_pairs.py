import json

import pytest

from taufree.experiments.language.pairs import read_entailments, read_pairs


def write_columns(folder, premises, hypotheses, labels):
    folder.mkdir(exist_ok=True)
    for name, lines in (("s1", premises), ("s2", hypotheses), ("labels", labels)):
        (folder / f"{name}.dev").write_text("".join(f"{line} \n" for line in lines))


def test_both_layouts_give_the_entailments_once_each(tmp_path):
    write_columns(
        tmp_path / "snli", ["a", "a", "b"], ["c", "c", "d"], ["entailment", "entailment", "neutral"]
    )
    (tmp_path / "mnli").mkdir()
    rows = [{"sentence1": "e", "sentence2": "f", "gold_label": label} for label in ("entailment", "-")]
    (tmp_path / "mnli" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(list(read_pairs(tmp_path))) == 5
    assert read_entailments(tmp_path) == [("a", "c"), ("e", "f")]


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda folder: (folder / "s2.dev").unlink(), "lacks s2.dev"),
        (lambda folder: (folder / "s2.dev").write_text("one\n"), "s1.dev 2, s2.dev 1, labels.dev 2"),
        (
            lambda folder: (folder / "more.jsonl").write_text('{"sentence1": "a"}'),
            "more.jsonl:1 must be JSON",
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
