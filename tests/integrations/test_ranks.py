"""The drop-ins over two ranks, real processes with gloo; one start does everything (rank_checks.py)."""

import pytest

from tests.integrations.rank_checks import SETTINGS, everything
from tests.test_distributed import start


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return start(everything, [2], tmp_path_factory.mktemp("ranks"))[2]


@pytest.mark.parametrize("scale", [20.0, None])
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_of_sentence_embeddings(ranks, settings, scale):
    """With a scale those of the library on the same ranks, without those of one process."""
    for found in ranks:
        assert max(found["ranking"][f"{settings}, {scale}"]) < 1e-5


def test_clip_trains_under_ddp_as_one_process_on_the_whole_batch(ranks):
    for found in ranks:
        assert max(found["clip"]) < 1e-6
