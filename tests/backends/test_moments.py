"""The mean squared cosine of the negatives: against all pairs written down, for every kind of contrast."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from taufree.backends import moments
from taufree.contrast import Contrast
from tests.support.contrasts import contrasts, rows


def by_pairs(contrast):
    """Each anchor's mean over its negatives, from the masks that the reference uses."""
    u = normalize(contrast.anchors, dim=-1)
    squares, counts = [], []
    if contrast.in_batch:
        v = u if contrast.keys is None else normalize(contrast.keys, dim=-1)
        every_pair = range(len(u)), range(len(v))
        cosines = u @ v.T
        left_out = contrast.left_out(*every_pair)
        left_out = torch.zeros_like(cosines, dtype=torch.bool) if left_out is None else left_out
        if contrast.labels is not None:
            left_out = left_out | contrast.same_label(*every_pair)
        squares.append(cosines.square().masked_fill(left_out, 0))
        counts.append(~left_out)
    if contrast.queue is not None:
        cosines = u @ normalize(contrast.queue, dim=-1).T
        left_out = torch.zeros_like(cosines, dtype=torch.bool)
        if contrast.queue_ids is not None:
            left_out = contrast.ids[:, None] == contrast.queue_ids
        squares.append(cosines.square().masked_fill(left_out, 0))
        counts.append(~left_out)
    if contrast.own_negatives is not None:
        own = normalize(contrast.own_negatives, dim=-1)
        squares.append(torch.einsum("nd,nkd->nk", u, own).square())
    counts += [torch.ones_like(x, dtype=torch.bool) for x in squares[len(counts) :]]
    return torch.cat(squares, 1).sum(1) / torch.cat(counts, 1).sum(1)


@pytest.mark.parametrize("name", contrasts(4, 4))
@pytest.mark.parametrize("shape", [(5, 16), (40, 6)])  # fewer and more rows than dimensions
def test_equals_all_pairs(name, shape, monkeypatch):
    contrast = contrasts(*shape)[name]
    each = by_pairs(contrast)
    floor = 1 / shape[1]
    for room in (2**20, 50):  # at once, and some rows at a time
        monkeypatch.setitem(moments.MAX_PAIRS, "cpu", room)
        monkeypatch.setattr(moments, "MAX_NUMBERS", room)
        mean, error = moments.measure(contrast)
        torch.testing.assert_close(mean, each.mean().clamp(min=floor), rtol=1e-12, atol=0)
        torch.testing.assert_close(error, 2 * each.std(correction=0) / math.sqrt(len(each)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_and_autocast_hardly_matter(dtype):
    views = contrasts(64, 16)["views"].anchors.to(dtype)
    expected, _ = moments.measure(Contrast(views.double(), shift=64))
    with torch.autocast("cpu"):
        found, _ = moments.measure(Contrast(views, shift=64))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_random_directions_have_the_dimension_they_are_drawn_in():
    for d in (2, 3, 10, 64):
        mean, error = moments.measure(Contrast(rows(2000, d), shift=1000))
        assert 1 / mean.item() == pytest.approx(d, rel=0.02)
        assert error.item() < 0.02 / d


def test_the_error_is_that_of_repeated_batches():
    """Directions that differ in how typical they are, which makes the mean noisy."""
    weights = torch.arange(1, 17, dtype=torch.float64).rsqrt()
    drawn = [
        moments.measure(Contrast(rows(64, 16, seed=s) * weights, labels=torch.arange(64))) for s in range(300)
    ]
    means, errors = (torch.stack(values) for values in zip(*drawn, strict=True))
    assert errors.mean().item() == pytest.approx(means.std().item(), rel=0.15)


def test_two_views_that_agree_tell_no_more_than_one_but_count_as_two():
    x = rows(64, 16)
    one = moments.measure(Contrast(x, labels=torch.arange(64)))
    two = moments.measure(Contrast(torch.cat([x, x]), shift=64))
    torch.testing.assert_close(two, (one[0], one[1] / math.sqrt(2)))


def test_fewer_than_all_directions_are_no_further_dimensions():
    mean, error = moments.measure(Contrast(torch.eye(8)[:4], torch.eye(8)[:4]))
    assert mean.item() == 1 / 8
    assert error.item() == 0


def test_no_negatives_and_nan_give_nan():
    assert moments.measure(Contrast(rows(2, 3), shift=1))[0].isnan()
    assert moments.measure(Contrast(rows(3, 3), labels=torch.zeros(3, dtype=torch.long)))[0].isnan()
    broken = rows(6, 3)
    broken[2] = math.nan
    assert moments.measure(Contrast(broken, shift=3))[0].isnan()
    assert moments.measure(Contrast(broken.nan_to_num() * 0, shift=3))[0].item() == pytest.approx(
        1 / 3
    )  # zero rows


@pytest.mark.parametrize("name", ["pairs", "ids", "all", "views, ids", "labels"])
def test_rows_of_any_length_and_precision_count_as_directions(name):
    contrast = contrasts(40, 6)[name]
    expected, _ = moments.measure(contrast)
    scale = torch.logspace(-30, 30, len(contrast.anchors), dtype=torch.float64)[:, None]
    whole = {
        part: x.float()
        for part, x in vars(contrast).items()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    }
    stretched = replace(contrast, **{**whole, "anchors": (contrast.anchors * scale).float()})
    found, _ = moments.measure(stretched)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
