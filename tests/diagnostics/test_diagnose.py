"""A diagnosis of embeddings: counts, shares, labels, degenerate rows, advice, and bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import normalize

from taufree import CalibratedLogOdds, FittedLogOdds, info_nce
from taufree.diagnostics import anchors
from taufree.diagnostics.anchors import blocks, measure, schemes
from taufree.diagnostics.diagnose import diagnose
from taufree.diagnostics.diagnosis import Diagnosis
from taufree.diagnostics.theory.closed_forms import free_scale, temperature_scale
from tests.support.comparison import noisy_pairs as pairs


def scheme(d: Diagnosis, name: str) -> Any:
    return next(scheme for scheme in d.schemes if scheme.name == name)


def test_diagnose_gives_the_closed_forms_for_two_opposite_pairs() -> None:
    c = 0.6
    first = np.array([[1.0, 0.0], [-1.0, 0.0]])
    second = np.array([[c, 0.8], [-c, 0.8]])
    found = diagnose(first, second, taus=[0.25])
    assert found.positive_mean == pytest.approx(c)
    assert found.negative_mean == pytest.approx(-c)
    assert scheme(found, "tau=0.25").scale["50%"] == pytest.approx(temperature_scale(c, 0.25), rel=1e-5)
    assert scheme(found, "free").scale["50%"] == pytest.approx(free_scale(c), rel=1e-3)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pairs(rows=70)
    labels = torch.arange(70) % 6
    expected = [diagnose(first, second), diagnose(first, labels=labels)]
    for name, size in (("_PRODUCT_SIZE", 70 * 9), ("_CACHE_SIZE", 70 * 4), ("_PIECE_ROWS", 11)):
        monkeypatch.setattr(anchors, name, size)
    found = [diagnose(first, second), diagnose(first, labels=labels)]
    for one, other in zip(expected, found, strict=True):
        assert one.negative_counts == other.negative_counts
        assert one.negative_mean == pytest.approx(other.negative_mean, rel=1e-4)
        for a, b in zip(one.schemes, other.schemes, strict=True):
            assert a.scale == pytest.approx(b.scale, rel=1e-4)
            assert a.hardest == pytest.approx(b.hardest, rel=1e-4)


def test_cosines_are_counted_once_each() -> None:
    first, second = pairs()
    found = diagnose(first, second)
    cosine = (normalize(first.double()) @ normalize(second.double()).T).numpy()
    off = ~np.eye(40, dtype=bool)
    edges = found.to_dict()["cosine_edges"]
    assert sum(found.positive_counts) == 40
    assert sum(found.negative_counts) == 40 * 39
    assert np.abs(np.subtract(found.negative_counts, np.histogram(cosine[off], edges)[0])).sum() <= 2
    assert found.positive_counts == np.histogram(cosine.diagonal(), edges)[0].tolist()
    assert found.positive_mean == pytest.approx(cosine.diagonal().mean(), rel=1e-5)
    assert found.negative_mean == pytest.approx(cosine[off].mean(), abs=1e-6)
    assert found.effective_dimension == pytest.approx(1 / (cosine[off] ** 2).mean(), rel=1e-5)
    assert found.non_optimal == (cosine.diagonal() < 0.95).mean()
    assert found.ranked_first == (cosine.argmax(1) == np.arange(40)).mean()
    assert (found.chance_first, found.chance_loss) == pytest.approx((1 / 40, np.log(40)))
    loss = torch.nn.functional.cross_entropy(torch.tensor(cosine) / 0.25, torch.arange(40))
    assert scheme(found, "tau=0.25").loss == pytest.approx(loss.item(), rel=1e-5)


def test_shares_are_what_they_are_defined_as() -> None:
    first, second = pairs(rows=200, dimensions=64, noise=0.35)
    found = diagnose(first, second, taus=[0.05])
    block = next(blocks(first, second, torch.arange(200), torch.arange(200)))
    seen = measure(schemes([0.05]).values(), block)
    room = seen.cosine < 0.95
    assert 0 < room.sum() < 200
    for number, part in enumerate((scheme(found, "free"), scheme(found, "tau=0.05"))):
        gone = seen.scale[number] < 0.01 * seen.chance[number]
        assert part.vanished == pytest.approx((gone & room).sum().item() / room.sum().item())
        assert sum(value is not None for value in part.by_cosine) == sum(n > 0 for n in found.positive_counts)
    assert scheme(found, "tau=0.05").vanished > 0.2
    assert scheme(found, "free").vanished == 0


def test_only_anchors_are_sampled() -> None:
    first, second = pairs(rows=300)
    found = diagnose(first, second, sample=20, seed=3)
    assert (found.anchors, found.eligible, found.negatives) == (20, 300, 299)
    assert "Looked at 20 of 300 anchors (drawn at random, seed 3)" in found.summary()[0]
    assert found == diagnose(first, second, sample=20, seed=3)
    assert found.positive_mean != diagnose(first, second, sample=20, seed=4).positive_mean


def test_labels() -> None:
    first, second = pairs(rows=30)
    labels = np.array([7] * 10 + [-1] * 18 + [3, 4])
    found = diagnose(first, labels=labels)
    assert (found.eligible, found.labelled) == (28, True)
    assert found.positives == pytest.approx((10 * 9 + 18 * 17) / 28)
    assert found.negatives == pytest.approx((10 * 20 + 18 * 12) / 28)
    assert sum(found.positive_counts) == 10 * 9 + 18 * 17
    both = diagnose(first, second, labels=torch.tensor(labels))
    assert (both.eligible, sum(both.positive_counts)) == (30, 100 + 18 * 18 + 2)
    # Labels that are all different make no difference to pairs.
    assert diagnose(first, second, labels=np.arange(30)).schemes == diagnose(first, second).schemes


def test_copies_and_zero_rows_are_counted() -> None:
    first, second = pairs(rows=20)
    second[4] = second[3]  # a copy of the positive of 3, and of 4
    first[9] = first[8]
    second[11] = first[10]  # a copy of anchor 10 among its negatives
    second[12] = first[12]  # its own match: nothing wrong
    first[15], first[16] = 0.0, -0.0
    found = diagnose(first, second)
    assert found.duplicates == {"first": 2, "second": 2, "across": 1, "false_negatives": 3}
    assert found.zero_rows == {"first": 2, "second": 0}
    assert any("copy" in line and "negatives: 3" in line and " ids " in line for line in found.summary())
    assert any("all zero: 2." in line for line in found.summary())

    first[1] = first[0]
    first[3] = first[2]
    labels = np.arange(20) // 2
    labels[2] = 0  # rows 2 and 3 are equal and have different labels
    labelled = diagnose(first, labels=labels)
    assert labelled.duplicates == {"first": 6, "false_negatives": 2}
    assert any("check their labels" in line for line in labelled.summary())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.ones((5, 3)), np.ones((5, 3))),
        (np.ones((5, 3)), -np.ones((5, 3))),
        (np.zeros((5, 3)), np.zeros((5, 3))),
        (np.eye(5), -np.eye(5)),
        (np.full((2, 1), 1e300), np.full((2, 1), -1e-300)),
    ],
    ids=["equal", "opposite", "zero", "own opposite", "extreme"],
)
def test_nothing_is_infinite_on_degenerate_rows(first: np.ndarray, second: np.ndarray) -> None:
    for found in (
        diagnose(first, second, taus=[0.001, 0.05, 1.0]),
        diagnose(np.concatenate([first, second]), labels=np.arange(2 * len(first)) % 2),
    ):
        json.dumps(found.to_dict(), allow_nan=False)


@settings(max_examples=30, deadline=None)
@given(
    arrays(np.float32, (6, 2), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)),
    arrays(np.float32, (6, 2), elements=st.sampled_from([-1.0, 0.0, 1.0])),
)
def test_any_finite_rows_give_finite_numbers(first: np.ndarray, second: np.ndarray) -> None:
    found = diagnose(first, second, taus=[0.01, 1.0])
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["schemes"][-2]["name"] == "tau=0.01"
    assert sum(found.negative_counts) == 30
    assert all(0 <= part.hardest <= 1 + 1e-6 and 0 <= part.vanished <= 1 for part in found.schemes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scale_and_dtype_do_not_matter(dtype: torch.dtype) -> None:
    first, second = (view.to(dtype) for view in pairs())
    expected = diagnose(first.float(), second.float())
    factor = {torch.float16: 0.25, torch.bfloat16: 2.0**100, torch.float64: 2.0**900}[dtype]
    found = diagnose(first.requires_grad_() * factor, second / factor)
    assert found.negative_counts == expected.negative_counts
    assert scheme(found, "free").scale == pytest.approx(scheme(expected, "free").scale, rel=1e-3)


def test_numpy_arrays_of_every_kind_are_taken() -> None:
    first, second = (view.numpy() for view in pairs())
    expected = diagnose(first, second)
    locked = first.copy()
    locked.flags.writeable = False
    for same in (locked, first[::-1][::-1], np.asfortranarray(first), first.astype(">f4")):
        assert diagnose(same, second) == expected
    assert diagnose(first.astype(np.longdouble), second).negative_counts == expected.negative_counts


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    diagnose(*pairs())
    assert torch.get_num_threads() == before


def test_trained_embeddings_are_not_judged_by_vanished_gradients() -> None:
    first, second = pairs(rows=64, dimensions=64, noise=0.5)
    found = diagnose(first, second)
    assert found.state == "ahead"
    assert scheme(found, "tau=0.05").vanished > 0.9
    assert scheme(found, "free").vanished == 0
    text = str(found)
    assert "The positives are ahead, as in a trained model: for 100.0% of the anchors" in text
    assert "no argument against a link here" in text
    for word in ("hardly train", "copy", "zero", "collapsed", "Try first", "resolution"):
        assert word not in text


def test_untrained_embeddings_are_told_apart() -> None:
    first, second = torch.randn(2, 300, 32, generator=torch.Generator().manual_seed(0))
    found = diagnose(first, second)
    assert found.state == "not ahead"
    text = str(found)
    assert "not ahead, as in an untrained model" in text
    assert "check that the rows belong together in this order" in text
    assert "no argument against" not in text
    halfway = diagnose(first, first + 3 * second)
    assert halfway.state == "partly ahead"
    assert "as far as so few anchors tell" in str(diagnose(first[:3], first[:3]))
    labelled = diagnose(first, labels=torch.arange(300) % 5)
    assert labelled.state == "not ahead"
    assert "check that these are the rows' labels" in str(labelled)


@pytest.mark.parametrize("rows", [2, 50, 131, 200])
def test_equal_rows_are_at_chance_and_collapsed(rows: int) -> None:
    found = diagnose(np.full((rows, 7), 0.3), np.full((rows, 7), 0.3))
    assert found.ranked_first == pytest.approx(1 / rows)
    assert (found.state, found.collapsed, found.fitted_gain) == ("not ahead", True, 1)
    text = str(found)
    assert "Fitted would stay at gain 1" in text
    assert "find out why nearly all rows point the same way" in text
    assert "untrained" not in text


def test_a_resolution_that_is_felt_is_named() -> None:
    many = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    text = str(diagnose(many, many, sample=100))
    assert "a smaller LogOdds(resolution=...)" in text


def test_what_is_printed_has_every_link_the_question_and_what_to_try() -> None:
    found = diagnose(*pairs(rows=100, dimensions=16), taus=[0.01, 0.07])
    assert [part.name for part in found.schemes] == ["free", "calibrated", "fitted", "tau=0.01", "tau=0.07"]
    lines = str(found).splitlines()
    for part, row in zip(found.schemes, found.table(), strict=True):
        (line,) = [line for line in lines if line.startswith(f"{part.title} ")]
        assert line.split()[-4:] == [row[name] for name in list(row)[-4:]]
    assert f"Fitted would choose the gain {found.fitted_gain:.3g}" in str(found)
    question, *tries = found.advice()
    assert lines[-len(tries) - 1 :] == [question, *tries]
    assert "What are the vectors for?" in question
    assert any("LogOdds()" in line for line in tries)
    assert any("FittedLogOdds()" in line for line in tries)


def test_gains_are_those_of_the_links() -> None:
    draw = np.random.default_rng(0)
    first = torch.tensor(draw.standard_normal((500, 39)))
    second = first + torch.tensor(draw.standard_normal((500, 39)))
    found = diagnose(first, second)
    assert found.effective_dimension == pytest.approx(39, rel=0.03)
    link = CalibratedLogOdds()
    info_nce(first, second, link=link)
    assert scheme(found, "calibrated").gain == pytest.approx(link.gain, rel=1e-2)
    assert scheme(found, "fitted").gain == found.fitted_gain
    link = FittedLogOdds()
    for _ in range(20):
        info_nce(first, second, link=link)
    assert 0.7 < link.gain / found.fitted_gain < 1.05  # it stops a standard error before the minimum
    assert scheme(found, "fitted").temperature == pytest.approx(1 / (2 * found.fitted_gain))
    losses = {part.name: part.loss for part in found.schemes}
    assert losses["fitted"] < min(losses["free"], losses["calibrated"])
    narrow = diagnose(draw.standard_normal((50, 39)) + 5, draw.standard_normal((50, 39)) + 5)
    assert 1 <= narrow.effective_dimension < 1.2
    assert scheme(narrow, "calibrated").gain == pytest.approx(1)
    assert diagnose(np.eye(4, 8), np.eye(4, 8)).effective_dimension == 8  # orthogonal: no more than there are


def test_to_dict_holds_everything_json_needs() -> None:
    found = diagnose(*pairs()).to_dict()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    assert again["schemes"][0]["tau"] is None
    assert len(again["cosine_edges"]) == len(again["positive_counts"]) + 1
    assert again["state"] == "ahead"
    assert "below 1% of the one at chance" in again["definitions"]["vanished"]


A, B = (view.numpy() for view in pairs(rows=4))
BAD = np.array(A)
BAD[2, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"first": A}, ValueError, "second or labels must be given"),
        (
            {"first": A.tolist(), "second": B},
            TypeError,
            "first must be a numpy array or a torch tensor, got list",
        ),
        (
            {"first": A, "second": B.astype(int)},
            TypeError,
            "second must hold floating-point numbers, got int64",
        ),
        ({"first": A[0], "second": B}, ValueError, r"first must be rows x dimensions .* got shape \(8,\)"),
        (
            {"first": A[:1], "second": B[:1]},
            ValueError,
            r"first must .* at least two rows, got shape \(1, 8\)",
        ),
        ({"first": A[:, :0], "second": B[:, :0]}, ValueError, r"got shape \(4, 0\)"),
        (
            {"first": A, "second": B[:3]},
            ValueError,
            r"second must have the shape of first, \(4, 8\), got \(3, 8\)",
        ),
        ({"first": A, "second": BAD}, ValueError, "second must be finite, but row 2 holds NaN"),
        ({"first": A, "labels": np.arange(3)}, ValueError, r"labels must be 4 integers, .* shape \(3,\)"),
        ({"first": A, "labels": np.ones(4)}, ValueError, "labels must be 4 integers, one a row, got float64"),
        (
            {"first": A, "labels": np.ones(4, int)},
            ValueError,
            "labels must hold at least two different values",
        ),
        ({"first": A, "labels": np.arange(4)}, ValueError, "labels must give some label to two rows"),
        ({"first": A, "second": B, "sample": 0}, ValueError, "sample must be at least 1, got 0"),
        ({"first": A, "second": B, "taus": [0.1, -1.0]}, ValueError, "tau must be a positive number"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        diagnose(**arguments)
