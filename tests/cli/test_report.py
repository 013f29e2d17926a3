"""``taufree report``, ``table`` and ``merge``: results that are there, shown and put together."""

import re
from pathlib import Path

import pytest

from taufree.experiments.sweep.results import Results
from taufree.experiments.training.run import run_slug
from tests.support.browser import drawn, overflow, rendered
from tests.support.command import invoke
from tests.support.sweeps import digits, read, write


def slug(line):
    return run_slug(line["recipe"], line["link"], line["seed"], line["settings"])


def test_a_folder_is_shown_while_a_sweep_writes_to_it(tmp_path):
    out = write(tmp_path / "out", digits())
    with (out / "results.jsonl").open("a") as file:
        file.write('{"recipe": "dig')  # a line that is being written
    before = (out / "results.jsonl").read_bytes()
    with Results(out, print):
        found = invoke("report", out)
    assert found.exit_code == 0, found.stderr
    assert "digits: mean ± std over seeds" in found.stdout
    assert re.search(r"knn: free minus tau [\d.]+ is", found.stdout)
    assert found.stdout.splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert (out / "report.html").stat().st_size > 1e6
    assert "this line is not whole JSON; it is left out." in found.stderr
    assert (out / "results.jsonl").read_bytes() == before
    assert not (out / "results.damaged.jsonl").exists()


def test_the_newest_settings_of_a_folder_are_shown_and_others_by_name(tmp_path):
    quick = [line for line in digits(epochs=5) if line["link"] in ("free", "0.5")]
    out = write(tmp_path, [*digits(), *quick])
    found = invoke("report", out, "--out", tmp_path / "page.html")
    assert "tau 0.25" not in found.stdout
    assert "No verdict: a quick run" in found.stdout  # as the settings say
    assert f"{out} has runs of 2 choices of settings, of which the newest are shown" in found.stderr
    longer = invoke("report", out, "--set", "epochs=60")
    assert "tau 0.25" in longer.stdout
    assert longer.stderr == ""
    absent = invoke("report", out, "--set", "epochs=7")
    assert absent.exit_code == 2
    assert absent.stderr == f"taufree: no run in {out} has the settings epochs=7.\n"


def test_two_folders_with_the_same_settings_are_one_sweep(tmp_path):
    lines = digits()
    seeds = {line["seed"] for line in lines}
    outs = [write(tmp_path / str(seed), [line for line in lines if line["seed"] == seed]) for seed in seeds]
    apart, together = invoke("report", *outs), invoke("report", write(tmp_path / "all", lines))
    assert apart.stdout.splitlines()[:-1] == together.stdout.splitlines()[:-1]


@pytest.mark.slow
def test_sweeps_of_other_settings_are_compared_on_one_page(tmp_path):
    outs = [write(tmp_path / str(size), digits(batch_size=size)) for size in (128, 256)]
    page = tmp_path / "both.html"
    found = invoke("report", *outs, "--out", page)
    assert found.exit_code == 0, found.stderr
    for size in (128, 256):
        assert f"digits, batch_size {size}: mean ± std over seeds" in found.stdout
    dom, console = rendered(page)
    assert console == []
    for figure in ("leads-knn", "leads-linear", "accuracy-knn", "accuracy-linear"):
        assert drawn(dom, figure)
    assert dom.count("digits, batch_size 128</td>") == 2 * 6 + 1  # links by metric, and its settings
    assert overflow(page) <= 0


def test_a_recipe_that_is_not_here_is_shown_by_its_results(tmp_path):
    lines = [line | {"recipe": "theirs"} for line in digits()]
    found = invoke("report", write(tmp_path, lines))
    assert found.exit_code == 0, found.stderr
    assert "theirs: mean ± std over seeds" in found.stdout
    assert "With and without a temperature: theirs" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("command", ["report", "table", "merge --out all"])
def test_what_is_no_folder_of_results_is_one_sentence(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for given, sentence in (
        ("absent", "No such file: absent, which must hold results of taufree run."),
        ("empty", "No such file: empty/results.jsonl, which must hold results of taufree run."),
    ):
        found = invoke(*command.split(), given)
        assert found.exit_code == 2
        assert found.stderr == f"taufree: {sentence}\n"
    assert not (tmp_path / "all").exists()


def test_merged_folders_have_all_runs_once_and_their_files(tmp_path):
    lines = digits()
    first = write(tmp_path / "a", [line for line in lines if line["seed"] in (0, 1)])
    second = write(tmp_path / "b", [line for line in lines if line["seed"] in (1, 2)])
    last = next(line for line in lines if line["seed"] == 2)
    for kind in ("embeddings", "scores"):
        (second / kind).mkdir()
        (second / kind / f"{slug(last)}.{kind}").write_text(kind)
    out = tmp_path / "all"
    found = invoke("merge", first, second, "--out", out)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == (
        f"{len(lines)} runs were added to {out / 'results.jsonl'}, which has {len(lines)} now.\n"
    )
    assert found.stderr == ""
    assert sorted(map(slug, read(out))) == sorted(map(slug, lines))
    assert (out / "scores" / f"{slug(last)}.scores").read_text() == "scores"
    assert (out / "embeddings" / f"{slug(last)}.embeddings").exists()
    again = invoke("merge", out, second, "--out", out)
    assert again.stdout.startswith("0 runs were added to ")
    assert len(read(out)) == len(lines)


def test_runs_that_disagree_are_named_and_the_first_is_kept(tmp_path):
    lines = digits()
    other = [line | {"metrics": {"knn": 1.0, "linear": 1.0}} for line in lines[:2]]
    first, second = write(tmp_path / "a", lines), write(tmp_path / "b", other)
    found = invoke("merge", first, second, "--out", tmp_path / "all")
    assert found.stderr == f"2 runs of {second} were there with other metrics, which are kept.\n"
    assert read(tmp_path / "all") == lines


def test_a_folder_that_a_sweep_writes_to_takes_no_others(tmp_path):
    first = write(tmp_path / "a", digits())
    out = Path(tmp_path / "all")
    out.mkdir()
    with Results(out, print):
        found = invoke("merge", first, "--out", out)
    assert found.exit_code == 2
    assert f"another run is writing to {out}" in found.stderr


def test_a_table_to_publish(tmp_path):
    out = write(tmp_path, digits())
    found = invoke("table", out, "--metric", "knn")
    assert found.exit_code == 0, found.stderr
    assert found.stdout.startswith("| link | knn |\n| --- | ---: |\n| free | 93.60 ± 2.17 [-0.73 (")
    written = invoke("table", out, "--format", "latex", "--out", tmp_path / "table.tex")
    assert written.stdout == f"Table: {tmp_path / 'table.tex'}\n"
    assert r"\begin{tabular}{lrr}" in (tmp_path / "table.tex").read_text()
    for arguments, sentence in (
        (["--metric", "f1"], "metric must be one of knn, linear, which digits has, got 'f1'."),
        (["--format", "word"], "format must be one of markdown, latex, csv, html, got 'word'."),
        (["--out", str(out)], f"--out {out} cannot be written to: Is a directory."),
    ):
        refused = invoke("table", out, *arguments)
        assert refused.exit_code == 2
        assert refused.stderr == f"taufree: {sentence}\n"
