"""kNN and linear probe on features whose answers are known."""

import pytest
import torch

from taufree.experiments.evaluation import knn_accuracy, linear_accuracy


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
