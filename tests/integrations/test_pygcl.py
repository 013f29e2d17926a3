"""The drop-in for PyGCL, beside the real one, in PyGCL's contrast models."""

import pytest
import torch

from taufree import info_nce, nt_xent, temperature_free
from tests.support.comparison import agree, rows
from tests.support.gcl import GCL
from tests.support.largest import Largest

from taufree.integrations.pygcl import InfoNCE  # isort: skip (after GCL, see tests/support/gcl.py)

DualBranchContrast, SingleBranchContrast = GCL.models.DualBranchContrast, GCL.models.SingleBranchContrast
H1, H2, H3, H4 = (rows(12, 6, seed=seed) for seed in range(4))
G1, G2 = rows(3, 6, seed=4), rows(3, 6, seed=5)
BATCH = torch.arange(3).repeat_interleave(4)
FRIENDS = torch.eye(12).roll(1, 1)

CASES = {
    "nodes": lambda loss: DualBranchContrast(loss, "L2L")(H1, H2),
    "nodes, both views": lambda loss: DualBranchContrast(loss, "L2L", intraview_negs=True)(H1, H2),
    "nodes, more positives": lambda loss: DualBranchContrast(loss, "L2L")(H1, H2, extra_pos_mask=FRIENDS),
    "nodes, fewer negatives": lambda loss: DualBranchContrast(loss, "L2L", intraview_negs=True)(
        H1, H2, extra_neg_mask=1 - FRIENDS.repeat(1, 2)
    ),
    "graphs": lambda loss: DualBranchContrast(loss, "G2G")(g1=G1, g2=G2),
    "graphs and nodes": lambda loss: DualBranchContrast(loss, "G2L")(H1, H2, G1, G2, batch=BATCH),
    "one graph and nodes": lambda loss: DualBranchContrast(loss, "G2L")(H1, H2, G1[:1], G2[:1], h3=H3, h4=H4),
    "one branch": lambda loss: SingleBranchContrast(loss, "G2L")(H1, G1, batch=BATCH),
    "one branch, one graph": lambda loss: SingleBranchContrast(loss, "G2L")(H1, G1[:1], hn=H3),
}


@pytest.mark.parametrize("case", CASES)
def test_with_a_temperature_it_is_pygcls(case):
    ours, theirs = CASES[case](InfoNCE(0.4)), CASES[case](GCL.losses.InfoNCE(0.4))
    inputs = [
        x
        for x in (H1, H2, G1, G2)
        if torch.autograd.grad(theirs, x, retain_graph=True, allow_unused=True)[0] is not None
    ]
    assert inputs
    agree(ours, theirs, *inputs)


@pytest.mark.parametrize("case", CASES)
def test_without_it_differs_and_is_finite(case):
    loss = CASES[case](InfoNCE())
    assert torch.isfinite(loss)
    assert abs(loss - CASES[case](InfoNCE(0.4))) > 0.01


def test_without_it_is_free():
    torch.testing.assert_close(CASES["nodes"](InfoNCE()), info_nce(H1, H2, symmetric=True))
    torch.testing.assert_close(CASES["graphs"](InfoNCE()), info_nce(G1, G2, symmetric=True))


def test_balanced_is_that_of_taufree_by_any_mask():
    loss = InfoNCE(balanced=True)
    assert "balanced=True" in repr(loss)
    torch.testing.assert_close(CASES["nodes, both views"](loss), nt_xent(H1, H2, balanced=True))
    expected = info_nce(H1, H2, symmetric=True, balanced=True)
    torch.testing.assert_close(CASES["nodes"](loss), expected)
    positives, negatives = torch.eye(12), 1 - torch.eye(12) - FRIENDS
    found = loss.compute(H1, H2, positives, negatives)
    ids = torch.arange(12)
    expected = torch.stack(
        [
            info_nce(
                H1[[i]], H2[[i]], H2[negatives[i].bool()], ids=ids[[i]] + 100, negative_ids=ids[:10],
                balanced=True,
            )
            for i in range(12)
        ]
    )  # fmt: skip
    torch.testing.assert_close(found, expected.mean())
    assert temperature_free(loss).balanced


def test_an_anchor_is_no_negative_of_its_own():
    torch.testing.assert_close(CASES["nodes, both views"](InfoNCE()), nt_xent(H1, H2))


def test_nor_a_positive_of_its_own():
    same = (BATCH[:, None] == BATCH).float()
    found, expected = (
        DualBranchContrast(InfoNCE(), "L2L", intraview_negs=True)(
            H1, H2, extra_pos_mask=torch.cat([same, mask], 1)
        )
        for mask in (same, same - torch.eye(12))
    )
    assert found.isfinite()
    torch.testing.assert_close(found, expected)


def test_weights_are_no_masks():
    soft = torch.full((12, 12), 0.5)
    with pytest.raises(ValueError, match=r"^neg_mask must hold zeros and ones"):
        InfoNCE()(H1, H2, torch.eye(12), soft)


def test_the_ways_of_the_free_loss_agree():
    """Masks that the core knows, and the same anchors in two calls of six, which it does not."""
    anchor, sample = H1, torch.cat([H2, H1])
    positive, own = torch.eye(12, 24), torch.cat([torch.zeros(12, 12), torch.eye(12)], 1)
    negative = 1 - positive - own
    whole = InfoNCE()(anchor, sample, positive, negative)
    parts = [InfoNCE()(anchor[at], sample, positive[at], negative[at]) for at in (slice(6), slice(6, 12))]
    agree(whole, torch.stack(parts).mean(), H1, H2)


class FloatsOnly(Largest):
    """The largest tensor made but for masks."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before, result = self.numel, super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(result, torch.Tensor) and result.dtype == torch.bool:
            self.numel = before
        return result


def test_memory():
    n = 2048
    a, b, positive = rows(n, 8), rows(n, 8, seed=1), torch.eye(n, dtype=torch.bool)
    InfoNCE()(a, b, positive, ~positive)  # whatever is made once and for all
    with FloatsOnly() as most:
        InfoNCE()(a, b, positive, ~positive).backward()
    assert most.numel <= n * n / 4  # some tiles


def test_no_negatives_is_an_error_in_both():
    bootstrap = GCL.models.BootstrapContrast
    with pytest.raises(TypeError):
        bootstrap(GCL.losses.InfoNCE(0.4))(H1, H2, H3, H4)
    with pytest.raises(ValueError, match=r"neg_mask must have shape \[12, 12\], got None"):
        bootstrap(InfoNCE())(H1, H2, H3, H4)


def test_wrong_rows_are_named_as_pygcl_names_them():
    masks = torch.eye(12), 1 - torch.eye(12)
    with pytest.raises(TypeError, match=r"^anchor must be a floating-point tensor, got list\.$"):
        InfoNCE()(H1.tolist(), H2, *masks)
    for tau in (None, 0.4):
        with pytest.raises(ValueError, match=r"^sample must have the 6 columns of anchor, got 5\.$"):
            DualBranchContrast(InfoNCE(tau), "L2L")(H1, H2[:, :5])
    with pytest.raises(TypeError, match=r"^sample must be a floating-point tensor, got dtype torch\.int64"):
        InfoNCE()(H1, torch.ones(12, 6, dtype=torch.int64), *masks)


def test_an_anchor_without_a_positive_counts_nothing():
    masks = torch.eye(12), 1 - torch.eye(12)
    masks[0][0] = 0
    assert torch.isnan(GCL.losses.InfoNCE(0.4)(H1, H2, *masks))
    assert torch.isfinite(InfoNCE(0.4)(H1, H2, *masks))


def test_a_class_derived_from_pygcls_has_a_twin_unless_it_overrides_a_method():
    class Named(GCL.losses.InfoNCE):
        title = "mine"

    class Changed(GCL.losses.InfoNCE):
        def compute(self, *arguments):
            return torch.zeros(())

    twin = temperature_free(Named(0.4))
    assert type(twin) is InfoNCE
    torch.testing.assert_close(CASES["nodes"](twin), CASES["nodes"](InfoNCE()))
    with pytest.raises(TypeError, match=r"which overrides compute\.$"):
        temperature_free(Changed(0.4))
