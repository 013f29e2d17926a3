from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor
from torchmetrics import MeanMetric, MetricCollection

from taufree.diagnostics.diagnose import diagnose
from taufree.diagnostics.metric import ContrastiveDiagnostics

TAUS = (0.05, 0.5)


def batches(count: int = 3, rows: int = 48) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(2, rows, 16, generator=generator) for _ in range(count)]
    return [(first, first + 0.6 * other) for first, other in views]


def fed(pairs: list[tuple[Tensor, Tensor]]) -> ContrastiveDiagnostics:
    metric = ContrastiveDiagnostics(taus=TAUS)
    for first, second in pairs:
        metric.update(first, second)
    return metric


def test_one_batch_is_what_diagnose_says() -> None:
    ((first, second),) = batches(1)
    values, found = fed([(first, second)]).compute(), diagnose(first, second, taus=TAUS)
    assert values["positive_cosine"] == pytest.approx(found.positive_mean, rel=1e-5)
    assert values["negative_cosine"] == pytest.approx(found.negative_mean, abs=1e-6)
    assert values["non_optimal"] == pytest.approx(found.non_optimal)
    assert 0.05 < values["local_temperature"] < 0.5
    assert values["ranked_first"] == pytest.approx(found.ranked_first)
    for scheme in found.schemes:
        if scheme.name in ("calibrated", "fitted"):
            continue
        assert values[f"vanished/{scheme.name}"] == pytest.approx(scheme.vanished)
        assert values[f"hardest/{scheme.name}"] == pytest.approx(scheme.hardest, rel=1e-5)
        assert scheme.scale["5%"] < values[f"scale/{scheme.name}"] < scheme.scale["95%"]
    assert values["vanished/tau=0.05"] > 0.5
    assert values["vanished/free"] == 0.0
    assert all(type(value) is float for value in values.values())


@pytest.mark.parametrize("paired", [True, False])
def test_labels_are_what_diagnose_takes_them_for(paired: bool) -> None:
    ((first, second),) = batches(1)
    labels = torch.tensor([3, -1, 7, 7] * 11 + [10, 11, 12, 13])  # the last four have no partner in first
    metric, other = ContrastiveDiagnostics(taus=TAUS), second if paired else None
    metric.update(first, other, labels)
    values, found = metric.compute(), diagnose(first, other, labels=labels, taus=TAUS)
    assert metric.anchors == found.anchors == (48 if paired else 44)
    assert values["positive_cosine"] == pytest.approx(found.positive_mean, rel=1e-5)
    assert values["negative_cosine"] == pytest.approx(found.negative_mean, abs=1e-6)
    assert values["ranked_first"] == pytest.approx(found.ranked_first)
    assert values["hardest/free"] == pytest.approx(found.schemes[0].hardest, rel=1e-5)
    before = metric.compute()
    metric.update(first, labels=torch.zeros(48, dtype=torch.int64))  # no negatives
    metric.update(first, labels=torch.arange(48))  # no positives
    assert metric.compute() == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    """As Lightning sets it around training_step with precision="bf16-true" or "64-true"."""
    pairs = batches()
    values, found = fed(pairs).compute(), diagnose(*pairs[0]).summary()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert fed(pairs).compute() == values
        assert diagnose(*pairs[0]).summary() == found
    finally:
        torch.set_default_dtype(before)


def test_batches_are_averaged_and_reset_forgets() -> None:
    pairs = batches()
    metric = fed(pairs)
    together, alone = metric.compute(), [fed([pair]).compute() for pair in pairs]
    for name in ("positive_cosine", "negative_cosine", "hardest/free", "scale/tau=0.5"):
        assert together[name] == pytest.approx(sum(values[name] for values in alone) / 3, rel=1e-4)
    metric.reset()
    metric.update(*pairs[0])
    assert metric.compute() == alone[0]


def test_processes_add_up() -> None:
    pairs = batches(4)
    one, other = fed(pairs[:1]), fed(pairs[1:])
    one.merge_state(other)
    assert one.compute() == pytest.approx(fed(pairs).compute(), rel=1e-5)


def test_in_a_collection() -> None:
    pairs = batches()
    collection = MetricCollection({"contrast": ContrastiveDiagnostics(taus=TAUS)}, prefix="train/")
    for first, second in pairs:
        step = collection(first, second)
        assert 0 < step["train/positive_cosine"] < 1
    expected = {f"train/{name}": value for name, value in fed(pairs).compute().items()}
    assert collection.compute() == pytest.approx(expected)
    assert set(MetricCollection([fed(pairs), MeanMetric()]).keys()) == {
        "ContrastiveDiagnostics",
        "MeanMetric",
    }


def test_gradients_are_left_alone_and_autocast_does_not_reach_in() -> None:
    ((first, second),) = batches(1)
    metric = ContrastiveDiagnostics(taus=TAUS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        metric.update(first.clone().requires_grad_(), second)
    assert metric.compute() == fed([(first, second)]).compute()
    assert not metric.positive_sum.requires_grad


def test_a_single_row_is_passed_over() -> None:
    pairs = batches(1)
    assert fed([*pairs, (torch.randn(1, 16), torch.randn(1, 16))]).compute() == fed(pairs).compute()


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_is_said_before_anything_was_seen() -> None:
    assert all(math.isnan(value) for value in ContrastiveDiagnostics().compute().values())
    one = torch.eye(4)
    assert fed([(one, one)]).compute()["vanished/free"] == 0  # all are optimal


def test_nan_is_not_hidden() -> None:
    first, second = batches(1)[0]
    first[3, 2] = torch.nan
    for pair in ((first, second), (second, first)):
        assert all(map(math.isnan, fed([pair]).compute().values()))


def test_it_can_be_saved() -> None:
    metric = fed(batches())
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()


def test_bad_input() -> None:
    metric = ContrastiveDiagnostics()
    with pytest.raises(
        ValueError, match=r"first and second must both be \[N, D\], got \(2, 3\) and \(3, 3\)"
    ):
        metric.update(torch.randn(2, 3), torch.randn(3, 3))
    with pytest.raises(TypeError, match="second must be a tensor, got list"):
        metric.update(torch.randn(2, 3), [[1.0, 2.0, 3.0]] * 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="second or labels must be given"):
        metric.update(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"labels must be 2 integers, one a row, got torch.float32"):
        metric.update(torch.randn(2, 3), labels=torch.ones(2))
    with pytest.raises(TypeError, match="taus must be a list of temperatures, got float"):
        ContrastiveDiagnostics(taus=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tau must be a positive number"):
        ContrastiveDiagnostics(taus=[0.0])
