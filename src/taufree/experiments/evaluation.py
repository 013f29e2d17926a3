"""How good frozen features are: nearest neighbours and a linear probe, both in percent."""

from __future__ import annotations

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import normalize, one_hot

ROWS = 1024
"""Features compared with the bank at a time, which bounds the memory."""


def knn_accuracy(
    bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor, *, k: int, tau: float = 0.1
) -> float:
    """Share of rows whose k nearest bank rows vote for their label, a vote weighing exp(cosine / tau).

    Shape:
        bank: [M, D]; bank_labels: [M] integers from 0; features: [N, D]; labels: [N]; all on one device.
    """
    bank = normalize(bank.float(), dim=-1)
    classes = int(bank_labels.max()) + 1
    right = torch.zeros((), dtype=torch.long, device=features.device)
    for start in range(0, len(features), ROWS):
        rows, truth = features[start : start + ROWS], labels[start : start + ROWS]
        cosine, index = (normalize(rows.float(), dim=-1) @ bank.T).topk(min(k, len(bank)), dim=-1)
        # Taking 1 off the cosine changes no order of votes and keeps the exponential small.
        votes = one_hot(bank_labels[index], classes) * ((cosine - 1) / tau).exp().unsqueeze(-1)
        right += (votes.sum(1).argmax(-1) == truth).sum()
    return 100 * right.item() / len(features)


def nearest(bank: Tensor, features: Tensor, k: int) -> Tensor:
    """The numbers of the ``k`` bank rows with the highest cosine, [N, k], the nearest first."""
    cosine = normalize(features.float(), dim=-1) @ normalize(bank.float(), dim=-1).T
    return cosine.topk(min(k, len(bank)), dim=-1).indices


def knn_distance(bank: Tensor, features: Tensor, *, k: int) -> Tensor:
    """The sum of squared distances to the k nearest bank rows, all rows being normalised first, [N].

    For unit vectors |u - v|^2 = 2 - 2 cos(u, v), so that the nearest are those of the highest cosine.

    Shape:
        bank: [M, D]; features: [N, D]; both on one device.
    """
    bank = normalize(bank.float(), dim=-1)
    found = []
    for start in range(0, len(features), ROWS):
        rows = normalize(features[start : start + ROWS].float(), dim=-1)
        cosine = (rows @ bank.T).topk(min(k, len(bank)), dim=-1).values
        found.append((2 - 2 * cosine).sum(-1))
    return torch.cat(found)


def linear_accuracy(bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor) -> float:
    """Share of rows that a logistic regression on the standardised bank classifies rightly."""
    scaler = StandardScaler().fit(bank.double().numpy())
    probe = LogisticRegression(max_iter=1000).fit(
        scaler.transform(bank.double().numpy()), bank_labels.numpy()
    )
    return 100 * float(probe.score(scaler.transform(features.double().numpy()), labels.numpy()))
