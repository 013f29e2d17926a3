"""CLIP's training on images with captions: two towers, whose vectors find each other's matches.

An image and one of its captions, drawn anew in every epoch, are a positive pair; the other images and
captions of the batch are negatives, both ways. Judged by retrieval on images that training has not seen: the
captions of an image among all captions, and the image of a caption among all images.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from taufree import Link, info_nce, sigmoid_nce
from taufree.baselines import Scheme
from taufree.experiments.acceleration import Acceleration
from taufree.experiments.evaluation.knn_and_linear import nearest
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.evaluation.report_arrays import NEIGHBOUR_COUNT, QUERY_COUNT
from taufree.experiments.evaluation.retrieval import recalls
from taufree.experiments.image_text.captions import PARTS, check_captions, find_captions
from taufree.experiments.image_text.frozen import (
    ROWS_PER_CHUNK,
    cached_features,
    digest_of,
    features_file,
    image_features,
    text_features,
)
from taufree.experiments.image_text.pairs import make_captions
from taufree.experiments.image_text.towers import (
    ImageTowers,
    TwoTowers,
    image_tower_content,
    load_text_tower,
    text_tower_content,
)
from taufree.experiments.images.augment import cropped_view, draw_crops
from taufree.experiments.images.decoded import DecodedImages, load_images
from taufree.experiments.images.image_recipe import CropSettings, ImagesOnDevice
from taufree.experiments.language.tokens import read_texts, text_vectors, tokenise
from taufree.experiments.recipe import Preset, Step
from taufree.experiments.settings import Bounds

DEV, TEST = PARTS.index("dev"), PARTS.index("test")


@dataclass(frozen=True)
class CLIPSettings(CropSettings):
    """The defaults fine-tune both towers; they are usual values, not searched ones.

    Those of the preset "frozen" were chosen by looking at tau 0.05 alone on the dev part of Flickr8k, one
    seed for each of twelve combinations of epochs, learning rate, weight decay, dropout, a hidden layer and
    normalised features. With 20 and with 40 epochs their recalls summed to 282; no dropout or a hidden layer
    cost 15 to 30 of that, and features of length 1 gave 284. If they favour a link, it is tau 0.05.
    """

    epochs: int = 20
    batch_size: int = 256
    crop: int = 224
    subset: Annotated[int, "Use so many images of each part at most; 0 is all."] = 0
    frozen: Annotated[
        bool, "Train the heads alone, on features that are computed once: a minute on two cores."
    ] = False
    backbone: Annotated[
        str,
        "The image tower: a classifier of torchvision, resnet50-v1, the first ResNet-50, or "
        "open_clip:MODEL/PRETRAINED.",
    ] = "resnet50"
    weights: Annotated[
        str,
        "imagenet (downloaded), random, or a file of weights: safetensors or a state dict; a tower of "
        "open_clip has its own.",
    ] = "imagenet"
    model: Annotated[
        str,
        "The text tower: an encoder of transformers, a name on the hub or a folder, or "
        "open_clip:MODEL/PRETRAINED.",
    ] = "sentence-transformers/all-MiniLM-L6-v2"
    length: Annotated[int, "Captions are cut off after so many tokens.", Bounds(3)] = 64
    projection: Annotated[int, "How many numbers of an image or a caption the loss compares.", Bounds(1)] = (
        256
    )
    dropout: Annotated[float, "The dropout of a head's inputs.", Bounds(0, 1)] = 0.0
    learning_rate: Annotated[float, "The highest learning rate of AdamW for the heads."] = 1e-3
    tower_learning_rate: Annotated[float, "The same for the towers."] = 5e-5
    weight_decay: Annotated[float, "The weight decay of AdamW."] = 1e-2
    loss: Annotated[
        Literal["info_nce", "sigmoid", "sigmoid-bias"],
        "CLIP's, SigLIP's with the prior log-odds for its bias, or SigLIP's with a number learned above it.",
    ] = "info_nce"
    smallest_crop: Annotated[
        float, "The least share of an image's area that a training view shows.", Bounds(0.01, 1)
    ] = 0.5


class CLIP(ImagesOnDevice):
    name = "clip"
    title = "CLIP on images with captions"
    task = (
        "Two networks learn from images and their captions: an image and its caption (a positive pair) "
        "should get similar vectors, images and the captions of others (negative pairs) should not."
    )
    data_source = (
        "The folder --data, or flickr8k in it, holds images, in folders or tar files, and captions.tsv, .csv "
        "or .txt (a name, a caption), or tar files of KEY.jpg and KEY.txt; train.txt, dev.txt and test.txt "
        "list the parts."
    )
    example = "taufree run clip --data FOLDER --preset frozen --links free,fitted,0.05,learnable"
    settings_type = CLIPSettings
    metrics: ClassVar = {
        "rsum": "the sum of the six recalls, of the test part",
        "i2t_r1": "% of test images of which a caption is the nearest of all test captions",
        "i2t_r5": "the same among the nearest five",
        "i2t_r10": "the same among the nearest ten",
        "t2i_r1": "% of test captions whose image is the nearest of all test images",
        "t2i_r5": "the same among the nearest five",
        "t2i_r10": "the same among the nearest ten",
        "dev_rsum": "the sum of the six recalls of the dev part, by which the epoch is chosen",
    }
    presets: ClassVar = {
        "full": Preset(seeds=3),
        "frozen": Preset(seeds=5, settings={"frozen": True, "epochs": 30, "dropout": 0.2}),
        "quick": Preset(
            seeds=1, settings={"frozen": True, "epochs": 5, "batch_size": 64, "crop": 64, "subset": 256}
        ),
    }
    select_by = "dev_rsum"
    serves: ClassVar = frozenset({"index"})
    pairs = True
    make_views = staticmethod(cropped_view)
    stored_side = 256

    settings: CLIPSettings

    def check(self, data: Path | None) -> None:
        check_captions(data)

    def content(self, data: Path | None) -> str:
        chosen = self.settings
        towers = (image_tower_content(chosen.backbone, chosen.weights), text_tower_content(chosen.model))
        fingerprint = find_captions(data, chosen.subset).fingerprint()
        return "-".join(filter(None, (fingerprint, *towers)))

    def find(self, data: Path | None) -> DecodedImages:
        self.found = find_captions(data, self.settings.subset)
        self.notes += self.found.notes
        return load_images(self.found.listing, self.stored_side)

    def load(self, data: Path | None) -> None:
        chosen = self.settings
        self._load_towers()
        super().load(data)
        listing, skipped = self.found.listing, set(self.images.skipped)
        names = [file.name for file in listing.train + listing.val if file.name not in skipped]
        self.captions = make_captions(
            [self.found.captions[name] for name in names], self._tokenizer, chosen.length
        )
        for number, part in enumerate(PARTS):
            if not (self.images.labels == number).any():
                raise ValueError(f"none of the images of the part {part} can be read.")
        if chosen.frozen:
            self._prepare_frozen()

    def _load_towers(self) -> None:
        """Both towers as they are before training, and how many features they give."""
        chosen = self.settings
        self._towers = ImageTowers(chosen.backbone, chosen.weights, chosen.crop)
        self._text_tower, self._tokenizer, text_width = load_text_tower(chosen.model)
        self._widths = self._towers.width(), text_width
        if chosen.frozen:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(0)  # random weights are the same in all runs
                self._frozen = self._towers.make()

    def network(self) -> nn.Module:
        self._load_towers()
        return self.model()

    def embed_new(
        self, model: nn.Module, source: Path, watch: Callable[[int, int], None]
    ) -> tuple[list[str], Tensor]:
        """The images of a folder, or the texts of a file."""
        device, frozen = next(model.parameters()).device, self.settings.frozen
        if source.is_dir():
            image = self._frozen.to(device).eval() if frozen else nn.Identity()
            return self.embed_folder(lambda views: model(image(views))[0], source, device, watch)
        text = self._text_tower.to(device).eval() if frozen else nn.Identity()

        def embed(*inputs: Tensor) -> Tensor:
            vectors: Tensor = model(None, (text(*inputs),) if frozen else inputs)[0]
            return vectors

        texts = read_texts(source)
        tokens = tokenise(self._tokenizer, texts, self.settings.length)
        return texts, text_vectors(embed, tokens, device, ROWS_PER_CHUNK, watch)

    def _prepare_frozen(self) -> None:
        """The names of all features in the cache."""
        chosen, tokens = self.settings, self.captions.tokens
        about = (chosen.backbone, self.found.listing.fingerprint(), self.stored_side, chosen.crop)
        self._digests = (
            digest_of(self._frozen, *about),
            digest_of(self._text_tower, tokens.ids, tokens.lengths),
        )
        if not all(features_file(digest).exists() for digest in self._digests):
            self.notes.append(
                f"The features of {len(self.images.labels)} images and {len(self.captions.texts)} captions "
                "are computed once, before the first run: some minutes on a CPU."
            )

    @property
    def sample_count(self) -> int:
        return self.images.training

    def model(self) -> nn.Module:
        chosen = self.settings
        image: nn.Module = nn.Identity()
        text: nn.Module = nn.Identity()
        if not chosen.frozen:
            image, text = self._towers.make(), copy.deepcopy(self._text_tower)
        made = TwoTowers(image, text, self._widths, chosen.projection, chosen.dropout)
        if chosen.loss == "sigmoid-bias":
            made.bias = nn.Parameter(torch.zeros(()))
        return made

    def compiled(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, TwoTowers)
        return [model.image]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(model, TwoTowers)
        chosen = self.settings
        groups: list[dict[str, Any]] = [{"params": model.heads}]
        if not chosen.frozen:
            groups.append({"params": model.towers, "lr": chosen.tower_learning_rate})
        if model.bias is not None:
            groups.append({"params": [model.bias], "weight_decay": 0.0})
        return torch.optim.AdamW(
            groups, lr=chosen.learning_rate, weight_decay=chosen.weight_decay, fused=True
        )

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        """A cosine from 1 to 0 over all steps."""
        total = self.settings.epochs * self.steps
        return LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * min(step, total) / total)) / 2)

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        if self.settings.frozen:
            self._device = device
            tokens, side = self.captions.tokens, self.settings.crop
            image, text = self._digests
            found = (
                cached_features(image, lambda: image_features(self._frozen, self.images, side, device)),
                cached_features(text, lambda: text_features(self._text_tower, tokens, device)),
            )
            self._features = [features.to(device) for features in found]
            return self.acceleration
        self._tokens = self.captions.tokens.to(device)
        # Captions of a batch are as long as the longest of them, so that steps differ in their shapes.
        return replace(super().accelerate(model, device), recorded_steps=False)

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """The numbers of images and, of frozen towers, features of them and of a caption of each; or else the
        images, the boxes and flips of their views, and ids and attention of the captions."""
        size, steps = self.settings.batch_size, self.steps
        order = torch.randperm(self.images.training, generator=generator)[: steps * size]
        captions = self.captions.draw(order, generator).view(steps, size)
        if self.settings.frozen:
            for rows, texts in zip(order.view(steps, size), captions, strict=True):
                yield rows, self._image_inputs(rows), *self._text_inputs(texts)
            return
        crops = draw_crops(self.images.sizes[order], generator, smallest=self.settings.smallest_crop)
        boxes, flips = (part.view(steps, size, *part.shape[1:]) for part in crops)
        order = order.view(steps, size)
        for step, images in enumerate(self._sent(order)):
            yield order[step], images, boxes[step], flips[step], *self._text_inputs(captions[step])

    def step(self, model: nn.Module, batch: Any, link: Link) -> Step:
        ids, images, *texts = batch
        if not self.settings.frozen:
            box, flip, *texts = texts
            images = self._augment(self._lines_of(images), box, flip)
        image, text = model(images, texts)
        if self.settings.loss == "info_nce":
            loss = self.loss(image, text, link, ids=ids)
        else:
            bias: Any = model.bias
            if bias is not None:
                bias = bias - math.log(len(ids) - 1)
            loss = sigmoid_nce(image, text, ids=ids, link=link, bias=bias)
        return Step(loss, observe_pairs(image, text, link))

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link | Scheme, **inputs: Tensor) -> Tensor:
        # By their ids, captions of one image are never negatives of each other.
        ids = inputs["ids"]
        if isinstance(link, Scheme):  # an image is in a batch once, so that its number suffices
            found: Tensor = link(view_a, view_b, **{"index" if link.needs else "ids": ids})
            return found
        return info_nce(view_a, view_b, symmetric=True, ids=ids, link=link)

    def follow(self, model: nn.Module) -> dict[str, float]:
        return {"dev_rsum": recalls(*self._vectors(model, DEV))["rsum"]}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return recalls(*self._vectors(model, TEST))

    def _vectors(self, model: nn.Module, part: int) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors of the images and of the captions of a part, and which of the images each caption has."""
        rows, texts = self._rows(part)
        size = 2 * self.settings.batch_size
        # Chunks of equal sizes, where the number of images allows it: a compiled tower sees one shape.
        chunks = rows.chunk(max(1, -(-len(rows) // size)))
        images = [model(self._image_inputs(some))[0] for some in chunks]
        captions = [model(None, self._text_inputs(some))[0] for some in torch.split(texts, size)]
        owners = self.captions.owners[texts] - rows[0]
        return torch.cat(images), torch.cat(captions), owners.to(self._device)

    def _rows(self, part: int) -> tuple[Tensor, Tensor]:
        """The numbers of the images of a part, which follow each other, and of their captions."""
        rows = (self.images.labels == part).nonzero()[:, 0]
        return rows, self.captions.of(rows)

    def _image_inputs(self, rows: Tensor) -> Tensor:
        """What the model takes of images: their middles, or features."""
        if self.settings.frozen:
            return self._features[0][rows.to(self._device)]
        (images,) = self._sent(rows[None])
        return self._centre(self._lines_of(images), self._sizes[rows.to(self._device)])

    def _text_inputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """What the model takes of captions: ids and attention, or features."""
        if self.settings.frozen:
            return (self._features[1][rows.to(self._device)],)
        tokens = self._tokens.take(rows)
        return tokens.ids, tokens.attention

    def keep(self, model: nn.Module) -> dict[str, NDArray[Any]]:
        """Test captions with the images nearest to them, test images with the captions nearest to them."""
        images, texts, owner = (part.cpu() for part in self._vectors(model, TEST))
        rows, captions = self._rows(TEST)
        asked = torch.linspace(0, len(rows) - 1, min(QUERY_COUNT, len(rows))).round().long()
        asked_texts = self.captions.firsts[rows[asked]] - captions[0]
        found_images = nearest(images, texts[asked_texts], NEIGHBOUR_COUNT)
        found_texts = nearest(texts, images[asked], NEIGHBOUR_COUNT)
        words = np.array([self.captions.texts[number] for number in captions])
        return {
            "caption_queries": words[asked_texts.numpy()],
            "found_images": self.thumbnails(rows[found_images]),
            "found_images_right": (found_images == asked[:, None]).numpy(),
            "image_queries": self.thumbnails(rows[asked][:, None]),
            "found_captions": words[found_texts.numpy()],
            "found_captions_right": (owner[found_texts] == asked[:, None]).numpy(),
        }
