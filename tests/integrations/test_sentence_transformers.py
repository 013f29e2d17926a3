"""The ranking losses: with a scale they are the library's, without the same on log-odds."""

import inspect
import itertools
import json
import runpy
import sys

import pytest
import torch
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses

import taufree
from examples.sentences import main, sentences, tiny_model
from taufree import CalibratedLogOdds, FittedTemperature, LearnableTemperature, LogOdds, Temperature
from taufree.integrations import sentence_transformers as integration
from taufree.integrations.sentence_transformers import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
    temperature_free,
)
from tests.support.largest import Largest

EXTRA = ("query_to_query", "doc_to_query", "doc_to_doc")
DIRECTIONS = [
    ("query_to_doc", *extra) for count in range(4) for extra in itertools.combinations(EXTRA, count)
]
MODES = ("in_batch_negatives", "hard_negatives", "all_negatives")
PLAIN = [{"directions": directions} for directions in DIRECTIONS]
PLAIN += [
    {"directions": DIRECTIONS[2], "partition_mode": "per_direction"},
    {"partition_mode": "per_direction"},
]
HARDER = [
    {"directions": directions, "hardness_mode": mode, "hardness_strength": 3.0}
    for directions, mode in itertools.product((DIRECTIONS[0], DIRECTIONS[-1]), MODES)
]


def each(settings):
    return pytest.mark.parametrize("settings", settings, ids=lambda x: "-".join(map(str, x.values())))


each_width = pytest.mark.parametrize("columns", [2, 4], ids=["pairs", "two hard negatives"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = tiny_model(tmp_path_factory.mktemp("model"), " ".join(map(" ".join, sentences())).split())
    return made.eval()  # without dropout


def columns_of(count, n=9, d=6):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(n, d, generator=draw).requires_grad_() for _ in range(count)]


def agree(found, expected, inputs):
    torch.testing.assert_close(found, expected.to(found), rtol=1e-5, atol=1e-5)
    pairs = zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@each(PLAIN + HARDER)
@each_width
def test_with_a_scale_it_is_the_librarys(model, settings, columns):
    embeddings = columns_of(columns)
    found = MultipleNegativesRankingLoss(model, 20.0, **settings)
    expected = losses.MultipleNegativesRankingLoss(model, 20.0, **settings)
    agree(*(x.compute_loss_from_embeddings(embeddings, None) for x in (found, expected)), embeddings)


def test_any_other_link_may_be_set(model):
    embeddings = columns_of(2)
    found, expected = MultipleNegativesRankingLoss(model), MultipleNegativesRankingLoss(model, 20.0)
    found.link = Temperature(1 / 20)
    agree(*(x.compute_loss_from_embeddings(embeddings, None) for x in (found, expected)), embeddings)
    found.link = CalibratedLogOdds()
    assert found.compute_loss_from_embeddings(embeddings, None).isfinite()
    assert found.link.gain > 1
    assert "CalibratedLogOdds" in found.get_config_dict()["link"]


@pytest.mark.parametrize("columns", [2, 3])
def test_a_link_is_measured_and_kept_in_range_for_any_directions(model, columns):
    plain, other = MultipleNegativesRankingLoss(model), MultipleNegativesRankingLoss(model, **HARDER[0])
    for loss in (plain, other):
        loss.link = CalibratedLogOdds()
        loss.compute_loss_from_embeddings(columns_of(columns), None)
    assert other.link.moment == plain.link.moment < 1
    other.link = LearnableTemperature(max_scale=20.0)
    with torch.no_grad():
        other.link.log_scale.fill_(9.0)
    other.compute_loss_from_embeddings(columns_of(columns), None)
    assert other.link.log_scale.exp().item() == pytest.approx(20.0)


def test_a_cached_loss_refuses_to_learn_a_link(model):
    loss = CachedMultipleNegativesRankingLoss(model)
    loss.link = LearnableTemperature()
    chunks = [[column] for column in columns_of(2)]
    with pytest.raises(ValueError, match=r"^link must have nothing to learn .* got LearnableTemperature"):
        loss.calculate_loss(chunks, with_backward=True)
    loss.link.requires_grad_(False)
    loss.calculate_loss(chunks, with_backward=True)
    assert chunks[0][0].grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"])
def test_a_scale_that_is_set_later_is_the_librarys(model, name):
    embeddings = columns_of(2)
    kinds = getattr(integration, name)(model), getattr(losses, name)(model, 20.0)
    values = []
    for loss in kinds:
        loss.scale = 5.0
        cached = name.startswith("Cached")
        values.append(
            loss.calculate_loss([[x] for x in embeddings])
            if cached
            else loss.compute_loss_from_embeddings(embeddings, None)
        )
    agree(*values, embeddings)
    kinds[0].scale = None
    assert isinstance(kinds[0].link, FittedTemperature)
    with pytest.raises(ValueError, match=r"^scale must be a positive number, got -1\.$"):
        kinds[0].scale = -1
    assert kinds[0].scale is None


def log_odds(a, b):
    return LogOdds()(util.cos_sim(a.double(), b.double()))


@each(PLAIN)
@each_width
def test_without_it_is_the_librarys_on_log_odds(model, settings, columns):
    embeddings = columns_of(columns)
    found = MultipleNegativesRankingLoss(model, link="free", **settings)
    expected = losses.MultipleNegativesRankingLoss(model, 1.0, log_odds, **settings)
    agree(*(x.compute_loss_from_embeddings(embeddings, None) for x in (found, expected)), embeddings)


def test_hardness_adds_the_cosine_to_the_log_odds_of_negatives(model):
    query, doc, *hard = columns_of(3)
    settings = {"hardness_mode": "all_negatives", "hardness_strength": 2.0}
    found = MultipleNegativesRankingLoss(model, link="free", **settings)
    cosine = util.cos_sim(query.double(), torch.cat([doc, *hard]).double())
    own = torch.eye(9, 18, dtype=torch.bool)
    logits = LogOdds()(cosine) + 2 * cosine.detach() * ~own
    expected = (logits.logsumexp(1) - logits[own]).mean()
    agree(found.compute_loss_from_embeddings([query, doc, *hard], None), expected, [query, doc, *hard])


@pytest.mark.parametrize("link", ["free", LearnableTemperature(0.2), CalibratedLogOdds()], ids=str)
@pytest.mark.parametrize("partition", ["joint", "per_direction"])
@pytest.mark.parametrize("directions", [DIRECTIONS[0], DIRECTIONS[2]], ids=["forward", "both"])
@pytest.mark.parametrize("mode", MODES)
@each_width
def test_hardness_by_the_core_is_that_of_all_pairs(model, link, partition, directions, mode, columns):
    settings = {"partition_mode": partition, "hardness_mode": mode, "hardness_strength": 3.0}
    loss = MultipleNegativesRankingLoss(model, link=link, directions=directions, **settings)
    embeddings = columns_of(columns)
    found = loss.compute_loss_from_embeddings(embeddings, None)
    query, *docs = embeddings
    expected = integration._dense(loss, query, docs, loss.link)
    learned = [*embeddings, *loss.link.parameters()]
    agree(found, expected, learned)


def test_another_similarity_is_the_librarys(model):
    embeddings = columns_of(3)
    options = {"scale": 1.0, "similarity_fct": util.dot_score}
    both = (
        kind(model, **options) for kind in (MultipleNegativesRankingLoss, losses.MultipleNegativesRankingLoss)
    )
    agree(*(x.compute_loss_from_embeddings(embeddings, None) for x in both), embeddings)
    for kind in (MultipleNegativesRankingLoss, CachedMultipleNegativesRankingLoss):
        with pytest.raises(ValueError, match=r"^scale must be a positive number, got 0\.$"):
            kind(model, scale=0)
        with pytest.raises(TypeError, match=r"^scale must be a positive number, got str\.$"):
            kind(model, scale="20")
    with pytest.raises(ValueError, match="similarity_fct must be cos_sim without a scale"):
        MultipleNegativesRankingLoss(model, similarity_fct=util.dot_score)


def tokens(model, columns, n=10):
    texts = list(itertools.chain(*sentences()))
    return [dict(model.tokenize(texts[i * n : i * n + n])) for i in range(columns)]


@pytest.mark.parametrize("scale", [None, 20.0])
@pytest.mark.parametrize("settings", [PLAIN[0], PLAIN[2], HARDER[-1]], ids=["forward", "both", "hardness"])
def test_the_cached_loss_is_the_same(model, scale, settings):
    kinds = (
        CachedMultipleNegativesRankingLoss(model, scale, mini_batch_size=4, **settings),
        MultipleNegativesRankingLoss(model, scale, **settings),
    )
    found = []
    for loss in kinds:
        model.zero_grad()
        value = loss(tokens(model, 3), None)
        value.backward()
        with torch.no_grad():
            assert loss(tokens(model, 3), None).item() == pytest.approx(value.item(), rel=1e-5)
        found.append([value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_the_cached_loss_with_another_similarity_is_the_librarys(model):
    reps = [list(x.split(4)) for x in columns_of(2)]
    kinds = (CachedMultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss)
    one, other = (kind(model, 1.0, util.dot_score).calculate_loss(reps) for kind in kinds)
    torch.testing.assert_close(one, other)


def test_inside_a_matryoshka_loss(model):
    loss = losses.MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [64, 16])
    features = tokens(model, 2)
    found = loss(tokens(model, 2), None)
    whole = [model(x)["sentence_embedding"] for x in features]
    plain = MultipleNegativesRankingLoss(model)
    expected = sum(plain.compute_loss_from_embeddings([x[:, :d] for x in whole], None) for d in (64, 16))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [MultipleNegativesRankingLoss, CachedMultipleNegativesRankingLoss])
def test_it_says_what_it_is(model, kind):
    free, scaled = kind(model, directions=DIRECTIONS[2]), kind(model, scale=20.0)
    config = json.loads(json.dumps(free.get_config_dict()))
    assert config["scale"] is None
    assert config["link"] == "FittedTemperature(tau=0.5)"
    assert config["directions"] == list(DIRECTIONS[2])
    assert (free.temperature, scaled.temperature) == (None, 0.05)
    assert scaled.get_config_dict()["link"] == "Temperature(tau=0.05)"
    assert "kim2025temperaturefree" in free.citation
    theirs = getattr(losses, kind.__name__)(model, scale=20.0)
    assert scaled.citation == theirs.citation
    assert free.citation.startswith(getattr(losses, kind.__name__)(model, directions=DIRECTIONS[2]).citation)
    assert scaled.get_config_dict().items() >= theirs.get_config_dict().items()


@pytest.mark.parametrize("name", ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"])
def test_the_twin_keeps_model_and_settings(model, name):
    settings = {**HARDER[-1], "gather_across_devices": True}
    if name.startswith("Cached"):
        settings |= {"mini_batch_size": 7, "show_progress_bar": True}
    loss = getattr(losses, name)(model, scale=30.0, **settings)
    for twin in (
        temperature_free(loss),
        temperature_free(getattr(integration, name)(model, 30.0, **settings)),
    ):
        assert type(twin) is getattr(integration, name)
        assert twin.model is model
        assert twin.scale is None
        assert {key: getattr(twin, key) for key in settings} == settings
    twin.link = CalibratedLogOdds()
    assert isinstance(temperature_free(twin).link, CalibratedLogOdds)


def test_the_signature_is_the_librarys(model):
    for kind in (MultipleNegativesRankingLoss, CachedMultipleNegativesRankingLoss):
        found = inspect.signature(kind).parameters
        theirs = inspect.signature(getattr(losses, kind.__name__)).parameters
        assert [*found] == [*theirs, "link", "backend"]
        assert {name for name in theirs if found[name] != theirs[name]} == {"scale"}
        assert found["scale"].default is None

    class Mine(MultipleNegativesRankingLoss):
        def __init__(self, model, width):
            super().__init__(model)

    assert [*inspect.signature(Mine).parameters] == ["model", "width"]


@pytest.mark.parametrize("settings", HARDER[:3], ids=MODES)
def test_with_a_scale_some_hardness_is_computed_by_the_library(model, settings):
    embeddings = columns_of(3)
    kinds = MultipleNegativesRankingLoss, losses.MultipleNegativesRankingLoss
    found, expected = (
        kind(model, 20.0, **settings).compute_loss_from_embeddings(embeddings, None) for kind in kinds
    )
    if settings["hardness_mode"] == "all_negatives":  # by the core
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
        return
    assert found == expected  # to the last digit
    with pytest.raises(ValueError, match=r'^backend must be "auto" or "reference" with these directions or'):
        kinds[0](model, 20.0, backend="blockwise", **settings).compute_loss_from_embeddings(embeddings, None)


@pytest.mark.parametrize("name", ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"])
def test_a_twin_of_a_wrapped_loss_is_wrapped(model, name):
    inner = getattr(losses, name)(model, scale=30.0)
    wrapped = losses.MatryoshkaLoss(model, inner, [64, 16], matryoshka_weights=[1.0, 0.5])
    twin = taufree.temperature_free(wrapped, link="free")
    assert type(twin) is losses.MatryoshkaLoss
    assert type(twin.loss) is getattr(integration, name)
    assert twin.model is twin.loss.model is model
    assert inner.scale == 30.0
    expected = losses.MatryoshkaLoss(
        model, getattr(integration, name)(model, link="free"), [64, 16], matryoshka_weights=[1.0, 0.5]
    )
    with torch.no_grad():
        found, expected = (loss(tokens(model, 2), None) for loss in (twin, expected))
        assert found == expected != wrapped(tokens(model, 2), None)
    assert isinstance(temperature_free(wrapped).loss.link, FittedTemperature)
    if name.startswith("Multiple"):
        layers = losses.Matryoshka2dLoss(model, inner, [64, 16])
        twin = temperature_free(layers)
        assert type(twin) is losses.Matryoshka2dLoss
        assert type(twin.loss.loss) is MultipleNegativesRankingLoss
        assert type(layers.loss.loss) is losses.MultipleNegativesRankingLoss
        assert twin(tokens(model, 2), None).isfinite()


def test_what_cannot_be_done_is_said(model):
    with pytest.raises(TypeError, match=r"^loss must be one of Cached.* got CosineSimilarityLoss of"):
        temperature_free(losses.CosineSimilarityLoss(model))
    with pytest.raises(ValueError, match="queries and documents at least, got 1 columns"):
        MultipleNegativesRankingLoss(model).compute_loss_from_embeddings(columns_of(1), None)


@pytest.mark.parametrize(
    ("count", "directions"),
    [(3, ("query_to_doc",)), (3, ("query_to_doc", "doc_to_query")), (2, DIRECTIONS[-1])],
)
@pytest.mark.parametrize("hardness", [0.0, 3.0])
def test_memory_is_linear_in_the_batch(model, count, directions, hardness):
    if hardness and directions == DIRECTIONS[-1]:
        return  # computed on all pairs
    n = 2048
    embeddings = columns_of(count, n=n)
    settings = {"hardness_mode": "all_negatives", "hardness_strength": hardness} if hardness else {}
    loss = MultipleNegativesRankingLoss(model, directions=directions, **settings)
    loss.compute_loss_from_embeddings(embeddings, None)  # whatever is made once and for all
    with Largest() as most:
        loss.compute_loss_from_embeddings(embeddings, None).backward()
    assert most.numel < n * n / 2


def test_the_librarys_trainer_trains_with_it_and_the_model_card_cites_the_paper(tmp_path):
    before, after = main(["--epochs", "2", "--save", str(tmp_path)])
    assert after > max(0.3, 3 * before)
    card = (tmp_path / "README.md").read_text()
    assert "MultipleNegativesRankingLoss" in card
    assert '"link": "FittedTemperature(tau=' in card
    assert "kim2025temperaturefree" in card


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    cure = r'pip install "taufree\[sentence-transformers\]"$'
    with pytest.raises(ModuleNotFoundError, match=f"needs sentence_transformers: {cure}"):
        runpy.run_path(integration.__file__)
