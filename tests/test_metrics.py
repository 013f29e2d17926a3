import pytest
import torch

import taufree
from taufree.backends.blockwise import engine
from taufree.metrics import contrastive_accuracy
from tests.support.largest import Largest
from tests.support.oracles import statistics
from tests.test_stats import CASES


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "one pair"])
def test_the_share_of_anchors_that_find_a_positive(name, backend):
    case = CASES[name]
    tensors, options = [x.clone().requires_grad_() for x in case.tensors], dict(case.options)
    if "key_labels" in options:
        options["keys"] = tensors.pop()
    found = contrastive_accuracy(getattr(taufree, case.function), *tensors, **options, backend=backend)
    assert found.item() == pytest.approx(statistics(case)[0], rel=1e-6)
    assert not found.requires_grad
    assert taufree.metrics.contrastive_accuracy is contrastive_accuracy


def test_memory_is_linear(monkeypatch):
    monkeypatch.setattr(engine, "TILE_SIZE", 16)
    x = torch.randn(512, 2)
    with Largest() as seen:
        contrastive_accuracy(taufree.info_nce, x, x + 0.1 * torch.randn(512, 2))
    assert seen.numel < 512 * 512 / 4


@pytest.mark.parametrize("loss", [torch.eye(3), taufree.NTXent(), "nt_xent"])
def test_another_loss_is_refused(loss):
    with pytest.raises(
        TypeError, match=r"^loss must be taufree.info_nce, taufree.nt_xent or taufree.sup_con"
    ):
        contrastive_accuracy(loss, torch.eye(3), torch.eye(3))
