"""The drop-ins over two ranks, against the originals there and against one process on the whole batch."""

import lightly.loss
import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from taufree.integrations import lightly as for_lightly
from taufree.integrations import pytorch_metric_learning as for_pairs
from tests.support.comparison import rows
from tests.support.integration_rank_checks import SETTINGS, everything
from tests.support.ranks import start

pytestmark = pytest.mark.slow

A, B = rows(8, 6).detach(), rows(8, 6, seed=1).detach()
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 2, 1])
CASES = {
    "NTXentLoss": (for_lightly.NTXentLoss, lightly.loss.NTXentLoss),
    "DCLLoss": (for_lightly.DCLLoss, lightly.loss.DCLLoss),
    "pairs": (for_pairs.NTXentLoss, losses.NTXentLoss),
    "pairs, efficient": (for_pairs.NTXentLoss, losses.NTXentLoss),
    "labels": (for_pairs.SupConLoss, losses.SupConLoss),
    "labels, efficient": (for_pairs.SupConLoss, losses.SupConLoss),
}


def gradients(name, kind, tau, own):
    """The gradients of this rank's rows, and the loss where its meaning is the same."""
    a, b = (x[own].clone().requires_grad_() for x in (A, B))
    if kind.__name__.startswith(("DCL", "NTX")) and "pairs" not in name:
        loss = kind(tau, gather_distributed=True)(a, b)
        return list(torch.autograd.grad(loss, (a, b)))
    loss = DistributedLossWrapper(kind(tau), efficient="efficient" in name)(a, LABELS[own])
    return [loss.detach(), *torch.autograd.grad(loss, a)]


def work(rank, world):
    own = slice(rank * 4, rank * 4 + 4)
    found = {}
    for name, (ours, theirs) in CASES.items():
        pairs = zip(gradients(name, ours, 0.2, own), gradients(name, theirs, 0.2, own), strict=True)
        found[name] = [float((x - y).abs().max()) for x, y in pairs]
        found[f"{name}, free"] = [x.tolist() for x in gradients(name, ours, None, own)]
    kinds = for_lightly.NTXentLoss, lightly.loss.NTXentLoss
    banks = [kind(0.2, memory_bank_size=(16, 6), gather_distributed=True) for kind in kinds]
    banks[0].memory_bank.bank.copy_(banks[1].memory_bank.bank)
    values = [bank(A[own].clone().requires_grad_(), B[own]).item() for bank in banks]
    stored = [bank.memory_bank.bank for bank in banks]
    found["bank"] = [abs(values[0] - values[1]), float((stored[0] - stored[1]).abs().max())]
    found["stored"] = banks[0].memory_bank.bank_ptr.item()
    return found


def both(rank, world):
    return {**work(rank, world), **everything(rank, world)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return start(both, [2], tmp_path_factory.mktemp("ranks"))[2]


@pytest.mark.parametrize("name", [*CASES, "bank"])
def test_with_a_temperature_they_are_the_originals(ranks, name):
    assert max(error for rank in ranks for error in rank[name]) < 2e-6


def test_the_bank_holds_the_keys_of_all_ranks(ranks):
    assert [rank["stored"] for rank in ranks] == [8, 8]


@pytest.mark.parametrize("name", ["NTXentLoss", "DCLLoss"])
def test_without_they_are_one_process_on_the_whole_batch(ranks, name):
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    expected = torch.autograd.grad(CASES[name][0]()(a, b), (a, b))
    for number in range(2):
        found = torch.cat([torch.tensor(rank[f"{name}, free"][number]) for rank in ranks])
        torch.testing.assert_close(found / 2, expected[number])  # which DDP's averaging divides by the ranks


@pytest.mark.parametrize("scale", [20.0, None])
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_of_sentence_embeddings(ranks, settings, scale):
    """With a scale those of the library on the same ranks, without those of one process."""
    for found in ranks:
        assert max(found["ranking"][f"{settings}, {scale}"]) < 1e-5


def test_clip_trains_under_ddp_as_one_process_on_the_whole_batch(ranks):
    for found in ranks:
        assert max(found["clip"]) < 1e-6


def test_siglip_is_one_process_on_the_whole_batch_and_open_clips_on_the_same_ranks(ranks):
    for found in ranks:
        assert max(found["siglip"]) < 2e-6
