"""What a sweep says about its links, and where it says nothing."""

import json

from taufree.experiments.report.page import write_report
from taufree.experiments.report.tables import result_table, table_rows
from taufree.experiments.report.verdicts import NO_VERDICT, verdicts
from tests.support.paths import ROOT


def lines_of(name):
    return [json.loads(line) for line in (ROOT / f"benchmarks/results/{name}.jsonl").read_text().splitlines()]


def test_a_quick_run_has_no_verdict_and_says_why(tmp_path):
    lines = lines_of("digits")
    assert verdicts(lines, quick=True) == [NO_VERDICT]
    page = write_report(lines, tmp_path / "report.html", preset="quick").read_text()
    assert NO_VERDICT in page
    assert "free minus tau" not in page
    assert NO_VERDICT not in write_report(lines, tmp_path / "report.html").read_text()
    alone = [line for line in lines if line["link"] == "free"]
    assert verdicts(alone, quick=True) == []


def test_a_learned_temperature_is_compared_too():
    found = verdicts(lines_of("digits"))
    assert [sentence.split(" is ")[0] for sentence in found] == [
        "knn: free minus tau 0.5",
        "knn: learnable tau minus tau 0.5",
        "linear: free minus tau 0.25",
        "linear: learnable tau minus tau 0.25",
    ]


def test_the_figure_that_chooses_the_epoch_is_no_result():
    of_beauty = [line for line in lines_of("dcrec") if line["settings"]["dataset"] == "beauty"]
    lines = [line for line in of_beauty if line["settings"]["ids"] and line["settings"]["contrast"]]
    assert "choice" in lines[0]["metrics"]
    metrics = {sentence.split(":")[0] for sentence in verdicts(lines)}
    assert metrics == set(lines[0]["metrics"]) - {"choice"}
    assert not any("choice" in row["note"] for row in table_rows(lines))
    assert any(row["metric"] == "choice" for row in result_table(lines).rows)  # it is shown


def test_the_table_and_the_sentence_agree_where_seeds_are_uneven():
    lines = [line for line in lines_of("digits") if (line["link"], line["seed"]) != ("0.1", 2)]
    notes = {row["link"]: row["note"] for row in table_rows(lines)}
    (best,) = (link for link, note in notes.items() if "knn" in note)
    assert notes[best].startswith("best tau of 2 common seeds: ")
    assert any(sentence.startswith(f"knn: free minus {best} is") for sentence in verdicts(lines))
