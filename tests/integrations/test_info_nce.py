"""The drop-in for info-nce-pytorch, beside the real one."""

import info_nce as original
import pytest
import torch

import taufree
from taufree.integrations import info_nce as ours
from tests.support.comparison import agree, rows
from tests.support.largest import Largest

QUERY, KEY, SHARED, OWN = rows(9, 6), rows(9, 6, seed=1), rows(5, 6, seed=2), rows(9, 4, 6, seed=3)
CASES = pytest.mark.parametrize(
    ("tensors", "mode"),
    [((QUERY, KEY), "unpaired"), ((QUERY, KEY, SHARED), "unpaired"), ((QUERY, KEY, OWN), "paired")],
    ids=["in-batch", "unpaired", "paired"],
)


@CASES
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_with_a_temperature_it_is_the_original(tensors, mode, reduction):
    options = {"temperature": 0.1, "reduction": reduction, "negative_mode": mode}
    agree(ours.InfoNCE(**options)(*tensors), original.InfoNCE(**options)(*tensors), *tensors)
    agree(ours.info_nce(*tensors, **options), original.info_nce(*tensors, **options), *tensors)


@CASES
def test_without_it_is_free(tensors, mode):
    expected = taufree.info_nce(*tensors, reduction="none")
    torch.testing.assert_close(ours.InfoNCE(reduction="none", negative_mode=mode)(*tensors), expected)
    options = {"reduction": "none", "negative_mode": mode}
    torch.testing.assert_close(ours.info_nce(*tensors, **options), expected)


def test_the_loss_prefers_the_right_key():
    far, near = ours.InfoNCE()(QUERY, -QUERY, SHARED), ours.InfoNCE()(QUERY, QUERY, SHARED)
    assert near < 0.01 < far
    assert ours.InfoNCE()(QUERY[:1], QUERY[:1], -QUERY[:1]) < near


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"negative_keys must have 3 dimensions with negative_mode='paired'"):
        ours.InfoNCE(negative_mode="paired")(QUERY, KEY, SHARED)
    with pytest.raises(ValueError, match=r"negative_keys must have 2 dimensions"):
        ours.info_nce(QUERY, KEY, OWN)
    with pytest.raises(TypeError, match=r"^negative_keys must be a floating-point tensor, got list\.$"):
        ours.info_nce(QUERY, KEY, SHARED.tolist())
    with pytest.raises(ValueError, match=r"negative_mode must be one of .* got 'mixed'"):
        ours.info_nce(QUERY, KEY, negative_mode="mixed")
    with pytest.raises(ValueError, match="must be a positive number, got 0"):
        ours.InfoNCE(temperature=0)


def test_memory_is_linear_in_the_batch():
    n = 2048
    query, key, shared = (rows(n, 6, seed=seed) for seed in range(3))
    for negatives in ((), (shared,)):
        ours.InfoNCE()(query, key, *negatives)  # whatever is made once and for all
        with Largest() as most:
            ours.InfoNCE()(query, key, *negatives).backward()
        assert most.numel < n * n / 2
