"""Recalls against sorting by hand, and what equal cosines and many rows do."""

import pytest
import torch
from torch.nn.functional import normalize

from taufree.experiments.evaluation import retrieval
from taufree.experiments.evaluation.retrieval import recalls


def by_sorting(images, texts, owner):
    cosine = normalize(images, dim=-1) @ normalize(texts, dim=-1).T
    found = {}
    for k in (1, 5, 10):
        nearest = cosine.argsort(1, descending=True)[:, :k]
        hits = [bool((owner[row] == i).any()) for i, row in enumerate(nearest)]
        found[f"i2t_r{k}"] = 100 * sum(hits) / len(hits)
        nearest = cosine.T.argsort(1, descending=True)[:, :k]
        hits = [bool((row == own).any()) for row, own in zip(nearest, owner, strict=True)]
        found[f"t2i_r{k}"] = 100 * sum(hits) / len(hits)
    return {"rsum": sum(found.values()), **found}


@pytest.mark.parametrize("rows", [7, 1024])
def test_recalls_are_those_of_sorting(rows, monkeypatch):
    monkeypatch.setattr(retrieval, "ROWS_PER_CHUNK", rows)
    torch.manual_seed(0)
    owner = torch.arange(30).repeat_interleave(torch.randint(1, 6, (30,)))
    images = torch.randn(30, 8)
    texts = images[owner] + 1.5 * torch.randn(len(owner), 8)
    found = recalls(images, texts, owner)
    assert found == pytest.approx(by_sorting(images, texts, owner))
    assert 0 < found["i2t_r1"] < found["i2t_r10"] < 100
    assert 0 < found["t2i_r1"] < found["t2i_r10"] < 100


def test_the_best_is_600_and_vectors_that_are_all_the_same_find_nothing():
    owner = torch.arange(20).repeat_interleave(5)
    assert recalls(torch.eye(20), torch.eye(20)[owner], owner)["rsum"] == 600
    assert recalls(torch.ones(20, 4), torch.ones(100, 4), owner)["rsum"] == 0
