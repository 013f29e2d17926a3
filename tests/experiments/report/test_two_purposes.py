"""The page of ``taufree demo``: what it says of each purpose, and how a browser shows it."""

import pytest

from taufree.experiments.report.two_purposes import PURPOSES, SHORT, rows, summary, write_page
from tests.support import browser

FIGURES = {
    "free": [90.0, 91.0, 92.0],
    "fitted": [94.0, 95.0, 96.0],
    "0.1": [95.0, 96.5, 96.0],
    "1": [80.0, 82.0, 81.0],
}


def lines(recipe, metric):
    return [
        {
            "recipe": recipe,
            "link": link,
            "seed": seed,
            "settings": {"epochs": 1},
            "metrics": {metric: value},
            "curves": {"temperature_at_zero": [0.2]},
            "seconds": 1.0,
        }
        for link, values in FIGURES.items()
        for seed, value in enumerate(values)
    ]


@pytest.fixture
def both():
    return [line for purpose in PURPOSES for line in lines(purpose.recipe, purpose.metric)]


def test_a_purpose_is_summed_up_by_its_own_link(both):
    first, second = summary(both, PURPOSES[1])
    assert first == (
        "With a temperature: from 81.0 with tau 1 to 95.8 with tau 0.1. With nothing to tune: fitted 95.0; "
        "free, for the other purpose, 91.0."
    )
    assert second.startswith("recall_1: fitted minus tau 0.1 is -0.83 (95 % interval ")
    assert "free 91.0; fitted, for the other purpose, 95.0." in summary(both, PURPOSES[0])[0]
    assert [row["link"] for row in rows(both, PURPOSES[0])] == ["free", "tau 0.1", "tau 1", "fitted"]
    assert summary(both, PURPOSES[0], quick=True) == [SHORT]


def test_of_two_equal_temperatures_both_sentences_name_the_same(both):
    twin = [{**line, "link": "0.25"} for line in both if line["link"] == "0.1"]
    first, second = summary([*both, *twin], PURPOSES[1])
    assert "to 95.8 with tau 0.1." in first
    assert "fitted minus tau 0.1 is" in second


@pytest.mark.slow
def test_the_page_has_both_and_fits_a_phone(both, tmp_path):
    page = write_page(both, tmp_path / "report.html")
    dom, errors = browser.rendered(page)
    assert errors == []
    for purpose in PURPOSES:
        assert browser.drawn(dom, f"{purpose.recipe}-figure")
        assert f'<table id="{purpose.recipe}"' in dom
    assert "fitted minus tau 0.1" in dom
    assert browser.overflow(page, 375) == 0
