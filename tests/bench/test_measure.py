"""The ruler itself: memory, time, the floor, agreement, failures as rows, JSON."""

import json
from types import SimpleNamespace

import pytest
import torch

from taufree.bench import measure
from taufree.bench.measure import (
    StepTimer,
    about,
    extra_mib,
    floor_ms,
    matmul_tflops,
    milliseconds,
    pairs,
    save,
    short_reason,
)
from taufree.bench.methods import PEERS, Method, log_odds


def batch(loss="symmetric"):
    return StepTimer(loss, *pairs(64, 16, "cpu", torch.float32), tflops=0.1)


def row(make, link="free"):
    return batch().row(Method("mine", link, lambda loss: make))


def test_memory_is_the_peak_of_a_step():
    leaf = torch.zeros(1)

    def step():
        for _ in range(3):
            kept = torch.ones(2**18)  # one MiB
        return kept + torch.ones(3 * 2**18)[: 2**18]

    # One kept, three added to it, one for the sum; while the loop runs, two at a time.
    assert extra_mib(step, leaf) == pytest.approx(5, abs=0.01)


def test_time_is_the_median_of_the_steps_after_the_first(monkeypatch):
    clock, durations = [0.0], iter([9.0, 0.02, 0.5, 0.03])

    def step():
        clock[0] += next(durations)

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert milliseconds(step, "cpu", budget=10) == pytest.approx(30)
    assert next(durations, None) is None


def test_the_floor_is_counted_at_the_measured_rate():
    assert 0 < matmul_tflops("cpu") < 100
    assert floor_ms("symmetric", 1000, 10, 1.0) == pytest.approx(8e7 / 1e9)
    assert floor_ms("nt-xent", 1000, 10, 1.0) == pytest.approx(8 * 2000**2 * 10 / 2 / 1e9)


def test_a_row_has_the_numbers():
    (dense,) = (m for m in PEERS if m.name == "dense eager, free")
    found = batch().row(dense)
    assert found["agrees"]
    assert found["loss_error"] < 1e-5
    assert found["share_of_floor"] == pytest.approx(8 * 64**2 * 16 / 0.1 / 1e9 / found["ms"])
    assert found["extra_mib"] > 3 * 64 * 64 * 4 / 2**20  # cosines, logits, their gradient


def wrong_loss(a, b):
    return log_odds(torch.cosine_similarity(a, b)).mean()


def wrong_gradient(a, b):
    (dense,) = (m for m in PEERS if m.name == "dense eager, free")
    return dense.make("symmetric")(a, b.detach()) + 0 * b.sum()


@pytest.mark.parametrize("loss", [wrong_loss, wrong_gradient])
def test_a_method_called_wrongly_is_found_out(loss):
    assert row(loss)["agrees"] is False


def test_a_failure_is_a_row():
    def broken(a, b):
        raise RuntimeError("no\nkernel  here")

    found = row(broken)
    assert found["problem"] == "RuntimeError: no kernel here"
    assert "ms" not in found

    def greedy(a, b):
        return (a @ b.T).expand(2**26, 64, 64).clone().sum()  # a petabyte

    assert row(greedy)["problem"] == "out of memory"
    assert short_reason(torch.OutOfMemoryError("CUDA out of memory. Tried ...")) == "out of memory"


def test_json_is_whole_and_knows_no_nan(tmp_path):
    path = tmp_path / "made" / "result.json"
    save({"rows": [{"x": float("nan"), "y": 1.5}, {"x": float("inf")}]}, path)
    assert json.loads(path.read_text()) == {"rows": [{"x": None, "y": 1.5}, {"x": None}]}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_what_is_recorded_of_the_machine():
    found = about("cpu", ["lightly", "no-such-package"])
    assert {"python", "torch", "taufree", "lightly"} <= set(found["versions"])
    assert "no-such-package" not in found["versions"]
    assert found["hardware"]["device"] == "cpu"
    assert len(found["date"]) == 10
