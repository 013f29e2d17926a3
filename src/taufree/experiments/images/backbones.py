"""Networks that were trained on ImageNet, where their weights come from, and a ResNet that is half frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from taufree.util.cache import cache_folder, download
from taufree.util.files import digest_of_files
from taufree.util.optional import require

# It takes a second, so it is imported after wrong settings are refused.
require("torchvision", "taufree[images]")

Backbone = Literal["resnet152", "resnet50", "resnet18", "resnet50-v1"]
"""torchvision's, and "resnet50-v1", the ResNet-50 that was published first. It has the keys and shapes of the
other, but halves the resolution in the 1 x 1 convolution at a layer's entry, where torchvision does it in the
3 x 3 one: a file of weights fits both, so the user must name the right one."""

WRAPPER = "module."
"""What DataParallel and DDP put in front of all names."""


def make_backbone(name: str) -> nn.Module:
    """A network of torchvision's, or "resnet50-v1", without its classifier, with random weights.

    Raises ValueError with one sentence where there is no such network, or it gives more than one vector.

    >>> make_backbone("resnet50-v1").layer3[0].conv1.stride
    (2, 2)
    """
    return _without_classifier(name)[0]


def _without_classifier(name: str) -> tuple[nn.Module, str]:
    """The network of :func:`make_backbone`, and how the keys of the classifier's weights begin."""
    from torchvision import models

    first = name == "resnet50-v1"
    usual = "resnet50" if first else name
    network: Any = models.get_model(usual, weights=None) if usual in models.list_models(models) else None
    linear = [key for key, part in (network or nn.Module()).named_modules() if isinstance(part, nn.Linear)]
    if not linear or hasattr(network, "aux_logits"):
        raise ValueError(
            "the backbone must be resnet50-v1 or an image classifier of torchvision with one linear layer at "
            f"its end, such as resnet50 or vit_b_16, got {name!r}."
        )
    parent, _, last = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), last, nn.Identity())
    if first:
        for layer in (network.layer2, network.layer3, network.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    return network, f"{linear[-1]}."


def read_weights(name: str, source: str) -> dict[str, Tensor] | None:
    """A state dict that fits the backbone ``name``.

    Args:
        name: which network.
        source: "imagenet", torchvision's weights (its first ones, of 2016), downloaded if need be; "random",
            which gives None; or else a file, ``.safetensors`` or what ``torch.save`` makes of a state dict,
            also in a checkpoint as its "state_dict" or "model", and with the "module." of DDP in front.

    Raises ValueError with one sentence where they cannot be had or do not fit.
    """
    check_weights(source)
    if source == "random":
        return None
    state = _download(name) if source == "imagenet" else _read(Path(source))
    return _fitting(name, source, state)


def check_weights(source: str) -> None:
    """Raise a ValueError if ``source`` of :func:`read_weights` is a file that is not there."""
    if source not in ("imagenet", "random") and not Path(source).is_file():
        raise ValueError(f"weights must be imagenet, random or a file, got {source!r}, which is no file.")


def weights_content(source: str) -> str | None:
    """A text that changes with what is in a file of weights; None for "imagenet" and "random"."""
    check_weights(source)
    return None if source in ("imagenet", "random") else digest_of_files([Path(source)])


class Half(nn.Sequential):
    """Layers one after the other, which compile to one graph.

    An ``nn.Sequential`` does not in every version of torch: those that skip torch's own ``forward`` compile
    each block by itself, and after eight of them none.
    """

    def forward(self, images: Tensor) -> Tensor:
        for layer in self:
            images = layer(images)
        return images


class HalfFrozen(nn.Module):
    """A ResNet whose first half, up to ``layer2``, never changes, and which never leaves evaluation mode.

    BatchNorm therefore uses its stored statistics in training too; in the second half its scales and shifts
    are trained like other weights.

    Shape:
        images [N, 3, H, W] to features [N, D] of length 1, at least float32.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        part: Any = network
        self.frozen = Half(
            part.conv1, part.bn1, part.relu, part.maxpool, part.layer1, part.layer2
        ).requires_grad_(False)
        self.trained = Half(part.layer3, part.layer4)
        self.to(memory_format=torch.channels_last)
        self.train()

    def train(self, mode: bool = True) -> HalfFrozen:
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            middle = self.frozen(images)
        maps = self.trained(middle)
        # The loss resolves cosines that bfloat16 does not.
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        return normalize(maps.mean((2, 3)), dim=-1)


def _download(name: str) -> dict[str, Tensor]:
    if name.endswith("-v1"):
        raise ValueError(f"weights must be a file or random for the backbone {name}, got 'imagenet'.")
    from torchvision import models

    url: str = models.get_model_weights(name).IMAGENET1K_V1.url
    file = url.rpartition("/")[2]
    digest = Path(file).stem.rpartition("-")[2]  # torchvision's names end with the beginning of the digest
    return download(
        cache_folder() / "weights" / file,
        lambda draft: torch.hub.download_url_to_file(url, str(draft), digest, progress=False),
        lambda path: torch.load(path, map_location="cpu", weights_only=True),
        title=f"the weights of {name}",
        advice=f"pass --set weights=FILE with what is at {url}",
    )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"weights must be a safetensors file or a saved state dict, but {path} cannot be read as one "
            f"({type(error).__name__})."
        ) from error
    for inner in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(inner), Mapping):
            state = state[inner]
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(one, Tensor) for key, one in state.items()
    ):
        raise ValueError(f"weights must be a state dict, names with tensors, but {path} holds another thing.")
    return dict(state)


def _fitting(name: str, source: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the backbone needs, in its own types; a classifier's are left out."""
    fitting = {}
    network, classifier = _without_classifier(name)
    needed = network.state_dict()
    if state and all(key.startswith(WRAPPER) for key in state):
        state = {key.removeprefix(WRAPPER): one for key, one in state.items()}
    for key, own in needed.items():
        if key not in state:
            if key.endswith("num_batches_tracked"):  # old files lack it, and evaluation mode does not use it
                fitting[key] = own
                continue
            raise ValueError(f"weights must fit {name}, but {source} has no {key}.")
        if state[key].shape != own.shape:
            raise ValueError(
                f"weights must fit {name}, whose {key} is {list(own.shape)}, but in {source} it is "
                f"{list(state[key].shape)}."
            )
        if own.is_floating_point() and not state[key].is_floating_point():
            raise ValueError(f"weights must be floats, but {key} in {source} is {state[key].dtype}.")
        fitting[key] = state[key].to(own.dtype)
        if not fitting[key].isfinite().all():
            raise ValueError(f"weights must be finite, but {key} in {source} has NaN or infinite ones.")
    if extra := [key for key in state if key not in needed and not key.startswith(classifier)]:
        raise ValueError(f"weights must fit {name}, but {source} has {extra[0]}, which {name} has not.")
    return fitting
