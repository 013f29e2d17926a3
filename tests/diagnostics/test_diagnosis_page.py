from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from taufree.diagnostics.diagnose import diagnose
from taufree.diagnostics.diagnosis import DEFINITIONS, Diagnosis
from taufree.diagnostics.diagnosis_page import write_diagnosis
from tests.support.browser import drawn, overflow, rendered


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(300, 32))
    return diagnose(first, first + rng.uniform(0, 2, size=(300, 1)) * rng.normal(size=(300, 32)))


def test_a_browser_draws_it(found: Diagnosis, tmp_path: Path) -> None:
    page = write_diagnosis(found, tmp_path)
    dom, console = rendered(page)
    assert console == []
    for id in ("cosines", "by-cosine"):
        assert drawn(dom, id), id
    for id in ("schemes", "rows"):
        assert f'<table id="{id}">' in dom
    for scheme in found.schemes:
        assert f"{scheme.vanished:.1%}" in dom
    assert overflow(page, width=375) <= 0


def test_it_says_what_the_diagnosis_says(found: Diagnosis, tmp_path: Path) -> None:
    page = write_diagnosis(found, tmp_path / "new" / "folder").read_text("utf-8")
    text = page[page.index("<body>") :]
    for words in (*found.summary(), *found.advice(), found.caption, *DEFINITIONS.values()):
        assert words.replace("'", "&#x27;").replace('"', "&quot;").replace("<", "&lt;") in text
        assert "`" not in words  # a page shows it as it is
    rows = re.findall(r"<tr.*?</tr>", text[text.index('id="schemes"') :])[1:9]
    assert [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows] == [
        list(row.values()) for row in found.table()
    ]


def test_the_numbers_lie_beside_it(found: Diagnosis, tmp_path: Path) -> None:
    assert write_diagnosis(found, tmp_path) == tmp_path / "diagnosis.html"
    assert json.loads((tmp_path / "diagnosis.json").read_text("utf-8")) == found.to_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diagnosis.html", "diagnosis.json"]


def test_labels_alone_and_free_alone(tmp_path: Path) -> None:
    labels = np.arange(40) // 4
    rows = np.eye(10)[labels] + np.random.default_rng(0).normal(size=(40, 10)) / 9
    page = write_diagnosis(diagnose(rows, labels=labels, taus=[]), tmp_path)
    dom, console = rendered(page)
    assert console == []
    assert drawn(dom, "by-cosine")
    assert "second table" not in dom
    assert ">tau 0" not in dom


def test_a_file_is_no_folder(found: Diagnosis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"out must be a folder, but .*file"):
            write_diagnosis(found, out)
