"""Benchmarks that were broken off: what they do first, and that their tables show what is there."""

import argparse
import importlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the folder, whose scripts import each other as they do when they are run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def dcrec_runs(script, seeds=5):
    chosen = argparse.Namespace(
        seeds=seeds, datasets="beauty,reddit", epochs=300, batch_size=2048, protocol="validation", data=None
    )
    return script.planned(chosen, "cpu")


def dcrec_line(run):
    draw = random.Random(run.key)
    names = ("hr1", "hr5", "hr10", "ndcg5", "ndcg10", "full_hr10", "full_ndcg10")
    return {
        "recipe": "dcrec",
        "link": run.link,
        "seed": run.seed,
        "settings": run.recorded_settings,
        "metrics": {name: draw.random() for name in names},
        "curves": {"choice": [1.0, 3.0, 2.0]},
        "seconds": 10.0,
    }


def msc_line(name, link, seed):
    settings = {"normal": name, "backbone": "resnet50-v1", "epochs": 25, "batch_size": 32}
    settings |= {"crop": 224, "subset": 0, "precision": "bf16-mixed"}
    metrics = {"auc": 95 + random.Random(name + link).random() + seed / 10, "gain": 1.0}
    return {"link": link, "seed": seed, "settings": settings, "metrics": metrics, "seconds": 20.0}


def printed(script, lines, path, monkeypatch, capsys):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sys, "argv", ["script", "--table", "--results", str(path)])
    script.main()
    return capsys.readouterr().out


def test_a_line_that_was_not_finished_is_left_out_and_the_next_is_whole(benchmark, tmp_path, capsys):
    lines, path = benchmark("lines"), tmp_path / "lines"
    for value in (1, 2):
        lines.append(path, {"value": value})
    path.write_text(path.read_text()[:-4])
    assert lines.read(path) == [{"value": 1}]
    lines.append(path, {"value": 3})
    assert lines.read(path) == [{"value": 1}, {"value": 3}]
    assert capsys.readouterr().err == 2 * f"{path}, line 2 is not whole and left out.\n"
    path.write_text(json.dumps({"value": 4}))  # whole but for the end of the line
    lines.append(path, {"value": 5})
    assert lines.read(path) == [{"value": 4}, {"value": 5}]


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4, 8, 13, 37, 70])
def test_the_table_of_dcrec_takes_what_is_there(benchmark, tmp_path, monkeypatch, capsys, kept):
    script = benchmark("dcrec")
    picture = tmp_path / "dcrec.png"
    monkeypatch.setattr(script, "FIGURE", picture)
    lines = [dcrec_line(run) for run in dcrec_runs(script)]
    shown = printed(script, lines[:kept], tmp_path / "lines", monkeypatch, capsys)
    assert ("### Beauty" in shown) == (kept > 0)
    assert ("free minus no contrastive term" in shown) == (kept > 2)
    assert (" to +" in shown) == (kept > 13)
    assert ("with ids minus without" in shown) == (kept > 36)
    assert picture.exists() == (kept > 0)
    # A line that ended before all others did, whatever it is of.
    assert "### " in printed(script, lines[kept : kept + 1], tmp_path / "one", monkeypatch, capsys)


def test_dcrec_does_a_few_seeds_with_everything_first(benchmark):
    runs = dcrec_runs(benchmark("dcrec"))
    assert len({run.key for run in runs}) == len(runs) == 5 * 2 * 6 + 3 * 2 * 2
    assert {run.seed for run in runs[:48]} == {0, 1, 2}
    assert all(run.settings.ids for run in runs[:36])
    for start in range(0, 36, 6):  # all links of a seed and a data set are neighbours
        assert len({(run.seed, run.settings.dataset) for run in runs[start : start + 6]}) == 1
        assert [run.link for run in runs[start : start + 3]] == ["free", "0.8", "free"]
    # Then the other seeds, with what the paper compares and the control before all else.
    assert {run.link for run in runs[48:60]} == {"free", "0.8"}
    assert [run.settings.contrast for run in runs[48:60]] == 4 * [0.1, 0.1, 0.0]
    assert all(run.settings.ids for run in runs[48:])


def test_the_table_of_dcrec_is_of_paired_seeds_and_mixes_no_settings(
    benchmark, tmp_path, monkeypatch, capsys
):
    script = benchmark("dcrec")
    monkeypatch.setattr(script, "FIGURE", tmp_path / "dcrec.png")
    lines = [dcrec_line(run) for run in dcrec_runs(script)]
    for line in lines:
        about = line["settings"]
        better = 1.0 * (line["link"] == "free") - 3.0 * (not about["contrast"]) - 0.5 * (not about["ids"])
        # A seed that one of two links has not counts for neither.
        line["metrics"] = dict.fromkeys(line["metrics"], 10 * line["seed"] + better)
    kept = [line for line in lines if line["seed"] < 3 or line["link"] == "free"]
    trial = {**lines[0], "settings": {**lines[0]["settings"], "batch_size": 512, "epochs": 2}}
    shown = printed(script, [*kept, trial], tmp_path / "lines", monkeypatch, capsys)
    parts = dict(part.split("\n", 1) for part in shown.split("### ")[1:])
    assert list(parts)[:3] == ["Beauty", "Beauty, batches of 512, 2 epochs at most", "Reddit"]
    cell = " | ".join(["**{0} ({0} to {0})**"] * 7)
    for dataset in ("Beauty", "Reddit"):
        for words, gap, seeds in (
            ("free minus tau 0.8", "+1.00", 3),
            ("free minus no contrastive term", "+3.00", 5),
            ("free, with ids minus without", "+0.50", 3),
            ("tau 0.8, with ids minus without", "+0.50", 3),
        ):
            assert f"| {words} | {cell.format(gap)} | {seeds} |\n" in parts[dataset]


@pytest.mark.parametrize("kept", [1, 2, 3, 20, 22, 34, 59])
def test_the_table_of_msc_takes_what_is_there(benchmark, tmp_path, monkeypatch, capsys, kept):
    script = benchmark("msc")
    lines = [msc_line(*run) for run in script.plan()]
    monkeypatch.setattr(script, "FIGURE", tmp_path / "msc.png")
    assert len(lines) == 59
    shown = printed(script, lines[:kept], tmp_path / "lines", monkeypatch, capsys)
    assert f"{kept} runs" in shown
    assert (tmp_path / "msc.png").read_bytes()
    assert ("- free minus tau 0.25" in shown) == (kept > 1)
    assert ("in the mean of classes (95 % interval" in shown) == (kept > 3)
    assert ("  - cat, auc: free minus tau 0.25" in shown) == (kept > 34)
    assert "**mean of ten**" in shown
    assert printed(script, lines[kept - 1 : kept], tmp_path / "one", monkeypatch, capsys)


def test_msc_does_the_links_of_a_class_one_after_the_other(benchmark):
    runs = benchmark("msc").plan()
    assert [run[:2] for run in runs[:2]] == [("airplane", "free"), ("airplane", "0.25")]
    for start in range(29, 41, 2):
        assert len({(name, seed) for name, _, seed in runs[start : start + 2]}) == 1
    for start in range(41, 59, 3):
        assert len({(name, seed) for name, _, seed in runs[start : start + 3]}) == 1


def test_the_networks_of_calibration_before_training_serve_all_tasks_that_share_them(
    benchmark, tmp_path, monkeypatch, capsys
):
    script = benchmark("calibration")
    monkeypatch.setattr("taufree.experiments.recipes.digits.linear_accuracy", lambda *_: 50.0)  # it is slow
    few = script.Task("digits", script.DigitsSettings(epochs=1), "linear", ("free",), 1)
    monkeypatch.setattr(script, "TASKS", {"one": few, "one, knn": replace(few, metric="knn")})
    chosen = argparse.Namespace(
        data=None, device="cpu", seeds=None, links=None, jobs=1, runs=tmp_path, results=tmp_path / "lines"
    )
    done = []
    monkeypatch.setattr(script, "complete", lambda runs, *_, **options: done.append((runs, options)))
    script.train("one", chosen)
    [line] = script.read(chosen.results)
    assert set(line["metrics"]) == {"knn", "linear"}
    # Of runs that failed, only those whose loss was not finite tell something of the link.
    runs, options = done[0]
    options["failed"](runs[0], "its process ended with exit code -9")
    options["failed"](runs[0], "the loss became nan in epoch 3.")
    assert [line.get("failed") for line in script.read(chosen.results)[1:]] == [
        "the loss became nan in epoch 3."
    ]
    curves = {"effective_dimension": [3.0], "temperature_at_zero": [0.5]}
    run = {**script.start_of(runs[0]), "metrics": {"knn": 90.0, "linear": 0.0}, "curves": curves}
    every = [line, {**run, "seconds": 1.0}]
    for name, collapsed in (("one", 1), ("one, knn", 0)):
        capsys.readouterr()
        script.table(name, every)
        assert f"| {collapsed} | 1 | 1.0 |" in capsys.readouterr().out


def test_calibration_compares_a_gain_that_is_set_with_the_measured_one(benchmark, monkeypatch, capsys):
    script = benchmark("calibration")
    task = script.Task("digits", script.DigitsSettings(), "linear", ("gain=2", "calibrated"), 2)
    monkeypatch.setattr(script, "TASKS", {"two": task})
    chosen = argparse.Namespace(data=None, device="cpu", seeds=None, links=None)
    curves = {"effective_dimension": [3.0], "temperature_at_zero": [0.5]}
    lines = [
        {**script.start_of(run), "metrics": {"linear": 90.0 + (run.link == "gain=2")}, "curves": curves}
        for run in script.runs_of("two", chosen)
    ]
    before = [{**line, "link": script.UNTRAINED, "metrics": {"linear": 50.0}} for line in lines]
    script.table("two", [*before, *({**line, "seconds": 1.0} for line in lines)])
    assert "- linear: gain 2 minus calibrated is +1.00 (95 % interval" in capsys.readouterr().out


def test_sts_b_has_differences_of_both_parts(benchmark, capsys):
    script = benchmark("stsb")
    found = {"free": {"dev": 85.0, "test": 79.0}, "0.05": {"dev": 86.0, "test": 82.0}}
    lines = [
        {"link": link, "seed": seed, "metrics": metrics, "before": metrics, "seconds": 1.0}
        for link, metrics in found.items()
        for seed in range(2)
    ]
    script.table(lines)
    shown = capsys.readouterr().out
    assert "- test: free minus tau 0.05 is -3.00 (95 % interval" in shown
    assert "- dev: free minus tau 0.05 is -1.00 (95 % interval" in shown


def test_calibration_refuses_tasks_that_there_are_not(benchmark, monkeypatch, capsys):
    script = benchmark("calibration")
    monkeypatch.setattr(sys, "argv", ["script", "--tasks", "digits,imagenete", "--table"])
    with pytest.raises(SystemExit):
        script.main()
    assert "got 'imagenete'" in capsys.readouterr().err


def test_runs_that_only_tried_a_script_are_not_counted_with_the_others(
    benchmark, tmp_path, monkeypatch, capsys
):
    script = benchmark("msc")
    monkeypatch.setattr(script, "FIGURE", tmp_path / "msc.png")
    lines = [msc_line("cat", link, 0) for link in ("free", "0.25")]
    tried = [{**line, "settings": {**line["settings"], "subset": 64}} for line in lines]
    shown = printed(script, [*lines, *tried], tmp_path / "lines", monkeypatch, capsys)
    parts = shown.split("### resnet50-v1, 25 epochs, batches of 32")
    assert [part.partition("\n")[0] for part in parts] == ["", "", ", subset 64"]
    assert all("2 runs" in part for part in parts[1:])

    script = benchmark("citeseer")
    metrics = dict.fromkeys(("micro", "macro", "pygcl_micro", "pygcl_macro"), 60.0)
    lines = [
        {"link": "free", "seed": 0, "settings": {"mask": "nt-xent", "epochs": epochs}, "metrics": metrics}
        for epochs in (1000, 3)
    ]
    lines = [{**line, "seconds": 1.0} for line in lines]
    assert "| 1 | 1.0 |" in printed(script, lines, tmp_path / "lines", monkeypatch, capsys)

    script = benchmark("mabel")
    made = {"kind": "base", "model": "m", "pretraining": None, "stsb": {"test": 1.0, "dev": 2.0}}
    settings = {"model": "m", "subset": 0}
    run = {"kind": "run", "recipe": "sentences", "link": "free", "seed": 0, "metrics": made["stsb"]}
    lines = [made, {**made, "subset": 8}, *({**run, "settings": {**settings, "subset": n}} for n in (0, 8))]
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script.table(argparse.Namespace(results=tmp_path / "lines"))
    parts = capsys.readouterr().out.split("### m")[1:]
    assert [part.partition("\n")[0] for part in parts] == ["", ", subset 8"]
    assert all("| free | 1.00 | 2.00 | 1 |" in part for part in parts)
