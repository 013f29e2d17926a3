"""Link names: one spelling each, and one sentence for what is none."""

from functools import partial

import pytest
import torch

from taufree import (
    CalibratedLogOdds,
    LearnableTemperature,
    LogOdds,
    Temperature,
    baselines,
    info_nce,
    nt_xent,
)
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
        ValueError,
        match=r"free, fitted, fitted-temperature, calibrated, learnable, macl, .*, balanced, balanced:LINK, "
        "gain=G .*, or a positive temperature, got ",
    ) as error:
        parse_links(f"free,{text}")
    assert repr(text) in str(error.value)


def test_the_balanced_loss_of_any_link():
    names = "balanced,balanced:free,balanced:0.250,balanced:fitted,balanced:gain=2.0"
    assert parse_links(names) == ("balanced", "balanced:0.25", "balanced:fitted", "balanced:gain=2")
    assert isinstance(make_link("balanced").link, LogOdds)
    assert make_link("balanced:0.25").link.tau == 0.25
    assert in_order({"balanced", "free", "0.5"}) == ["free", "0.5", "balanced"]


@pytest.mark.parametrize("link", ["", "macl", "balanced", "free:free", "nonsense", "taufree.baselines:MACL"])
def test_a_balanced_loss_needs_a_link(link):
    sentence = f"^links has 'balanced:{link}', which must be balanced:LINK with a link, got '{link}'\\.$"
    with pytest.raises(ValueError, match=sentence):
        parse_links(f"free,balanced:{link}")


@pytest.mark.parametrize("pairs", [False, True])
def test_the_balanced_loss_is_the_functions(pairs):
    a, b, ids = torch.randn(6, 5), torch.randn(6, 5), torch.arange(6) // 2
    found = make_link("balanced:0.5", pairs=pairs)(a, b, ids=ids)
    loss = partial(info_nce, symmetric=True) if pairs else nt_xent
    assert torch.equal(found, loss(a, b, ids=ids, link=0.5, balanced=True))


def test_a_link_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_links.py").write_text(
        "from taufree import Link, Temperature\n"
        "class Warm(Temperature):\n    def __init__(self): super().__init__(2.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert parse_links("own_links:Warm,free,own_links:Warm") == ("own_links:Warm", "free")
    assert make_link("own_links:Warm").tau == 2.0
    assert make_link("own_links:Warm") is not make_link("own_links:Warm")


def test_a_scheme_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_schemes.py").write_text(
        "from taufree import LogOdds\nfrom taufree.baselines import Scheme\n"
        "class Numbered(Scheme):\n"
        "    needs = frozenset({'index'})\n"
        "    def __init__(self, samples, pairs=False):\n"
        "        super().__init__(LogOdds(), pairs=pairs)\n"
        "        self.samples = samples\n"
        "    def forward(self, view_a, view_b, index):\n"
        "        return self._decoupled(view_a, view_b, index, self.link).mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert parse_links("own_schemes:Numbered,free") == ("own_schemes:Numbered", "free")
    made = make_link("own_schemes:Numbered", samples=7, pairs=True)
    assert isinstance(made, baselines.Scheme)
    assert (made.samples, made.pairs) == (7, True)
    assert link_names.scheme_needs("own_schemes:Numbered") == {"index"}
    assert describe("own_schemes:Numbered") == "own_schemes:Numbered"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent_module:Warm", "gave ModuleNotFoundError: No module named 'absent_module'."),
        ("math:Warm", "gave AttributeError: module 'math' has no attribute 'Warm'."),
        ("taufree:Temperature", "gave TypeError: "),  # it needs a tau
        ("taufree:Link", "gave NotImplementedError: Link must define logit(cosine, gap, rise)."),
        ("math:pi", "gave TypeError: 'float' object is not callable."),
        ("collections:OrderedDict", "or a taufree.baselines.Scheme, got OrderedDict."),
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


def test_schemes_by_name_with_settings_of_their_own():
    names = parse_links("macl, macl:alpha=0.30:tau0=0.1,dual:tau=2e-1,isogclr:rho=1,cauchy")
    assert names == ("macl", "macl:tau0=0.1:alpha=0.3", "dual:tau=0.2", "isogclr:rho=1", "cauchy")
    assert [link_names.temperature_of(name) for name in names] == [None] * 5
    assert [link_names.link_source(name) for name in names] == [None] * 5
    made = make_link("macl:tau0=0.1:alpha=0.3", pairs=True)
    assert (made.link.tau0, made.link.alpha, made.pairs) == (0.1, 0.3, True)
    assert make_link("isogclr", samples=7, pairs=True).tau.shape == (2, 7)
    assert set(link_names.SCHEMES.values()) <= set(baselines.__all__)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "macl:beta=1",
            "links has 'macl:beta=1', but macl takes tau0=NUMBER and alpha=NUMBER and a0=NUMBER, "
            "got 'beta=1'.",
        ),
        (
            "dual:tau=low",
            "links has 'dual:tau=low', but dual takes tau=NUMBER and between=NUMBER, got 'tau=low'.",
        ),
        ("pps:tau=1", "links has 'pps:tau=1', but pps takes no settings, got 'tau=1'."),
        ("dystress:low=-1", "links has 'dystress:low=-1': low must be a positive number, got -1.0."),
    ],
)
def test_settings_that_a_scheme_does_not_have_get_one_sentence(name, sentence):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse_links(name)
    assert str(error.value) == sentence


def test_the_names_are_those_of_the_losses():
    """Written twice, since those of the losses need torch."""
    assert {name: made.__name__ for name, made in named.NAMED_LINKS.items()} == link_names.NAMED_LINKS
