"""open_clip's loss: with the learned scale it is the original, without it is free and lets the scale be."""

import runpy
import sys

import open_clip
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from examples.clip import batch, main, things, tiny_clip
from taufree import FittedLogOdds, LogOdds, info_nce, sigmoid_nce
from taufree.integrations import open_clip as integration
from taufree.integrations.open_clip import ClipLoss, SigLipLoss, temperature_free


def features(n=9, d=6):
    draw = torch.Generator().manual_seed(0)
    rows = [normalize(torch.randn(n, d, generator=draw), dim=1).requires_grad_() for _ in range(2)]
    return {"image_features": rows[0], "text_features": rows[1]}


def test_with_the_learned_scale_it_is_open_clips():
    inputs = features()
    scale, bias = (torch.tensor(x, requires_grad=True) for x in (14.3, -3.0))
    leaves = [*inputs.values(), scale]
    for extra in ({}, {"logit_bias": bias}):
        ours = ClipLoss(use_logit_scale=True)(**inputs, logit_scale=scale, **extra, output_dict=True)
        theirs = open_clip.ClipLoss()(**inputs, logit_scale=scale, **extra, output_dict=True)
        assert ours.keys() == theirs.keys()
        found, expected = (
            [x["contrastive_loss"], *torch.autograd.grad(x["contrastive_loss"], leaves)]
            for x in (ours, theirs)
        )
        assert all(map(torch.equal, found, expected))


def test_without_it_is_both_directions_on_the_log_odds():
    inputs = features()
    image, text = (normalize(x.double(), dim=1) for x in inputs.values())
    logits, own = LogOdds()(image @ text.T), torch.arange(len(image))
    expected = (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2
    found = ClipLoss(link="free")(**inputs)
    torch.testing.assert_close(found, expected.float())
    grads = (torch.autograd.grad(x, list(inputs.values())) for x in (found, expected))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_siglip_with_the_learned_scale_is_open_clips():
    inputs = features()
    scale, bias = (torch.tensor(x, requires_grad=True) for x in (10.0, -10.0))
    leaves = [*inputs.values(), scale, bias]
    found, expected = (
        [loss, *torch.autograd.grad(loss, leaves)]
        for loss in (
            one(**inputs, logit_scale=scale, logit_bias=bias)
            for one in (SigLipLoss(use_logit_scale=True), open_clip.loss.SigLipLoss())
        )
    )
    assert all(map(torch.equal, found, expected))
    assert SigLipLoss(use_logit_scale=True)(**inputs, logit_scale=10.0) > 0  # without a bias


def test_siglip_without_has_the_prior_for_its_bias_and_lets_the_scale_be():
    inputs, unused = features(), [torch.tensor(x, requires_grad=True) for x in (10.0, -10.0)]
    loss = SigLipLoss(link="free", backend="blockwise")
    assert type(SigLipLoss().link) is FittedLogOdds
    found = loss(**inputs, logit_scale=unused[0], logit_bias=unused[1], output_dict=True)["contrastive_loss"]
    assert found == sigmoid_nce(*inputs.values())
    found.backward()
    assert [x.grad.item() for x in unused] == [0, 0]
    twin = temperature_free(open_clip.loss.SigLipLoss(rank=1, world_size=2, dist_impl="shift"))
    assert isinstance(twin, SigLipLoss)
    assert (twin.rank, twin.world_size, twin.dist_impl, twin.use_logit_scale) == (1, 2, "shift", False)
    assert type(temperature_free(loss).link) is LogOdds


def test_the_default_fits_its_gain():
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(64, 16, generator=draw)
    text = image + torch.randn(64, 16, generator=draw)
    loss, link = ClipLoss(), FittedLogOdds()
    for _ in range(8):
        assert loss(image.requires_grad_(), text) == info_nce(image, text, symmetric=True, link=link)
    assert loss.link.gain == link.gain > 3
    before = loss.link.gain
    with torch.no_grad():
        loss(image, -text)
    assert loss.link.gain == before  # an evaluation leaves it


@pytest.mark.parametrize("scale", [14.3, float("inf"), float("nan")])
def test_the_scale_changes_nothing_and_gets_a_gradient_of_zero(scale):
    inputs = features()
    unused = [
        torch.tensor(scale, requires_grad=True),
        torch.tensor([scale], dtype=torch.float64).requires_grad_(),
    ]
    loss = ClipLoss()(**inputs, logit_scale=unused[0], logit_bias=unused[1])
    assert loss.item() == ClipLoss()(**inputs).item()
    assert loss.dtype == torch.float32
    loss.backward()
    assert [x.grad.item() for x in unused] == [0, 0]
    assert inputs["image_features"].grad.isfinite().all()


def test_a_model_of_open_clip_trains_with_it():
    torch.manual_seed(0)
    model = tiny_clip()
    output = model(*batch(things()[:16], torch.Generator().manual_seed(0)))
    ClipLoss()(**output, output_dict=True)["contrastive_loss"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.logit_scale.grad.item() == 0


def test_the_example_learns_new_combinations():
    before, after = main(["--steps", "60", "--batch-size", "48"])
    assert after > max(0.2, 3 * before)


def test_a_scale_may_be_a_plain_number():
    inputs = features()
    assert ClipLoss()(**inputs, logit_scale=14.3) == ClipLoss()(**inputs)
    theirs = open_clip.ClipLoss()(**inputs, logit_scale=14.3)
    assert ClipLoss(use_logit_scale=True)(**inputs, logit_scale=14.3) == theirs


def test_the_twin_keeps_the_settings():
    loss = open_clip.ClipLoss(local_loss=True, gather_with_grad=True, cache_labels=True, rank=1, world_size=2)
    twin = temperature_free(loss)
    assert isinstance(twin, ClipLoss)
    assert not twin.use_logit_scale
    names = ("local_loss", "gather_with_grad", "cache_labels", "rank", "world_size", "use_horovod")
    assert [getattr(twin, name) for name in names] == [True, True, True, 1, 2, False]
    assert not temperature_free(ClipLoss(use_logit_scale=True)).use_logit_scale


class WithoutHorovod(open_clip.ClipLoss):
    """The shape of the loss since open_clip has dropped Horovod."""

    def __init__(self, local_loss=False, gather_with_grad=False, cache_labels=False, rank=0, world_size=1):
        super().__init__(local_loss, gather_with_grad, cache_labels, rank, world_size)
        del self.use_horovod


def test_a_version_without_horovod_gets_what_it_takes(monkeypatch):
    monkeypatch.setattr(open_clip, "ClipLoss", WithoutHorovod)
    found = runpy.run_path(integration.__file__)
    inputs = features()
    for options in ({}, {"local_loss": True, "use_horovod": False}):
        assert found["ClipLoss"](**options)(**inputs) == ClipLoss()(**inputs)
    with pytest.raises(
        ValueError, match=r"^use_horovod must be False, .* open_clip has no Horovod, got True"
    ):
        found["ClipLoss"](use_horovod=True, use_logit_scale=True)
    twin = found["temperature_free"](WithoutHorovod(gather_with_grad=True, world_size=2))
    assert isinstance(twin, found["ClipLoss"])
    assert (twin.local_loss, twin.gather_with_grad, twin.world_size) == (False, True, 2)


def test_an_argument_that_no_version_has_is_refused():
    with pytest.raises(TypeError, match="horovod"):
        ClipLoss(horovod=True)


def test_what_cannot_be_done_is_said():
    with pytest.raises(TypeError, match=r"got CoCaLoss of open_clip\.loss, which overrides forward\.$"):
        temperature_free(open_clip.CoCaLoss(1.0, 1.0))
    with pytest.raises(TypeError, match=r"^loss must be one of ClipLoss, SigLipLoss, got Identity of torch"):
        temperature_free(torch.nn.Identity())
    with pytest.raises(ValueError, match=r"^link must be None with use_logit_scale=True"):
        SigLipLoss(use_logit_scale=True, link="free")
    with pytest.raises(ValueError, match="use_horovod must be False"):
        ClipLoss(world_size=2, use_horovod=True)
    image, text = features().values()
    with pytest.raises(TypeError, match=r"^image_features must be a floating-point tensor, got list\.$"):
        ClipLoss()(image.tolist(), text)
    with pytest.raises(ValueError, match=r"^text_features must have the shape of image_features"):
        ClipLoss()(image, text[:8])
    with pytest.raises(ValueError, match=r"^logit_scale must be given with use_logit_scale=True, got None"):
        ClipLoss(use_logit_scale=True)(image, text)
    with pytest.raises(ValueError, match=r"world_size=2 needs torch\.distributed\.init_process_group"):
        ClipLoss(world_size=2)(**features())


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs open_clip: pip install "taufree\[open-clip\]"$'):
        runpy.run_path(integration.__file__)
