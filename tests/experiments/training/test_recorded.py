"""Replayed steps: which are recorded; on a GPU: tests/gpu/test_recorded.py."""

import torch

from taufree.experiments.training import recorded as replay
from taufree.experiments.training.recorded import Replayed


def test_each_shape_is_warmed_up_before_it_is_recorded(monkeypatch):
    """A compiled step that meets new shapes compiles, which fails during a recording. No device is needed."""
    recorded = []

    class Recording:
        def __init__(self, work, inputs):
            recorded.append(len(inputs[0]))

        def replay(self, inputs):
            return "replayed"

    monkeypatch.setattr(replay, "_Recording", Recording)
    monkeypatch.setattr(Replayed, "_warm_up", lambda step, inputs, **_: step._work(inputs))
    step = Replayed(lambda inputs: "done")
    sizes = [4, 4, 4, 4, 9, 4, 9, 9, 9]
    found = [step([torch.zeros(size)]) for size in sizes]
    assert [size for size, what in zip(sizes, found, strict=True) if what == "done"] == [4, 4, 4, 9, 9, 9]
    assert recorded == [4, 9]
