"""Devices and precisions are checked before anything starts."""

import pytest
import torch

from taufree.experiments.environment import choose_device, hardware, versions
from taufree.experiments.run import BadInputError


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("tpu", "32-true", "device must be one of auto, cpu, cuda, mps, got 'tpu'"),
        ("cpu", "8", "precision must be one of .*64-true.*, got '8'"),
        ("cpu", "16-mixed", "precision 16-mixed needs a GPU"),
    ],
)
def test_what_cannot_be_had_is_refused(device, precision, message):
    with pytest.raises(BadInputError, match=message):
        choose_device(device, precision)


def test_a_missing_gpu_is_named_and_auto_does_without(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto", "32-true") == "cpu"
    with pytest.raises(BadInputError, match="device cuda is not available"):
        choose_device("cuda", "32-true")


def test_what_is_recorded():
    assert versions()["torch"] == torch.__version__.split("+")[0]
    found = hardware(torch.device("cpu"))
    assert found["device"] == "cpu"
    assert found["cpu"]
    assert found["cores"] >= found["threads"] >= 1
