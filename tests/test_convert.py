"""temperature_free, and what the drop-ins share."""

import subprocess
import sys

import info_nce
import lightly.loss
import open_clip
import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers

import taufree
from taufree import LogOdds, Temperature, temperature_free
from taufree.integrations import lightly as ours
from tests.support.comparison import rows
from tests.support.gcl import GCL

A, B = rows(8, 6), rows(8, 6, seed=1)
LABELS = torch.arange(8) // 2


def test_taufrees_own_losses():
    loss = taufree.InfoNCE(symmetric=True, link=Temperature(0.1), reduction="sum")
    found = temperature_free(loss)
    assert isinstance(loss.link, Temperature)
    torch.testing.assert_close(found(A, B), taufree.info_nce(A, B, symmetric=True, reduction="sum"))
    siglip = taufree.SigmoidNCE(
        link=taufree.LearnableTemperature(0.1), bias=torch.nn.Parameter(torch.tensor(-10.0))
    )
    assert temperature_free(siglip)(A, B) == taufree.sigmoid_nce(A, B)
    assert temperature_free(taufree.SigmoidNCE(bias=-2.0))(A, B) == taufree.sigmoid_nce(A, B, bias=-2.0)
    kept = temperature_free(taufree.SupCon(link=LogOdds(gain=2.0)))
    assert kept.link.gain == 2.0
    measured = taufree.NTXent(link=taufree.CalibratedLogOdds())
    measured(A, B)
    kept = temperature_free(measured)
    assert isinstance(kept.link, taufree.CalibratedLogOdds)
    assert kept.link.moment == measured.link.moment < 1
    assert isinstance(temperature_free(taufree.NTXent(link=taufree.LearnableTemperature())).link, LogOdds)


def cases():
    pairs = losses.NTXentLoss(0.3, reducer=reducers.ThresholdReducer(low=0.1))
    views = {"args": (A, B)}
    yield lightly.loss.NTXentLoss(0.3), views, lambda: taufree.nt_xent(A, B)
    yield info_nce.InfoNCE(0.3, "sum"), views, lambda: taufree.info_nce(A, B, reduction="sum")
    yield pairs, {"args": (A, LABELS)}, lambda: taufree.nt_xent(A[::2], A[1::2])
    yield losses.SupConLoss(0.3), {"args": (A, LABELS)}, lambda: taufree.sup_con(A, LABELS)
    yield losses.SelfSupervisedLoss(losses.NTXentLoss(0.3)), views, lambda: taufree.nt_xent(A, B)
    yield (
        GCL.losses.InfoNCE(0.3),
        {"args": (A, B, torch.eye(8), 1 - torch.eye(8))},
        lambda: taufree.info_nce(A, B),
    )


@pytest.mark.parametrize(("loss", "call", "expected"), list(cases()), ids=lambda x: type(x).__name__)
def test_twins_are_free_and_the_originals_stay(loss, call, expected):
    before = loss(*call["args"])
    found = temperature_free(loss)
    torch.testing.assert_close(found(*call["args"]), expected())
    torch.testing.assert_close(temperature_free(found)(*call["args"]), expected())  # a twin is known as well
    assert loss(*call["args"]) == before != expected()


def test_the_other_settings_are_kept():
    bank = lightly.loss.NTXentLoss(0.3, memory_bank_size=(16, 6), gather_distributed=True).eval()
    bank(A, B)
    found = temperature_free(bank)
    assert found.temperature is None
    assert found.gather_distributed
    assert not found.training
    assert found.memory_bank.bank.equal(bank.memory_bank.bank)
    assert found.memory_bank.bank_ptr == 8
    pairs = losses.NTXentLoss(0.3, reducer=reducers.ThresholdReducer(low=0.1))
    found = temperature_free(pairs)
    assert found.reducer.low == 0.1
    assert found.loss_method.__self__ is found  # a bound method among the attributes
    weighted = temperature_free(lightly.loss.DCLWLoss(0.3, sigma=0.7))
    assert weighted.weight_fn.keywords == {"sigma": 0.7}
    assert temperature_free(lightly.loss.DCLLoss(weight_fn=max)).weight_fn is max


class Mine(lightly.loss.NTXentLoss):
    """Changes the settings, and not the loss."""

    note = "kept"

    def __init__(self):
        super().__init__(0.3, memory_bank_size=(16, 6))
        self.seen = 0

    def extra(self):
        return self.seen


class Ours(ours.NTXentLoss):
    def extra(self):
        return "still there"


class NotTheMean(lightly.loss.NTXentLoss):
    def forward(self, out0, out1):
        return 2 * super().forward(out0, out1)


class NotOurMean(ours.NTXentLoss):
    def forward(self, out0, out1):
        return 2 * super().forward(out0, out1)


def test_a_class_of_ones_own_that_changes_no_loss():
    found = temperature_free(Mine())
    assert type(found) is ours.NTXentLoss
    assert (found.memory_bank.size, found.seen) == ((16, 6), 0)
    found = temperature_free(Ours(0.3))
    assert found.extra() == "still there"
    torch.testing.assert_close(found(A, B), taufree.nt_xent(A, B))


def test_wrappers_are_kept():
    inner = {"ntxent": losses.NTXentLoss(0.3), "triplet": losses.TripletMarginLoss()}
    both = losses.MultipleLosses(inner, weights={"ntxent": 2.0, "triplet": 0.5})
    found = temperature_free(both)
    triplet = losses.TripletMarginLoss()(A, LABELS)
    torch.testing.assert_close(found(A, LABELS), 2 * taufree.nt_xent(A[::2], A[1::2]) + triplet / 2)
    assert both.losses["ntxent"].temperature == 0.3
    memory = losses.MultipleLosses([losses.CrossBatchMemory(losses.SupConLoss(0.3), 6)])
    assert isinstance(temperature_free(memory).losses[0].loss.link, LogOdds)
    contrast = GCL.models.DualBranchContrast(GCL.losses.InfoNCE(0.3), "L2L", intraview_negs=True)
    found = temperature_free(contrast)
    assert type(found) is type(contrast)
    torch.testing.assert_close(found(A, B), taufree.nt_xent(A, B))
    assert contrast.loss.tau == 0.3


def test_the_link_may_be_chosen():
    for loss in (
        taufree.NTXent(link=Temperature(0.5)),
        lightly.loss.NTXentLoss(0.5),
        info_nce.InfoNCE(0.5),
        losses.SelfSupervisedLoss(losses.NTXentLoss(0.5)),
        open_clip.ClipLoss(),
        open_clip.loss.SigLipLoss(),
    ):
        for link, kind in (
            ("fitted", taufree.FittedLogOdds),
            (LogOdds(gain=2.0), LogOdds),
            (0.2, Temperature),
        ):
            found = temperature_free(loss, link=link)
            assert type(getattr(found, "loss", found).link) is kind
    assert temperature_free(taufree.NTXent(), link=LogOdds(gain=2.0)).link.gain == 2.0
    assert type(temperature_free(open_clip.ClipLoss()).link) is taufree.FittedLogOdds


def test_what_it_does_not_know_is_said():
    with pytest.raises(
        TypeError, match=r"loss must be a loss of taufree or .*lightly.* got CrossEntropyLoss of torch"
    ):
        temperature_free(torch.nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match=r"got the class NTXent of taufree\.losses\.$"):
        temperature_free(taufree.NTXent)
    with pytest.raises(
        TypeError, match=r"loss must be one of DCLLoss, DCLWLoss, NTXentLoss, got BarlowTwinsLoss"
    ):
        temperature_free(lightly.loss.BarlowTwinsLoss())
    for kind in (NotTheMean, NotOurMean):
        told = rf"^loss must leave the methods of NTXentLoss as they are, got {kind.__name__} .* forward\.$"
        with pytest.raises(TypeError, match=told):
            temperature_free(kind())
    with pytest.raises(TypeError, match=r"got MultipleLosses of TripletMarginLoss\.$"):
        temperature_free(losses.MultipleLosses([losses.TripletMarginLoss()]))
    with pytest.raises(ValueError, match="distance must be CosineSimilarity"):
        temperature_free(losses.NTXentLoss(distance=distances.LpDistance()))


def test_a_missing_library_is_one_sentence():
    code = """
import sys
sys.modules["lightly"] = None
try:
    import taufree.integrations.lightly
except ModuleNotFoundError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found == 'this part of taufree needs lightly: pip install "taufree[lightly]"\n'
