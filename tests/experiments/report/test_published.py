"""Tables to publish: the figures by hand, and formats that their readers can read."""

import csv
import re
import shutil
import statistics
import subprocess

import pytest

from taufree.experiments.report.published import entries, published
from taufree.experiments.report.sweeps import Sweep
from tests.support.sweeps import digits

T_3 = 4.302652729911275  # Student's t of three seeds


@pytest.fixture(scope="module")
def sweep():
    return Sweep("digits", digits())


def figures(link, metric="knn"):
    return {line["seed"]: line["metrics"][metric] for line in digits() if line["link"] == link}


def half(numbers):
    return T_3 * statistics.stdev(numbers) / 3**0.5


def test_figures_and_paired_differences_by_hand(sweep):
    found = {one.link: one for one in entries([sweep], ["knn"])}
    assert list(found) == ["free", "0.1", "0.25", "0.5", "1", "learnable"]
    for link, one in found.items():
        numbers = list(figures(link).values())
        assert one.mean == pytest.approx(statistics.mean(numbers))
        assert one.interval == pytest.approx((one.mean - half(numbers), one.mean + half(numbers)))
    (best,) = [link for link, one in found.items() if one.best]
    assert best == max(found, key=lambda link: found[link].mean)
    between = [figures("free")[seed] - figures("0.5")[seed] for seed in range(3)]
    assert found["free"].lead.second == "0.5"
    assert found["free"].lead.mean == pytest.approx(statistics.mean(between))
    assert found["0.5"].lead is None


def test_one_seed_has_no_interval():
    sweep = Sweep("digits", [line for line in digits() if line["seed"] == 0])
    assert all(one.interval is None for one in entries([sweep]))
    text = published([sweep], ["knn"])
    assert "±" not in text
    assert text.endswith("Mean over 1 seed; higher is better. In brackets: minus the best temperature, "
                         "paired by seed, with its 95 % interval.\n")  # fmt: skip


def test_markdown_and_html_have_the_same_cells_and_the_best_bold(sweep):
    rows = [
        re.split(r" \| ", line.strip("| "))
        for line in published([sweep]).splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["link", "knn", "linear"]
    page = published([sweep], format="html")
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*)</tr>", page)[1:]]
    assert [[cell.replace("<b>", "**").replace("</b>", "**") for cell in row] for row in cells] == rows[2:]
    assert sum(cell.startswith("**") for row in rows[2:] for cell in row) == 2  # one of each metric


def test_csv_has_numbers_that_are_not_rounded(sweep):
    rows = list(csv.DictReader(published([sweep], format="csv").splitlines()))
    free = next(row for row in rows if (row["link"], row["metric"]) == ("free", "knn"))
    assert float(free["mean"]) == pytest.approx(statistics.mean(figures("free").values()), abs=1e-9)
    assert (free["sweep"], free["seeds"], free["minus"], free["best"]) == ("digits", "3", "0.5", "0")
    assert float(free["difference_low"]) < float(free["difference"]) < float(free["difference_high"])
    assert len(rows) == 12


def test_several_sweeps_are_columns():
    sweeps = [Sweep(f"digits, batch_size {size}", digits(batch_size=size)) for size in (128, 256)]
    assert published(sweeps, ["knn"]).startswith("| link | digits, batch_size 128 | digits, batch_size 256 |")
    head = published(sweeps).splitlines()[0]
    assert "| digits, batch_size 128: knn | digits, batch_size 128: linear |" in head


def test_latex(sweep, tmp_path):
    named = Sweep("a_b & c % #", sweep.lines)
    text = published([sweep, named], ["knn"], "latex")
    assert r"link & digits & a\_b \& c \% \# \\" in text
    assert r"$\tau$ 0.5 & 94.33 $\pm$ 1.25 &" in text
    assert r"\textbf{94.40 $\pm$ 1.49} [+0.07 ($-$1.18 to +1.32)]" in text
    if shutil.which("pdflatex"):
        head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
        (tmp_path / "t.tex").write_text(head + text.replace("±", "") + r"\end{document}")
        subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)
