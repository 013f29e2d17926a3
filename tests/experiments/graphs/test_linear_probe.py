"""The linear probe: its first step by hand, what it may look at, and how its epoch is chosen."""

import pytest
import torch
from sklearn.metrics import f1_score

from taufree.experiments.graphs.linear_probe import Split, draw_splits, f1_scores, probe_predictions


def data(rows=60):
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 3
    features = torch.randn(rows, 4, generator=draw) + 3 * torch.eye(4)[labels]
    return features, labels, torch.arange(rows // 2)


def test_splits_are_disjoint_share_their_training_rows_and_have_the_sizes_they_claim():
    torch.manual_seed(0)
    train, splits = draw_splits(100)
    sizes = {name: (len(split.validation), len(split.test)) for name, split in splits.items()}
    assert (len(train), sizes) == (10, {"pygcl": (80, 10), "true": (10, 80)})
    for split in splits.values():
        assert torch.cat([train, split.validation, split.test]).sort().values.tolist() == list(range(100))


def test_the_first_epoch_by_hand():
    """Adam's first step moves every weight by the learning rate, against the sign of its gradient."""
    features, labels, train = data()
    torch.manual_seed(0)
    found = probe_predictions(features, labels, train, epochs=1, every=1)
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    torch.nn.init.xavier_uniform_(layer.weight)
    weight = layer.weight.detach()
    chances = (features[train] @ weight.T).softmax(-1)
    error = (chances - torch.eye(3)[labels[train]]) / len(train)
    moved = weight - 0.01 * (error.T @ features[train]).sign()
    bias = -0.01 * error.sum(0).sign()
    assert found.tolist() == [(features @ moved.T + bias).argmax(-1).tolist()]


def test_it_learns_and_reports_every_twentieth_epoch():
    features, labels, train = data()
    torch.manual_seed(0)
    found = probe_predictions(features, labels, train, epochs=500)
    assert found.shape == (25, 60)
    right = (found == labels).double().mean(1)
    assert right[-1] > 0.8 > right[0]


def test_only_the_training_rows_labels_are_looked_at():
    features, labels, train = data()
    lied = labels.clone()
    lied[30:] = 2 - lied[30:]
    found = []
    for some in (labels, lied):
        torch.manual_seed(0)
        found.append(probe_predictions(features, some, train, epochs=100))
    assert torch.equal(*found)


def test_the_epoch_is_chosen_by_validation_alone_and_the_first_of_equals_is_taken():
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    split = Split(torch.tensor([0, 1]), torch.tensor([2, 3, 4, 5]))
    predictions = torch.tensor(
        [
            [1, 1, 0, 1, 0, 1],  # perfect in the test, but half right in validation
            [0, 1, 0, 1, 1, 1],  # right in validation: the one
            [0, 1, 0, 1, 0, 1],  # as right in validation, but later
        ]
    )
    truth, chosen = labels[split.test], predictions[1, split.test]
    micro, macro = f1_scores(predictions, labels, split)
    assert micro == pytest.approx(75.0)
    # F1 of class 0: 2 * 1 * 0.5 / 1.5; of class 1: 2 * (2/3) * 1 / (5/3).
    assert macro == pytest.approx(100 * (2 / 3 + 0.8) / 2)
    assert macro == pytest.approx(100 * f1_score(truth, chosen, average="macro"))
    lied = labels.clone()
    lied[2:] = 1 - lied[2:]
    assert f1_scores(predictions, lied, split)[0] == pytest.approx(25.0)
