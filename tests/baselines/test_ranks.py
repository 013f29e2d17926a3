"""A temperature for each anchor and the schemes over ranks, against one process on the whole batch."""

import itertools

import pytest
import torch

from tests.support.ranks import WAYS, start
from tests.support.scheme_ranks import ANCHOR_CALLS, WORLDS, everything

TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-10}
SIZES = (3, 2)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return start(everything, list(SIZES), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("world", SIZES)
def test_a_temperature_for_each_anchor_equals_one_process(world, worlds):
    for ranked, call, way in itertools.product(worlds[world], ANCHOR_CALLS, (*WAYS, "reference")):
        assert max(ranked[f"{call}, {way}"]) < TOLERANCE[WORLDS[world][2]], (call, way)


@pytest.mark.parametrize("world", SIZES)
def test_a_rule_sees_the_batches_of_all_ranks(world, worlds):
    for ranked in worlds[world]:
        assert max(max(errors) for errors in ranked["rules"].values()) < 1e-6  # a temperature in float32


def test_schemes_equal_one_process_and_share_the_state_of_samples(worlds):
    for ranked in worlds[2]:
        for name, errors in ranked["schemes"].items():
            assert max(errors) < 1e-6, name
