"""Link names: one spelling each, and one sentence for what is none."""

import pytest

from taufree import LearnableTemperature, LogOdds, Temperature
from taufree.experiments.link_names import describe, in_order, make_link, parse_links


def test_names_are_brought_to_one_spelling_and_named_once():
    assert parse_links(" free,0.10,1e-1, 1.0 ,learnable,free") == ("free", "0.1", "1", "learnable")


def test_a_temperature_keeps_all_its_digits():
    (name,) = parse_links("0.12345678901")
    link = make_link(name)
    assert isinstance(link, Temperature)
    assert link.tau == 0.12345678901


def test_names_make_links():
    assert isinstance(make_link("free"), LogOdds)
    assert isinstance(make_link("learnable"), LearnableTemperature)
    assert make_link("0.25").tau == 0.25


@pytest.mark.parametrize("text", ["tau", "0", "-0.1", "nan", "inf", "free;0.1"])
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"free, learnable or a positive temperature, got ") as error:
        parse_links(f"free,{text}")
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["", " , "])
def test_at_least_one_link_is_needed(text):
    with pytest.raises(ValueError, match="at least one link"):
        parse_links(text)


def test_order_and_words():
    assert in_order({"10", "learnable", "2", "free"}) == ["free", "2", "10", "learnable"]
    assert [describe(name) for name in ("free", "2", "learnable")] == ["free", "tau 2", "learnable tau"]
