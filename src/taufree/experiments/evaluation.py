"""How good frozen features are: nearest neighbours and a linear probe, both in percent."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import normalize, one_hot


def knn_accuracy(
    bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor, *, k: int, tau: float = 0.1
) -> float:
    """Share of rows whose k nearest bank rows vote for their label, a vote weighing exp(cosine / tau).

    Shape:
        bank: [M, D]; bank_labels: [M] integers from 0; features: [N, D]; labels: [N].
    """
    cosine = normalize(features.float(), dim=-1) @ normalize(bank.float(), dim=-1).T
    nearest, index = cosine.topk(min(k, len(bank)), dim=-1)
    # Taking 1 off the cosine changes no order of votes and keeps the exponential small.
    votes = one_hot(bank_labels[index]) * ((nearest - 1) / tau).exp().unsqueeze(-1)
    return 100 * (votes.sum(1).argmax(-1) == labels).double().mean().item()


def linear_accuracy(bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor) -> float:
    """Share of rows that a logistic regression on the standardised bank classifies rightly."""
    scaler = StandardScaler().fit(bank.double().numpy())
    probe = LogisticRegression(max_iter=1000).fit(
        scaler.transform(bank.double().numpy()), bank_labels.numpy()
    )
    return 100 * float(probe.score(scaler.transform(features.double().numpy()), labels.numpy()))
