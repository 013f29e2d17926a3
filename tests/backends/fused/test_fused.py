"""The fused kernels against the reference, by Triton's interpreter; on a GPU: tests/gpu/test_fused.py."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from taufree import Link, LogOdds
from taufree.backends import fused
from taufree.contrast import Bias, Contrast
from taufree.links import Gain
from taufree.links.fitted import FIRST_STEPS
from tests.support.fused_cases import TOLERANCE
from tests.support.interpreted_kernels import CASES, EACH, SCALED, TRACKED
from tests.support.paths import ROOT


class Cubic(Link):
    def logit(self, cosine, gap, rise):
        return cosine**3


def interpret(*arguments):
    """The last line that a script prints whose kernels are interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(fused.__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def interpreted():
    return json.loads(interpret("tests.support.interpreted_kernels"))


def test_random_cases():
    cases = "--kinds", "20", "--draws", "1", "--device", "cpu", "--most-rows", "8"
    found = interpret("tests.gpu.random_cases", *cases)
    assert found == "20 of 20 cases are within the tolerance."


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case, interpreted):
    assert max(interpreted[case]) < TOLERANCE[CASES[case][2]]


@pytest.mark.parametrize("case", SCALED)
def test_gains_and_scales_of_all_sizes(case, interpreted):
    """A gain multiplies what 1 - c misses, most of all next to a duplicate, see the twin below. The gradient
    of a scale is a difference of cosines, with few digits left where all cosines agree."""
    *found, last = interpreted[case]
    exact = 1e-3 if "gain" in case and "duplicates" in case else 5e-5
    assert max(found) < exact
    assert last < (5e-3 if "scale" in case else exact)


def test_tiles_that_float32_cannot_hold(interpreted):
    assert max(interpreted["apart"]) < TOLERANCE[torch.float32]


def test_weights_that_float64_cannot_hold(interpreted):
    """A gain that only the device knows gives finite results, one that is known is refused."""
    assert all(abs(x) < 1e7 for x in interpreted["beyond"])
    found, expected = interpreted["too steep"]
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected > 0.1
    assert "2^1000" in interpreted["refused"]


@pytest.mark.parametrize("case", TRACKED)
def test_statistics_agree_with_the_reference(case, interpreted):
    assert interpreted["statistics"][case] < 1e-6


def test_a_collapsed_network_finds_nothing(interpreted):
    assert interpreted["collapsed"] == [0, 0]


@pytest.mark.parametrize("case", EACH)
def test_a_temperature_for_each_anchor(case, interpreted):
    assert max(interpreted[case]) < TOLERANCE[EACH[case][1]]


def test_a_negative_that_agrees_with_its_anchor(interpreted):
    """1 - c of tiles is a difference of float32 numbers near 1: exact to 1e-7 of the resolution's 1e-4."""
    assert max(interpreted["twin"]) < 2e-3


def test_ids_and_labels_may_be_columns_of_a_table(interpreted):
    for found, dense in interpreted["strided"]:
        assert found == pytest.approx(dense, rel=1e-5)


def test_a_gradient_of_nan_does_not_become_zero(interpreted):
    assert all(map(all, interpreted["NaN"]))


def test_deterministic_sums(interpreted):
    assert max(interpreted["deterministic"]) < TOLERANCE[torch.float32]


def test_a_second_derivative_names_the_backend_that_has_one(interpreted):
    assert all('backend="reference"' in said for said in interpreted["second derivative"])


def test_any_finite_input_gives_finite_results(interpreted):
    for values in interpreted["finite"]:
        assert all(abs(x) < float("inf") for x in values)
    assert not any(interpreted["finite"][0])  # one row and no negatives: loss 0, gradient 0


def test_a_measured_gain_is_the_same_everywhere_compiled_or_not(interpreted):
    losses, gains = interpreted["calibrated"]
    assert gains[0] > 2
    assert gains == pytest.approx([gains[0]] * 3, rel=1e-6)
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=1e-5)


def test_a_fitted_gain_is_the_same_by_kernels(interpreted):
    """At a resolution of 1e-7 the logit of a copy is as uncertain as its 1 - c, a product in float32."""
    for case, (expected, found, steps) in interpreted["fitted"].items():
        exact = 2e-3 if case.startswith("finest") else 1e-4
        assert found == pytest.approx(expected, rel=exact, abs=1e-5), case
        assert steps > FIRST_STEPS, case


def test_a_link_may_change_between_forward_and_backward(interpreted):
    before, after = interpreted["changed link"]
    assert max(map(abs, before)) > 0.01
    assert after == before


def test_compiles_to_one_graph(interpreted):
    assert interpreted["compiled"] == [0, 0, 0, 0]


def test_the_operators_give_the_shapes_that_torch_compile_is_told(interpreted):
    assert interpreted["unlike fakes"] == []


def test_the_schemas_name_the_arguments_in_their_order():
    pytest.importorskip("triton", reason="needs Triton, which PyTorch brings along on Linux")
    from taufree.backends.fused import op
    from taufree.backends.fused.arguments import TENSOR_COUNT, Arguments, Saved

    forward = op.contrast._opoverload._schema
    backward = op.contrast_backward._opoverload._schema
    assert tuple(x.name for x in forward.arguments) == Arguments._fields
    assert all("Tensor" in str(x.type) for x in forward.arguments[:TENSOR_COUNT])
    assert not any("Tensor" in str(x.type) for x in forward.arguments[TENSOR_COUNT:])
    assert len(forward.returns) == 2 + len(Saved._fields)
    expected = ("upstream", "wanted", *Saved._fields, *Arguments._fields)
    assert tuple(x.name for x in backward.arguments) == expected
    assert len(backward.returns) == len(op.Gradients._fields)


@pytest.mark.parametrize(
    ("contrast", "link", "reason"),
    [
        (Contrast(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3)), LogOdds(), "CUDA"),
        (Contrast(torch.ones(2, 3), torch.ones(2, 3)), LogOdds(), "CUDA"),
    ],
)
def test_says_what_it_cannot_do(contrast, link, reason):
    assert reason in fused.unsupported(contrast, link)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"queue": torch.ones(2, 3)}, "a queue"),
        ({"own_negatives": torch.ones(4, 2, 3)}, "negatives of one anchor each"),
        ({"in_batch": False, "queue": torch.ones(2, 3)}, "a queue alone"),
        ({"keys": None, "labels": torch.zeros(4)}, "labels"),
        ({"bias": Bias(0.0, None, True)}, "the sigmoid loss"),
        ({"anchors": torch.ones(4, 3, dtype=torch.float64)}, "float64"),
        ({"anchors": torch.ones(8193, 3), "keys": torch.ones(8193, 3)}, "size"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_the_kernels_do_not_fit_is_left_to_torch(changed, why, monkeypatch):
    monkeypatch.setattr(fused, "machine", lambda *_: None)
    plain, gain = Contrast(torch.ones(4, 3), torch.ones(4, 3)), Gain(*torch.zeros(3), 1.0)
    assert fused.can_fit(plain, LogOdds(), gain)
    assert not fused.can_fit(plain, Cubic(), gain)
    assert not fused.can_fit(plain, LogOdds(), gain._replace(log_gain=torch.zeros((), device="meta")))
    assert not fused.can_fit(replace(plain, **changed), LogOdds(), gain), why


def test_tensors_without_memory_are_fitted_by_torch(monkeypatch):
    monkeypatch.setattr(fused, "machine", lambda *_: None)
    with FakeTensorMode():
        rows = torch.ones(4, 3)
        assert not fused.can_fit(Contrast(rows, rows), LogOdds(), Gain(*torch.zeros(3), 1.0))
