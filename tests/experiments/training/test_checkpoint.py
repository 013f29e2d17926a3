"""Checkpoints: what goes in comes out, whatever a crash left behind."""

import shutil

import pytest
import torch
from torch import nn

from taufree.experiments.training.checkpoint import Checkpoint
from taufree.util.errors import BadInputError


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "run")


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_round_trip_with_shared_weights_and_buffers(checkpoint):
    model, other = tied(), tied()
    model(torch.randn(8, 3))
    checkpoint.save(1, model, {"epoch": 1, "curves": {"loss": [0.1]}, "moment": torch.arange(3)})
    state = checkpoint.load(other)
    assert same(model, other)
    assert state["curves"] == {"loss": [0.1]}
    assert torch.equal(state["moment"], torch.arange(3))


def test_nothing_saved_is_none(checkpoint):
    model, before = tied(), tied()
    before.load_state_dict(model.state_dict())
    assert checkpoint.load(model) is None
    assert same(model, before)


def test_the_newest_wins_and_the_older_go(checkpoint):
    for epoch in (9, 10):
        checkpoint.save(epoch, tied(), {"epoch": epoch})
    assert [entry.name for entry in checkpoint.path.iterdir()] == ["epoch-10"]
    assert checkpoint.load(tied())["epoch"] == 10


def test_a_file_of_someone_else_is_left_alone(checkpoint):
    checkpoint.save(1, tied(), {"epoch": 1})
    (checkpoint.path / ".DS_Store").touch()
    checkpoint.save(2, tied(), {"epoch": 2})
    assert sorted(entry.name for entry in checkpoint.path.iterdir()) == [".DS_Store", "epoch-2"]


def test_a_crash_before_the_old_one_is_removed(checkpoint, tmp_path):
    checkpoint.save(9, tied(), {"epoch": 9})
    shutil.copytree(checkpoint.path / "epoch-9", tmp_path / "old")
    checkpoint.save(10, tied(), {"epoch": 10})
    shutil.move(tmp_path / "old", checkpoint.path / "epoch-9")
    assert checkpoint.load(tied())["epoch"] == 10


def test_a_half_written_checkpoint_does_not_count(checkpoint):
    checkpoint.save(1, tied(), {"epoch": 1})
    draft = checkpoint.path / "draft-2"
    draft.mkdir()
    (draft / "weights.safetensors").write_bytes(b"half")
    assert checkpoint.load(tied())["epoch"] == 1
    checkpoint.save(2, tied(), {"epoch": 2})
    assert checkpoint.load(tied())["epoch"] == 2
    assert not draft.exists()


def test_remove(checkpoint):
    checkpoint.save(1, tied(), {})
    checkpoint.remove()
    checkpoint.remove()
    assert not checkpoint.path.exists()


def test_a_failure_while_writing_leaves_the_older_checkpoint(checkpoint):
    model = tied()
    checkpoint.save(1, model, {"epoch": 1})
    with pytest.raises(Exception, match="lambda"):
        checkpoint.save(2, tied(), {"epoch": 2, "unwritable": lambda: None})
    other = tied()
    assert checkpoint.load(other) == {"epoch": 1}
    assert same(other, model)


def test_what_cannot_be_written_is_one_sentence_and_leaves_the_older_one(checkpoint):
    class Unwritable(nn.Module):
        def state_dict(self, *args, **kwargs):
            raise OSError(28, "No space left on device")

    checkpoint.save(1, tied(), {"epoch": 1})
    with pytest.raises(
        BadInputError, match=r"the checkpoint .*epoch-2 could not be written: .*No space left"
    ):
        checkpoint.save(2, Unwritable(), {"epoch": 2})
    assert [entry.name for entry in checkpoint.path.iterdir()] == ["epoch-1"]
    assert checkpoint.load(tied())["epoch"] == 1
