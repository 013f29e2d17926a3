"""Backbones: torchvision's features, both kinds of strides, and weights that fit or are refused."""

import tarfile

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize
from torchvision.models import resnet18

from taufree.experiments.images.backbones import HalfFrozen, make_backbone, read_weights


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return resnet18(weights=None).eval()


def test_features_are_torchvisions_normalised(network):
    whole = resnet18(weights=None).eval()
    whole.load_state_dict(network.state_dict())
    half = HalfFrozen(whole)
    images = torch.randn(2, 3, 64, 64)
    network_features = torch.nn.Sequential(*list(network.children())[:-1])(images).flatten(1)
    assert torch.allclose(half(images), normalize(network_features, dim=-1), atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = half(images)
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded.norm(dim=-1), torch.ones(2), atol=1e-6)


def test_the_first_resnet_halves_elsewhere_and_is_the_same_otherwise():
    first, usual = (make_backbone(name).eval() for name in ("resnet50-v1", "resnet50"))
    first.load_state_dict(usual.state_dict())
    assert [getattr(first, f"layer{i}")[0].conv2.stride for i in (1, 2, 3, 4)] == [(1, 1)] * 4
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        one, other = first(images), usual(images)
    assert one.shape == other.shape == (1, 2048)
    assert not torch.allclose(one, other, rtol=1e-2)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_file_is_read_whole_or_in_half_precision(network, tmp_path, kind):
    path = tmp_path / f"weights.{kind}"
    state = {
        name: value.half() if value.dim() == 4 else value.clone()
        for name, value in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(state, path) if kind == "safetensors" else torch.save(state, path)
    found = read_weights("resnet18", str(path))
    make_backbone("resnet18").load_state_dict(found)
    assert found["layer4.0.conv1.weight"].dtype == torch.float32
    assert torch.allclose(found["layer4.0.conv1.weight"], network.layer4[0].conv1.weight, atol=1e-3)
    assert torch.equal(found["bn1.weight"], network.bn1.weight)
    assert read_weights("resnet18", "random") is None


def test_weights_that_do_not_fit_name_the_first_key(network, tmp_path):
    path = tmp_path / "weights.pt"
    whole = network.state_dict()

    def refused(name, state):
        torch.save(state, path)
        with pytest.raises(ValueError, match=r"^weights must [^\n]*\.$") as caught:
            read_weights(name, str(path))
        return str(caught.value)

    assert "whose layer1.0.conv1.weight is [64, 64, 1, 1]" in refused("resnet50", whole)
    less = {name: value for name, value in whole.items() if not name.startswith("layer3.1.bn2")}
    assert refused("resnet18", less).endswith("has no layer3.1.bn2.weight.")
    more = {**whole, "layer4.2.conv1.weight": torch.zeros(1)}
    assert "has layer4.2.conv1.weight, which resnet18 has not." in refused("resnet18", more)
    for other in ({"epoch": 3, "weights": whole}, [whole], torch.ones(3), {0: torch.ones(3)}):
        assert "a state dict, names with tensors" in refused("resnet18", other)
    broken = {**whole, "bn1.weight": whole["bn1.weight"] / 0}
    assert "must be finite, but bn1.weight in " in refused("resnet18", broken)
    quantized = {**whole, "conv1.weight": whole["conv1.weight"].to(torch.int8)}
    assert refused("resnet18", quantized).endswith("is torch.int8.")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(__file__)
    with pytest.raises(ValueError, match=r"weights\.pt cannot be read as one \("):
        read_weights("resnet18", str(path))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda state: {"model": state, "epoch": 3},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    ],
)
def test_a_checkpoint_of_training_is_read_as_well(network, tmp_path, wrap):
    torch.save(wrap(network.state_dict()), tmp_path / "checkpoint.pth.tar")
    found = read_weights("resnet18", str(tmp_path / "checkpoint.pth.tar"))
    assert torch.equal(found["layer4.0.conv1.weight"], network.layer4[0].conv1.weight)


def test_a_pickle_that_would_run_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    torch.save({"conv1.weight": Trap()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"cannot be read as one \(UnpicklingError\)"):
        read_weights("resnet18", str(tmp_path / "weights.pt"))
    assert not (tmp_path / "sprung").exists()


def test_torchvisions_weights_are_kept_in_the_cache(network, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = tmp_path / ".cache" / "taufree" / "weights" / "resnet18-f37072fd.pth"
    kept.parent.mkdir(parents=True)
    torch.save(network.state_dict(), kept)
    found = read_weights("resnet18", "imagenet")
    assert torch.equal(found["conv1.weight"], network.conv1.weight)
    kept.write_bytes(b"broken off")
    with pytest.raises(
        ValueError, match=r"could not be downloaded to .*; pass --set weights=FILE with what is at"
    ):
        read_weights("resnet18", "imagenet")
    with pytest.raises(ValueError, match=r"weights must be a file or random for the backbone resnet50-v1"):
        read_weights("resnet50-v1", "imagenet")
