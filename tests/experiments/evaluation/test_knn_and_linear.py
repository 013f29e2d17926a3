"""kNN and linear probe on features whose answers are known."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import normalize

from taufree.experiments.evaluation import knn_and_linear as evaluation
from taufree.experiments.evaluation.knn_and_linear import knn_accuracy, knn_distance, linear_accuracy, nearest


def at(*degrees):
    angle = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def test_nearest_neighbour_counts_shares():
    bank, labels = at(0.0, 90.0), torch.tensor([0, 1])
    share = knn_accuracy(bank, labels, at(10.0, 80.0, 20.0, 30.0), torch.tensor([0, 1, 1, 0]), k=1)
    assert share == 75.0


def test_a_near_neighbour_outvotes_two_far_ones():
    bank, labels = at(0.0, 80.0, 85.0), torch.tensor([0, 1, 1])
    query = at(5.0)
    assert knn_accuracy(bank, labels, query, torch.tensor([0]), k=3, tau=0.1) == 100.0
    # With almost equal weights the majority wins instead.
    assert knn_accuracy(bank, labels, query, torch.tensor([1]), k=3, tau=100.0) == 100.0


def test_length_of_features_and_too_large_k_do_not_matter():
    bank, labels = at(0.0, 90.0) * torch.tensor([[100.0], [0.01]]), torch.tensor([0, 1])
    assert knn_accuracy(bank, labels, at(60.0), torch.tensor([1]), k=50) == 100.0


def test_linear_probe_separates_what_a_line_separates():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 3, generator=generator)
    labels = (features @ torch.tensor([1.0, -2.0, 0.5]) > 0).long()
    assert linear_accuracy(features[:150], labels[:150], features[150:], labels[150:]) >= 94
    flipped = linear_accuracy(features[:150], labels[:150], features[150:], 1 - labels[150:])
    assert flipped == pytest.approx(
        100 - linear_accuracy(features[:150], labels[:150], features[150:], labels[150:])
    )


def test_the_linear_probe_is_scikit_learns():
    torch.manual_seed(0)
    labels, truth = torch.arange(600) % 4, torch.arange(300) % 4
    scale = torch.tensor([1.0, 100.0, 0.01, 1.0, 1.0, 0.0])
    bank, features = ((torch.randn(len(x), 6) + 0.8 * torch.eye(4, 6)[x]) * scale for x in (labels, truth))
    scaler = StandardScaler().fit(bank.double().numpy())
    probe = LogisticRegression().fit(scaler.transform(bank.double().numpy()), labels.numpy())
    expected = 100 * probe.score(scaler.transform(features.double().numpy()), truth.numpy())
    # Both stop a little before the optimum, where a row on the boundary may fall to either side.
    assert linear_accuracy(bank, labels, features, truth) == pytest.approx(expected, abs=100 / 300 + 1e-6)
    assert 40 < expected < 80


def test_the_linear_probe_of_two_classes_is_scikit_learns_with_half_the_penalty():
    rows, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[: len(rows) // 2], order[len(rows) // 2 :]
    scaled = StandardScaler().fit(rows[train]).transform(rows)
    half, whole = (
        100 * LogisticRegression(C=c).fit(scaled[train], labels[train]).score(scaled[test], labels[test])
        for c in (2, 1)
    )
    parts = [torch.from_numpy(x[part]) for part in (train, test) for x in (rows, labels)]
    assert linear_accuracy(*parts) == pytest.approx(half)
    assert half != whole


def test_knn_is_lightlys_whatever_the_number_of_rows_at_a_time(monkeypatch):
    torch.manual_seed(0)
    labels, truth = torch.arange(90) % 3, torch.arange(50) % 3
    bank, features = (torch.randn(len(x), 6) + 0.8 * torch.eye(3, 6)[x] for x in (labels, truth))
    lightly = pytest.importorskip("lightly.utils.benchmarking", reason="lightly is not installed")
    found = lightly.knn_predict(normalize(features), normalize(bank).T, labels, num_classes=3, knn_k=20)[:, 0]
    expected = 100 * (found == truth).double().mean().item()
    assert 30 < expected < 95
    for rows in (1024, 7):
        monkeypatch.setattr(evaluation, "ROWS_PER_CHUNK", rows)
        assert knn_accuracy(bank, labels, features, truth, k=20) == pytest.approx(expected)


def test_nearest_are_the_highest_cosines():
    bank = torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, -1.0], [-1.0, 0.0]])
    assert nearest(bank, torch.tensor([[2.0, 1.0], [-1.0, -1.1]]), 2).tolist() == [[1, 0], [2, 3]]


def test_knn_distances_are_those_between_unit_vectors(monkeypatch):
    torch.manual_seed(0)
    bank, features = torch.randn(30, 5) * torch.rand(30, 1), 7 * torch.randn(20, 5)
    gaps = torch.cdist(normalize(features).double(), normalize(bank).double()).square().sort(dim=1).values
    for rows in (1024, 6):
        monkeypatch.setattr(evaluation, "ROWS_PER_CHUNK", rows)
        assert torch.allclose(knn_distance(bank, features, k=2).double(), gaps[:, :2].sum(1), atol=1e-5)
    assert torch.allclose(knn_distance(bank, features, k=50).double(), gaps.sum(1), atol=1e-4)
