"""Replayed steps: the same numbers as plain ones, and work that cannot be recorded is done all the same."""

import pytest
import torch

from taufree.experiments.training import recorded as replay
from taufree.experiments.training.recorded import WARM_UP, Replayed

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


def trained(replayed, steps=20, odd=16):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 3).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, capturable=True)

    def work(inputs):
        optimizer.zero_grad()
        loss = layer(inputs[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = Replayed(work) if replayed else work
    losses = []
    for number in range(steps):
        losses.append(step([torch.randn(odd if number % 5 == 1 else 16, 8).cuda()]).item())
    return losses, layer.weight.detach().cpu(), step


@needs_cuda
@pytest.mark.parametrize("odd", [16, 7])
def test_replayed_training_is_plain_training_step_by_step(odd):
    """Also if every fifth batch has another shape."""
    plain, weight, _ = trained(replayed=False, odd=odd)
    losses, other, step = trained(replayed=True, odd=odd)
    assert losses == pytest.approx(plain, rel=1e-5)
    assert torch.allclose(weight, other, atol=1e-6)
    assert not step.waits
    assert losses[0] > losses[-1]


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


@needs_cuda
def test_work_that_waits_for_the_device_is_noticed_and_done():
    seen = []

    def work(inputs):
        seen.append(inputs[0].sum().item())
        return inputs[0] * 2

    step = Replayed(work)
    for number in range(WARM_UP + 3):
        x = torch.full((4,), float(number), device="cuda")
        assert step([x]).tolist() == [2.0 * number] * 4
    assert step.waits
    assert seen == [4.0 * number for number in range(WARM_UP + 3)]
