from __future__ import annotations

import csv
import os
import re
from html import unescape
from pathlib import Path

import plotly.graph_objects as go
import pytest

from taufree.util.html_page import Page
from tests.support.browser import drawn, overflow, rendered

NASTY = "<script>alert('x')</script> & \"quotes\""


def sample() -> Page:
    page = Page("A report", "What it answers.")
    page.heading("Numbers")
    page.text("A paragraph.")
    page.bullets(["one", "two"])
    rows = [{"scheme": "free", **{f"a long column {i}": f"{i}.5 %" for i in range(9)}}, {"scheme": "0.5"}]
    page.table(rows, id="numbers", highlight={1}, caption="A caption.")
    for id in ("curve", "bars"):
        fig = go.Figure([go.Scatter(x=[0, 1], y=[1, 2], name=f"a rather long name {i}") for i in range(6)])
        fig.update_layout(xaxis_title="x", yaxis_title="y", width=2000)
        page.figure(fig, id=id, caption="How to read it.")
    return page


def test_a_browser_draws_it_offline(tmp_path: Path) -> None:
    path = sample().write(tmp_path / "page.html")
    dom, console = rendered(path)
    assert console == []
    for id in ("curve", "bars"):
        assert drawn(dom, id)
    assert dom.count('class="main-svg"') >= 2
    assert not re.search(r'<(script|link|img|iframe)\b[^>]*(src|href)="(?!data:)', dom)
    assert path.read_text("utf-8").count("plotly.js v") == 1


def test_an_undrawn_figure_and_a_failing_script_are_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<div id="curve" class="plotly-graph-div"></div><script>nothing.at.all()</script>')
    dom, console = rendered(bad)
    assert not drawn(dom, "curve")
    assert "nothing is not defined" in console[0]


def changed(path: Path, script: str) -> Path:
    """The page with a script of the test's own at its end."""
    page = path.read_text("utf-8").replace("</body>", f"<script>{script}</script></body>")
    path.write_text(page, encoding="utf-8")
    return path


def test_a_table_is_copied_and_saved_as_csv(tmp_path: Path) -> None:
    page = Page("A report", "")
    rows = [{"link": "tau 0.1, the best", "knn": "1 ± 2"}, {"link": NASTY, "knn": "3"}]
    page.table(rows, id="results", file="digits.csv")
    page.table(rows, id="others")
    path = changed(
        page.write(tmp_path / "page.html"),
        "navigator.clipboard.writeText = async (text) => { document.body.dataset.copied = text; };"
        "URL.createObjectURL = (blob) => {"
        "  blob.text().then((text) => document.body.dataset.csv = text); return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { document.body.dataset.file = this.download; };"
        "document.querySelectorAll('button').forEach((button) => button.click());",
    )
    dom, console = rendered(path)
    assert console == []
    body = dom[dom.index("<body") : dom.index("<main")]
    found = {name: unescape(text) for name, text in re.findall(r'data-(\w+)="([^"]*)"', body)}
    assert found["file"] == "digits.csv"
    assert found["copied"] == f"link\tknn\ntau 0.1, the best\t1 ± 2\n{NASTY}\t3\n"
    table = list(csv.reader(found["csv"].lstrip("\ufeff").splitlines()))
    assert table == [["link", "knn"], ["tau 0.1, the best", "1 ± 2"], [NASTY, "3"]]
    assert dom.count("<button") == 2


def test_it_is_dark_where_the_system_is(tmp_path: Path) -> None:
    page = sample()
    page.figure(go.Figure(go.Image(z=[[[255, 0, 0]]])), id="photograph")
    path = changed(
        page.write(tmp_path / "page.html"),
        "const look = (of) => getComputedStyle(document.querySelector(of));"
        "document.body.dataset.look = [look('body').backgroundColor, look('.drawing').filter, "
        "look('.picture').filter].join(' | ');",
    )
    looks = []
    for dark in (False, True):
        dom, console = rendered(path, dark=dark)
        assert console == []
        looks.append(re.findall(r'data-look="([^"]*)"', dom)[0].split(" | "))
    assert looks[0] == ["rgb(255, 255, 255)", "none", "none"]
    background, drawing, picture = looks[1]
    assert sum(map(int, re.findall(r"\d+", background))) < 100
    assert "invert" in drawing
    assert picture == "none"


def test_it_fits_a_phone(tmp_path: Path) -> None:
    assert overflow(sample().write(tmp_path / "page.html")) <= 0
    wide = tmp_path / "wide.html"
    wide.write_text('<!doctype html><div style="width:600px">wide</div>')
    assert overflow(wide) > 0


def test_table(tmp_path: Path) -> None:
    html = sample().write(tmp_path / "page.html").read_text("utf-8")
    table = re.search(r'<table id="numbers">.*?</table>', html, re.S)
    assert table
    assert table.group().count("<th") == 11  # thead and ten columns
    cells = re.sub(r' data-column="[^"]*"', "", table.group())
    assert '<tr><td>free</td><td class="number">0.5 %</td>' in cells
    assert '<tr class=highlight><td>0.5</td><td class="number"></td>' in cells


def test_cells_can_be_stressed_and_remarks_stand_below(tmp_path: Path) -> None:
    page = Page("A table", "")
    rows = [
        {"metric": "knn", "free": "1.0", "tau 1": "2.0"},
        {"metric": "linear", "free": "3.0", "tau 1": "4.0"},
    ]
    page.table(rows, id="turned", highlight={(1, "free")}, footer={"metric": "note", "tau 1": "best tau"})
    html = page.write(tmp_path / "page.html").read_text("utf-8")
    assert re.findall(r'class="number highlight"[^>]*>([^<]*)', html) == ["3.0"]
    assert re.search(r"</tbody><tfoot>.*>note<.*>best tau<.*</tfoot></table>", html)


def test_every_string_is_escaped(tmp_path: Path) -> None:
    page = Page(NASTY, NASTY)
    page.heading(NASTY)
    page.text(NASTY)
    page.bullets([NASTY])
    page.table([{NASTY: NASTY}], id="t", caption=NASTY)
    page.figure(go.Figure(layout_title_text=NASTY), id="f", caption=NASTY)
    html = page.write(tmp_path / "page.html").read_text("utf-8")
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes&quot;") == 11


@pytest.mark.parametrize("id", ["", "two words", 'a"b', "1st", "numbers"])
def test_ids_are_words_used_once(id: str) -> None:
    with pytest.raises(ValueError, match="id must be a word that this page does not use yet"):
        sample().table([{"a": "1"}], id=id)


def test_the_figure_given_stays_as_it_was() -> None:
    fig = go.Figure(go.Scatter(x=[0], y=[1]), layout_width=300)
    Page("a", "b").figure(fig, id="f", caption="")
    assert fig.layout.width == 300
    assert fig.layout.legend.orientation is None


def test_the_legend_stands_as_far_below_a_tall_figure_as_below_a_low_one(tmp_path: Path) -> None:
    page = Page("a", "b")
    for height in (460, 920):
        fig = go.Figure(go.Scatter(x=[0], y=[1]), layout_height=height)
        page.figure(fig, id=f"h{height}", caption="")
    text = page.write(tmp_path / "page.html").read_text("utf-8")
    assert '"y":-0.2,' in text
    assert '"y":-0.1,' in text


def test_write_makes_folders_and_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "page.html"
    assert Page("old", "").write(path) == path
    Page("new", "").write(path)
    assert "<h1>new</h1>" in path.read_text("utf-8")
    assert [child.name for child in path.parent.iterdir()] == ["page.html"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Page("old", "").write(tmp_path / "page.html")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        Page("new", "").write(path)
    assert "<h1>old</h1>" in path.read_text("utf-8")
    assert [child.name for child in tmp_path.iterdir()] == ["page.html"]


def test_a_page_without_figures_carries_no_script(tmp_path: Path) -> None:
    assert "<script" not in Page("a", "b").write(tmp_path / "page.html").read_text("utf-8")


def test_a_file_name_that_is_no_text_does_not_keep_the_page_from_being_written(tmp_path: Path) -> None:
    page = Page("A report", "What it answers.")
    page.text(os.fsdecode(b"caf\xe9"))
    assert r"caf\udce9" in page.write(tmp_path / "page.html").read_text(encoding="utf-8")
