"""PyGCL's linear probe: how well one linear layer classifies frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taufree.experiments.training.recorded import Replayed


@dataclass(frozen=True)
class Split:
    """The rows to choose an epoch by, and the rows to judge it by."""

    validation: Tensor
    test: Tensor


def draw_splits(count: int) -> tuple[Tensor, dict[str, Split]]:
    """A tenth of the rows to train on, and two ways to use the others; drawn from torch's global generator.

    PyGCL's get_split(train_ratio=0.1, test_ratio=0.8) gives the eight tenths to the validation and keeps the
    last tenth for the test ("pygcl"). "true" has a tenth and eight tenths, as the ratios say.

    >>> train, splits = draw_splits(3327)
    >>> len(train), {name: (len(split.validation), len(split.test)) for name, split in splits.items()}
    (332, {'pygcl': (2661, 334), 'true': (332, 2663)})
    """
    order = torch.randperm(count)
    tenth, most = int(count * 0.1), int(count * 0.8)
    train, rest = order[:tenth], order[tenth:]
    splits = {"pygcl": Split(rest[:most], rest[most:]), "true": Split(rest[:tenth], rest[tenth:])}
    return train, splits


@torch.enable_grad()
def probe_predictions(
    features: Tensor, labels: Tensor, train: Tensor, *, epochs: int, every: int = 20
) -> Tensor:
    """The classes that a linear layer gives to all rows, after each ``every`` epochs of its training.

    Full batches of the rows ``train``, Adam with learning rate 0.01, Xavier's uniform weights from torch's
    global generator. Validation and test rows are not used: :func:`f1_scores` uses them.

    Shape:
        features: [N, D]; labels: [N] integers from 0; train: [T]; the result: [epochs // every, N].
    """
    device, features = features.device, features.detach().float()
    layer = nn.Linear(features.shape[1], int(labels.max()) + 1)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    layer.to(device)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01, capturable=on_gpu)
    rows, targets = features[train.to(device)], labels[train].to(device)

    def advance(inputs: Sequence[Tensor] = ()) -> Tensor:
        for _ in range(every):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(layer(rows), targets))
            optimizer.step()
        with torch.no_grad():
            found: Tensor = layer(features).argmax(-1)
        return found

    step = Replayed(advance) if on_gpu else advance
    return torch.stack([step().clone() for _ in range(epochs // every)]).cpu()


def f1_scores(predictions: Tensor, labels: Tensor, split: Split) -> tuple[float, float]:
    """Micro and macro F1 on the test rows, in percent, of the first predictions that do best in validation.

    With one class to a row the micro F1 is the share of right answers.

    >>> labels, split = torch.tensor([0, 1, 0, 1]), Split(torch.tensor([0, 1]), torch.tensor([2, 3]))
    >>> f1_scores(torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]]), labels, split)  # the first does better in test
    (50.0, 33.3...)
    """
    right = (predictions[:, split.validation] == labels[split.validation]).sum(1)
    chosen = predictions[int(right.argmax())][split.test].numpy()
    truth = labels[split.test].numpy()
    from sklearn.metrics import f1_score  # takes a second, and wrong settings are refused before

    micro, macro = (100 * float(f1_score(truth, chosen, average=kind)) for kind in ("micro", "macro"))
    return micro, macro
