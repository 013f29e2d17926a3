"""Link names: one spelling each, and one sentence for what is none."""

import pytest

from taufree import CalibratedLogOdds, LearnableTemperature, LogOdds, Temperature
from taufree.experiments import link_names
from taufree.experiments.link_names import describe, in_order, make_link, parse_links
from taufree.links import named


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
    assert isinstance(make_link("calibrated"), CalibratedLogOdds)
    assert make_link("0.25").tau == 0.25
    assert make_link("gain=2").gain == 2.0


@pytest.mark.parametrize(
    "text", ["tau", "0", "-0.1", "nan", "inf", "free;0.1", "gain=", "gain=0.4", "gain=inf", "gain"]
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(
        ValueError, match=r"free, fitted, calibrated, learnable, gain=G .*, or a positive temperature, got "
    ) as error:
        parse_links(f"free,{text}")
    assert repr(text) in str(error.value)


def test_a_link_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_links.py").write_text(
        "from taufree import Link, Temperature\n"
        "class Warm(Temperature):\n    def __init__(self): super().__init__(2.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert parse_links("own_links:Warm,free,own_links:Warm") == ("own_links:Warm", "free")
    assert make_link("own_links:Warm").tau == 2.0
    assert make_link("own_links:Warm") is not make_link("own_links:Warm")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent_module:Warm", "gave ModuleNotFoundError: No module named 'absent_module'."),
        ("math:Warm", "gave AttributeError: module 'math' has no attribute 'Warm'."),
        ("taufree:Temperature", "gave TypeError: "),  # it needs a tau
        ("taufree:Link", "gave NotImplementedError: Link must define logit(cosine, gap, rise)."),
        ("math:pi", "gave TypeError: 'float' object is not callable."),
        ("collections:OrderedDict", "must be a taufree.Link, got OrderedDict."),
        (":Warm", "gave ValueError: Empty module name."),
        ("math:", "gave AttributeError: "),
    ],
)
def test_what_is_no_link_gets_one_sentence(name, reason):
    with pytest.raises(ValueError, match=f"links has '{name}', which must be") as error:
        parse_links(f"free,{name}")
    assert reason in str(error.value)


@pytest.mark.parametrize("text", ["", " , "])
def test_at_least_one_link_is_needed(text):
    with pytest.raises(ValueError, match="at least one link"):
        parse_links(text)


def test_order_and_words():
    names = ["free", "2", "10", "calibrated", "gain=2", "learnable", "mine:Cubic"]
    assert in_order(set(names)) == names
    words = ["free", "tau 2", "tau 10", "calibrated", "gain 2", "learnable tau", "mine:Cubic"]
    assert [describe(name) for name in names] == words


def test_the_names_are_those_of_the_losses():
    """Written twice, since those of the losses need torch."""
    assert {name: made.__name__ for name, made in named.NAMED_LINKS.items()} == link_names.NAMED_LINKS
