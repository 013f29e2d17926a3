"""How good frozen features are: nearest neighbours and a linear probe, both in percent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, normalize, one_hot

from taufree.dtypes import wide_dtype

ROWS_PER_CHUNK = 1024
"""Features compared with the bank at a time, which bounds the memory."""


def knn_accuracy(
    bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor, *, k: int, tau: float = 0.1
) -> float:
    """Share of rows whose k nearest bank rows vote for their label, a vote weighing exp(cosine / tau).

    Shape:
        bank: [M, D]; bank_labels: [M] integers from 0; features: [N, D]; labels: [N]; all on one device.
    """
    classes = int(bank_labels.max()) + 1
    right = torch.zeros((), dtype=torch.long, device=features.device)
    chunks = zip(_nearest(bank, features, k), torch.split(labels, ROWS_PER_CHUNK), strict=True)
    for (cosine, index), truth in chunks:
        # Taking 1 off the cosine changes no order of votes and keeps the exponential small.
        votes = one_hot(bank_labels[index], classes) * ((cosine - 1) / tau).exp().unsqueeze(-1)
        right += (votes.sum(1).argmax(-1) == truth).sum()
    return 100 * right.item() / len(features)


def nearest(bank: Tensor, features: Tensor, k: int) -> Tensor:
    """The numbers of the ``k`` bank rows with the highest cosine, [N, k], the nearest first."""
    return torch.cat([index for _, index in _nearest(bank, features, k)])


def knn_distance(bank: Tensor, features: Tensor, *, k: int) -> Tensor:
    """The sum of squared distances to the k nearest bank rows, all rows being normalised first, [N].

    For unit vectors |u - v|^2 = 2 - 2 cos(u, v), so that the nearest are those of the highest cosine.

    Shape:
        bank: [M, D]; features: [N, D]; both on one device.
    """
    return torch.cat([(2 - 2 * cosine).sum(-1) for cosine, _ in _nearest(bank, features, k)])


def _nearest(bank: Tensor, features: Tensor, k: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The k highest cosines with the bank and the numbers of its rows, [N, k] each, chunk by chunk."""
    bank = normalize(bank.float(), dim=-1)
    for rows in torch.split(features, ROWS_PER_CHUNK):
        cosine, index = (normalize(rows.float(), dim=-1) @ bank.T).topk(min(k, len(bank)), dim=-1)
        yield cosine, index


@torch.enable_grad()
def linear_accuracy(bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor) -> float:
    """Share of rows that a logistic regression on the standardised bank classifies rightly.

    It minimises the summed cross-entropy plus half the squared weights until no derivative of the mean is
    above 1e-4, as scikit-learn does, but on the device of the features, so that nothing is copied from a GPU.
    Two classes have a vector of weights each, where scikit-learn has one for both: they are its C = 2. A
    column that is the same in all bank rows is only centred.

    Shape:
        bank: [M, D]; bank_labels: [M] integers from 0; features: [N, D]; labels: [N]; all on one device.
    """
    wide = wide_dtype(bank.device)
    bank, features = bank.detach().to(wide), features.detach().to(wide)
    mean, std = bank.mean(0), bank.std(0, correction=0)
    std = std.where(std > torch.finfo(wide).eps * mean.abs(), 1)
    bank, features = (bank - mean) / std, (features - mean) / std
    weight = bank.new_zeros(int(bank_labels.max()) + 1, bank.shape[1], requires_grad=True)
    bias = bank.new_zeros(len(weight), requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=1000, tolerance_grad=1e-4, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def objective() -> float:
        solver.zero_grad()
        misfit = cross_entropy(linear(bank, weight, bias), bank_labels)
        total = misfit + weight.square().sum() / (2 * len(bank))
        torch.autograd.backward(total)
        return total.item()

    solver.step(objective)  # type: ignore[no-untyped-call]
    right = (linear(features, weight, bias).argmax(-1) == labels).sum()
    return 100 * right.item() / len(features)
