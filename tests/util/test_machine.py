"""Devices and precisions are checked before anything starts."""

import logging
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec

import pytest
import torch
from lightning.fabric import Fabric
from lightning_utilities.core import rank_zero
from torch.optim.lr_scheduler import LambdaLR

from taufree.util import machine as environment
from taufree.util.errors import BadInputError
from taufree.util.machine import choose_device, compiles, hardware, silence_lightning, versions


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


@pytest.mark.parametrize(
    ("device", "compiler", "capability", "hip", "expected"),
    [
        ("cuda", "there", (9, 0), None, True),
        ("cuda", "there", (6, 1), None, False),  # the compiler would raise in the first step
        ("cuda", None, (9, 0), None, False),  # as on Windows
        ("cuda", "there", (6, 1), "6.2", True),  # AMD counts otherwise
        ("cpu", "there", (9, 0), None, False),
    ],
)
def test_nothing_is_compiled_where_no_compiler_is(monkeypatch, device, compiler, capability, hip, expected):
    monkeypatch.setattr(environment, "find_spec", {"triton": compiler}.get)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert compiles(torch.device(device)) is expected


def test_what_is_recorded():
    assert versions()["torch"] == torch.__version__.split("+")[0]
    if find_spec("transformers"):
        assert versions()["transformers"]
    found = hardware(torch.device("cpu"))
    assert found["device"] == "cpu"
    assert found["cpu"]
    assert found["cores"] >= found["threads"] >= 1


def announced(caplog, recwarn):
    """What a run in mixed precision says whose first step is left out."""
    caplog.clear()
    recwarn.clear()
    Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = LambdaLR(optimizer, lambda step: 1.0)
    schedule.step()
    return {record.message for record in caplog.records} | {str(one.message) for one in recwarn}


def test_what_is_told_of_every_run_is_left_out(caplog, recwarn):
    rank_zero.log.setLevel(logging.INFO)
    rank_zero.log.addHandler(caplog.handler)
    warnings.simplefilter("always")
    precision, steps = sorted(announced(caplog, recwarn), key=lambda said: "lr_scheduler" in said)
    assert "bfloat16" in precision
    assert "lr_scheduler.step" in steps
    silence_lightning()
    assert not announced(caplog, recwarn)


def test_threads_are_those_that_were_asked_for_or_the_cores_of_the_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment.usable_cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # of nested parallel regions
    assert environment.usable_cores() == 4
    monkeypatch.delenv("OMP_NUM_THREADS")
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "from taufree.util.machine import usable_cores; print(usable_cores())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"
    assert environment.usable_cores() == len(os.sched_getaffinity(0))
