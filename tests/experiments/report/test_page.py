"""The report in a real browser: every plot drawn, the table equal to the results."""

import importlib.util
import json
import re
import statistics

import numpy as np
import pytest

from taufree.experiments.digits import DigitsSettings
from taufree.experiments.evaluation.report_arrays import save_arrays
from taufree.experiments.registry import find_recipe, recipe_names
from taufree.experiments.report.curves import (
    accuracy_figure,
    cosine_figure,
    curve_figure,
    final_temperature,
    link_colours,
)
from taufree.experiments.report.page import write_report
from taufree.experiments.report.tables import MAX_METRIC_COLUMNS, result_table, table_rows
from taufree.experiments.training.run import Run, run_slug
from taufree.experiments.training.trainer import train
from tests.support.paths import ROOT

TINY = DigitsSettings(epochs=2, batch_size=128)
LINKS = ("learnable", "1", "calibrated", "free", "0.1")


def browser():
    path = ROOT / "tests" / "support" / "browser.py"
    spec = importlib.util.spec_from_file_location("browser", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return [train(Run("digits", link, seed, TINY), folder) for seed in (0, 1) for link in LINKS]


def cells(dom, table):
    """The table's rows as lists of texts, the head first."""
    body = re.search(rf'<table id="{table}".*?</table>', dom, re.S).group()
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


@pytest.mark.slow
def test_the_page_as_a_browser_shows_it(lines, tmp_path):
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dom, errors = browser().rendered(write_report(lines, tmp_path / "report.html"))
    assert errors == []
    figures = ["accuracy-knn", "accuracy-linear", "loss", "cosines", "gradient-scale", "histogram"]
    figures.append("effective-dimension")
    for name in figures:
        assert re.search(rf'<div id="{name}"[^>]*class="[^"]*js-plotly-plot', dom), name
    assert dom.count("js-plotly-plot") >= len(figures)

    stored = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    head, *rows = cells(dom, "results")
    assert head == ["link", "knn", "linear", "seeds", "seconds", "note"]
    assert [row[0] for row in rows] == ["free", "tau 0.1", "tau 1", "calibrated", "learnable tau"]
    for row, link in zip(rows, ("free", "0.1", "1", "calibrated", "learnable"), strict=True):
        for column, metric in ((1, "knn"), (2, "linear")):
            figures = [line["metrics"][metric] for line in stored if line["link"] == link]
            assert row[column] == f"{statistics.mean(figures):.2f} ± {statistics.stdev(figures):.2f}"
        assert row[3] == "2"
    assert "free minus tau" in dom
    assert ["epochs", "2"] in cells(dom, "facts")
    assert browser().overflow(tmp_path / "report.html", 375) == 0


def test_the_settings_say_when_and_on_what_the_runs_were(lines, tmp_path):
    def facts(some, **options):
        page = write_report(some, tmp_path / "report.html", **options).read_text()
        return dict(row for row in cells(page, "facts") if len(row) == 2)

    found = facts(lines, preset="quick", data=tmp_path)
    day = lines[0]["date"]
    assert (found["recipe"], found["date"], found["preset"]) == ("digits", day, "quick")
    assert (found["data"], found["seeds"]) == (str(tmp_path), "0, 1")
    found = facts([{**lines[0], "date": "2020-01-31"}, *lines[1:]])
    assert found["date"] == f"2020-01-31 to {day}"
    assert found["data"].startswith("scikit-learn brings them")
    assert "preset" not in found


def test_one_text_explains_the_figures_of_all_metrics(lines, tmp_path):
    page = write_report(lines, tmp_path / "report.html").read_text()
    assert {"accuracy-knn", "accuracy-linear"} <= set(re.findall(r'<div id="([a-z-]+)"', page))
    assert page.count("The line across is the free link") == 1
    early = [{**line, "curves": {**line["curves"], "loss": line["curves"]["loss"][:1]}} for line in lines[:1]]
    assert "Some runs ended earlier" not in page
    assert "Some runs ended earlier" in write_report(early + lines[1:], tmp_path / "report.html").read_text()


def test_the_pictures_have_the_best_link_without_a_temperature_too(lines, tmp_path):
    for line in lines:
        slug = run_slug(line["recipe"], line["link"], line["seed"], line["settings"])
        save_arrays(tmp_path / "embeddings" / f"{slug}.npz", pictures())
    changed = [
        line | {"metrics": {"knn": {"calibrated": 9.0, "0.1": 5.0}.get(line["link"], 1.0)}} for line in lines
    ]
    page = write_report(changed, tmp_path / "report.html").read_text()
    assert re.findall(r"<figcaption>([\w. ]+): features of", page) == ["free", "calibrated", "tau 0.1"]
    folders = [tmp_path / "none", tmp_path]
    elsewhere = write_report(changed, tmp_path / "other" / "page.html", folders=folders).read_text()
    assert elsewhere.count("features of 12 validation images") == 3


def pictures():
    random = np.random.default_rng(0)
    return {
        "features": random.normal(size=(12, 4)),
        "labels": np.arange(12) % 2,
        "classes": np.array(["a", "b"]),
        "thumbnails": np.zeros((2, 3, 64, 64, 3), np.uint8),
        "thumbnail_labels": np.zeros((2, 3), int),
    }


def test_pictures_of_a_short_training_say_so(lines, tmp_path):
    def page(epochs):
        run = {**lines[LINKS.index("free")], "settings": {"epochs": epochs}}
        slug = run_slug(run["recipe"], run["link"], run["seed"], run["settings"])
        save_arrays(tmp_path / "embeddings" / f"{slug}.npz", pictures())
        return write_report([run], tmp_path / "report.html").read_text()

    assert "after 2 epochs. That is fewer than 100: the pictures show networks" in page(2)
    assert "after 1 epoch. That is fewer" in page(1)
    assert "after 100 epochs.</p>" in page(100)


def test_notes_mark_free_the_best_temperature_and_where_the_learnable_one_ended(lines):
    rows = {row["link"]: row["note"] for row in table_rows(lines)}
    assert rows["free"] == "no temperature"
    for metric in ("knn", "linear"):
        means = {
            link: statistics.mean(line["metrics"][metric] for line in lines if line["link"] == link)
            for link in ("0.1", "1")
        }
        best = max(means, key=means.get)
        assert rows[f"tau {best}"].startswith("best tau: ")
        assert metric in rows[f"tau {best}"]
    ended = [line["curves"]["temperature_at_zero"][-1] for line in lines if line["link"] == "learnable"]
    assert rows["calibrated"].startswith("ended like tau 0.")
    assert rows["learnable tau"] == f"ended at tau {statistics.mean(ended):.3f}"


def test_links_have_the_columns_where_metrics_are_many(lines):
    table = result_table(lines)
    rows, stressed = table.rows, table.stressed
    assert rows == table_rows(lines)
    assert table.notes == {}
    assert [row["link"] for row in rows if row["note"].startswith(("no temp", "best tau"))] == [
        rows[number]["link"] for number in sorted(stressed)
    ]

    more = {f"metric{number}": float(number) for number in range(MAX_METRIC_COLUMNS)}
    wide = [
        {**line, "metrics": {**line["metrics"], **more, "metric3": float(line["link"] == "1")}}
        for line in lines
    ]
    table = result_table(wide)
    turned, stressed = table.rows, table.stressed
    assert list(turned[0]) == ["metric", "free", "tau 0.1", "tau 1", "calibrated", "learnable tau"]
    assert [row["metric"] for row in turned] == ["knn", "linear", *more, "seeds", "seconds"]
    assert turned[0]["tau 1"] == next(row["knn"] for row in rows if row["link"] == "tau 1")
    # The marks that rows have otherwise: free, the best temperature of each metric, where a link ended.
    metrics = [row["metric"] for row in turned]
    assert {(metrics.index(name), "free") for name in ("knn", "metric0")} <= stressed
    assert [column for number, column in stressed if number == metrics.index("metric3")] != ["free"]
    assert (metrics.index("metric3"), "tau 1") in stressed
    assert (metrics.index("metric3"), "tau 0.1") not in stressed
    assert all(number < len(metrics) - 2 for number, _ in stressed)  # seeds and seconds have no best
    assert table.notes["free"] == "no temperature"
    assert table.notes["tau 1"] == "best tau"
    assert table.notes["learnable tau"] == next(row["note"] for row in rows if row["link"] == "learnable tau")


def test_the_page_says_what_the_recipe_compares(lines, tmp_path):
    copies = "two randomly changed copies of the same example"
    assert copies in write_report(lines, tmp_path / "report.html").read_text()
    metrics = dict.fromkeys(find_recipe("sentences").metrics, 1.0)
    page = write_report(
        [{**line, "recipe": "sentences", "metrics": metrics} for line in lines], tmp_path / "report.html"
    ).read_text()
    assert "pairs of sentences, of which the second follows from the first" in page
    assert copies not in page


def test_short_runs_have_no_half_epochs(lines):
    assert curve_figure(lines, {"loss": "solid"}, "loss").layout.xaxis.dtick == 1


@pytest.mark.parametrize(("values", "own"), [([3.9, 8.0], True), ([4.0, 9000.0], False)])
def test_a_log_axis_has_ticks_between_close_values_too(lines, values, own):
    lines = [{**line, "curves": {"gradient_scale": values}} for line in lines]
    axis = curve_figure(lines, {"gradient_scale": "solid"}, "gradient scale", log=True).layout.yaxis
    assert axis.type == "log"
    assert (axis.tickvals is None) == own  # Plotly's own, which it finds between any two values


def test_the_accuracy_figure_holds_the_means(lines):
    traces = {trace.name: trace for trace in accuracy_figure(lines, "knn").data}
    mean = {
        link: statistics.mean(line["metrics"]["knn"] for line in lines if line["link"] == link)
        for link in LINKS
    }
    assert list(traces["fixed tau"].x) == [0.1, 1.0]
    assert list(traces["fixed tau"].y) == pytest.approx([mean["0.1"], mean["1"]])
    assert list(traces["free"].y) == pytest.approx([mean["free"]] * 2)
    for link, name in (("learnable", "learnable tau"), ("calibrated", "calibrated")):
        assert list(traces[f"{name}, where it ended"].y) == pytest.approx([mean[link]])


def test_one_seed_has_no_band_and_no_name_for_it_in_the_legend(lines):
    one = [line for line in lines if line["seed"] == 0]
    bands = [[t.name for t in accuracy_figure(some, "knn").data if t.fill] for some in (lines, one)]
    assert bands == [["free, ± 1 std"], []]


def test_the_histograms_hold_all_pairs(lines):
    bars = [trace for trace in cosine_figure(lines).data if trace.type == "bar"]
    assert len(bars) == 2 * len(LINKS)
    assert all(sum(bar.y) == pytest.approx(100) for bar in bars)


def test_links_of_ones_own_have_bars_and_colours_but_no_curve_that_is_not_theirs(lines):
    line = next(line for line in lines if line["link"] == "learnable")
    flat = {**line["curves"], "temperature_at_zero": [0.0, 0.0]}
    own = [{**line, "link": "a:Flat", "curves": flat}, {**line, "link": "b:Steep"}]
    assert len(set(link_colours([*lines, *own]).values())) == len(LINKS) + 2
    traces = cosine_figure([*own, line]).data
    assert [trace.type for trace in traces].count("bar") == 6
    (curve,) = (trace for trace in traces if trace.type == "scatter")
    assert curve.showlegend
    names = [trace.name for trace in accuracy_figure([*lines, *own], "knn").data]
    assert "b:Steep, where it ended" in names
    assert not any("Flat" in name for name in names)


@pytest.mark.parametrize("link", ["free", "0.1", "learnable"])
def test_a_single_link_and_seed_make_a_page_too(lines, tmp_path, link):
    one = [line for line in lines if line["link"] == link and line["seed"] == 0]
    page = write_report(one, tmp_path / "report.html").read_text()
    assert one[0]["metrics"]["knn"] == pytest.approx(float(table_rows(one)[0]["knn"]), abs=0.005)
    assert "free minus" not in page
    assert "trained with one way" in page
    assert ("How much the temperature matters" in page) == (link != "free")  # it would be an empty plot


def test_where_links_ended_can_be_read_without_a_fixed_temperature(lines):
    axes = [
        accuracy_figure([line for line in lines if line["link"] in links], "knn").layout.xaxis
        for links in (("free", "learnable"), ("free", "0.1", "learnable"))
    ]
    assert [axis.tickvals for axis in axes] == [None, (0.1,)]


def test_links_have_colours_of_their_own(lines):
    colours = link_colours(lines)
    assert list(colours) == ["free", "0.1", "1", "calibrated", "learnable"]
    assert len(set(colours.values())) == 5


def test_a_seed_that_stopped_early_leaves_the_mean_to_the_others(lines):
    short, long = ([line for line in lines if line["link"] == "free" and line["seed"] == s] for s in (0, 1))
    cut = [{**line, "curves": {**line["curves"], "loss": line["curves"]["loss"][:1]}} for line in short]
    (trace,) = curve_figure([*cut, *long], {"loss": "solid"}, "loss").data
    losses = [line["curves"]["loss"] for line in (*short, *long)]
    assert list(trace.y) == pytest.approx([(losses[0][0] + losses[1][0]) / 2, losses[1][1]])


def test_a_curve_of_every_second_epoch_is_drawn_there(lines):
    line = {**lines[0], "settings": {**lines[0]["settings"], "knn_every": 2}, "curves": {"knn": [70, 80, 90]}}
    (trace,) = curve_figure([line], {"knn": "solid"}, "knn").data
    assert list(trace.x) == [2, 4, 6]


CURVES = {
    "loss": "loss",
    "positive_cosine": None,  # the negative ones are still to be seen
    "gradient_scale": "gradient-scale",
    "effective_dimension": "effective-dimension",
    "negative_histogram": "histogram",
    "candidates": None,
    "temperature_at_zero": None,
}


def without(line, part, names):
    return {**line, part: {name: x for name, x in line[part].items() if name not in names}}


def figures_of(lines, folder):
    return set(re.findall(r'<div id="([a-z-]+)"', write_report(lines, folder / "report.html").read_text()))


@pytest.fixture(scope="module")
def every(lines, tmp_path_factory):
    return figures_of(lines, tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("curve", CURVES)
def test_a_page_shows_what_other_versions_wrote(lines, every, tmp_path, curve):
    assert {"loss", "cosines", "gradient-scale", "effective-dimension", "histogram"} <= every
    none = [without(line, "curves", [curve]) for line in lines]
    assert figures_of(none, tmp_path) == every - {CURVES[curve]}
    some = [n if x["seed"] or x["link"] == "learnable" else x for x, n in zip(lines, none, strict=True)]
    assert figures_of(some, tmp_path) == every


def test_a_page_of_lines_without_curves_or_with_other_metrics(lines, tmp_path):
    bare = [{**line, "curves": {}, "new": 1} for line in lines]
    assert figures_of(bare, tmp_path) == {"accuracy-knn", "accuracy-linear"}
    old = [without(line, "metrics", ["linear"]) if line["link"] in ("free", "1") else line for line in lines]
    assert "accuracy-linear" in figures_of(old, tmp_path)
    rows = {row["link"]: row for row in table_rows(old)}
    assert rows["free"]["linear"] == rows["tau 1"]["linear"] == "-"
    assert rows["tau 0.1"]["note"].endswith("linear")
    assert rows["free"]["seeds"] == "2"
    half = [without(line, "metrics", ["linear"]) if line["seed"] else line for line in lines]
    assert "±" not in table_rows(half)[0]["linear"]
    figures_of([{**line, "metrics": {}} for line in lines], tmp_path)


def test_a_legend_names_a_link_that_has_only_the_second_curve(lines):
    lacking = [without(line, "curves", ["loss"]) for line in lines if line["link"] == "free"]
    (trace,) = curve_figure(lacking, {"loss": "solid", "gradient_scale": "dot"}, "both").data
    assert trace.showlegend


def test_a_link_that_is_flat_at_zero_has_no_temperature(lines):
    """It is recorded as 0, which is no temperature and must not be drawn or averaged as one."""
    learned = [line for line in lines if line["link"] == "learnable"]
    assert final_temperature(learned, "learnable") > 0
    flat = [{**learned[0], "curves": {**learned[0]["curves"], "temperature_at_zero": [0.1, 0.0]}}, learned[1]]
    assert final_temperature(flat, "learnable") is None
    assert table_rows(flat)[0]["note"] == ""
    assert "learnable tau, where it ended" not in [t.name for t in accuracy_figure(flat, "knn").data]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_what_its_pairs_are(name):
    task = find_recipe(name).task
    assert "a positive pair" in task
    assert "negative pairs" in task
