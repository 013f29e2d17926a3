"""What recipes on images have in common: images on the device, views of them, features of all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taufree import distributed
from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.evaluation.report_arrays import THUMBNAIL_SIDE
from taufree.experiments.images.augment import (
    AREA_SHARES,
    Parameters,
    augment,
    centre_crop,
    centre_view,
    draw_parameters,
)
from taufree.experiments.images.decoded import DecodedImages, ahead, fits, load_images
from taufree.experiments.images.listing import find_all
from taufree.experiments.settings import BatchSettings, Bounds
from taufree.util.machine import compiles

MIN_EVALUATION_BATCH = 512
"""Images that are judged at once on a GPU, at least: fewer would leave it idle between launches."""
NEW_IMAGES_PER_CHUNK = 128
"""Images of ``taufree embed`` that go through a network at once."""


@dataclass(frozen=True)
class CropSettings(BatchSettings):
    """The settings of all of them."""

    crop: Annotated[int, "Pixels of a view's side.", Bounds(1)] = 128
    subset: Annotated[
        int, "Use so many training and so many validation images at most, evenly from all classes; 0 is all."
    ] = 0


@dataclass(frozen=True)
class ViewSettings(CropSettings):
    """The settings that SimCLR's views are made by."""

    blur: Annotated[float, "The probability that a view is blurred.", Bounds(0, 1)] = 0.5


class ImagesOnDevice(Accelerated):
    """A recipe whose images stay on the device, if they fit, where their views are made."""

    acceleration = Acceleration(precision="bf16-mixed", recorded_steps=True)
    smallest: ClassVar[float] = AREA_SHARES[0]
    """The least share of an image's area that a view shows."""
    make_views: ClassVar[Callable[..., Tensor]] = staticmethod(augment)
    """Of images line by line, what was drawn, and the keyword ``size``."""

    stored_side: ClassVar[int] = 160
    """Pixels that the shorter side of an image from a folder is shrunk to."""

    _compiled_for: ClassVar[object] = None

    settings: CropSettings

    @abstractmethod
    def find(self, data: Path | None) -> DecodedImages:
        """The images, no more than the setting ``subset`` allows."""

    @abstractmethod
    def compiled(self, model: nn.Module) -> Sequence[nn.Module]:
        """The parts of the model that are worth compiling."""

    @property
    def resize(self) -> int:
        """Pixels of the shorter side of an image before its middle is judged."""
        return self.settings.crop

    def load(self, data: Path | None) -> None:
        self.images = self.find(data)
        count, skipped = len(self.images.labels), self.images.skipped
        if skipped:
            self.notes.append(_left_out(skipped, count))
        if not self.images.training < count:
            raise ValueError("none of the validation images can be read.")
        self.steps = self.settings.count_batches(self.images.training, ", the number of training images")

    def accelerate(self, model: nn.Module, device: torch.device) -> Acceleration:
        self._device = device
        self._sizes = self.images.sizes.to(device)
        # Images that stay on the device are taken by their numbers, others come with each batch.
        self._resident = fits(self.images.bytes, device)
        self._lines = self.images.lines.to(device) if self._resident else self.images.lines
        views: list[Callable[..., Tensor]] = [self.make_views, centre_view]
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        if compiles(device):
            self._share_graphs(model)
            if not distributed.active():  # batch norms over ranks would cut the graph at every layer
                for part in self.compiled(model):
                    part.compile(dynamic=False)
            views = [torch.compile(view, dynamic=False) for view in views]
        self._augment = partial(views[0], size=self.settings.crop)
        self._centre = partial(views[1], size=self.settings.crop, resize=self.resize)
        # While a step is recorded no other thread may use the device, and a thread fetches the images that
        # are not on it.
        return replace(self.acceleration, recorded_steps=self._resident)

    def _share_graphs(self, model: nn.Module) -> None:
        """Keep what a run before in this process has compiled, if all its shapes were the same.

        Weights are inputs of a compiled graph, so another network of the same shapes needs no other one. But
        graphs of other shapes would count against a limit, beyond which nothing is compiled.
        """
        weights = [tuple(weight.shape) for weight in model.parameters()]
        shapes = (weights, self.images.lines.shape[1:], self.settings.batch_size, self.settings.crop)
        if shapes != ImagesOnDevice._compiled_for:
            torch.compiler.reset()
            ImagesOnDevice._compiled_for = shapes

    @torch.no_grad()
    def embed_folder(
        self,
        embed: Callable[[Tensor], Tensor],
        folder: Path,
        device: torch.device,
        watch: Callable[[int, int], None],
    ) -> tuple[list[str], Tensor]:
        """Names of images that are not of the training, but shrunk as its were, and what ``embed`` makes of
        their middles [N, 3, crop, crop], on the CPU in float32."""
        listing = find_all(folder)
        images = load_images(listing, self.stored_side)
        skipped = set(images.skipped)
        names = [file.name for file in listing.val if file.name not in skipped]
        if skipped:
            self.notes.append(_left_out(images.skipped, len(names)))
        found = []
        for rows in torch.split(torch.arange(len(names)), NEW_IMAGES_PER_CHUNK):
            lines, sizes = images.lines[rows].to(device), images.sizes[rows].to(device)
            views = centre_view(lines, sizes, size=self.settings.crop, resize=self.resize)
            found.append(embed(views).float().cpu())
            watch(int(rows[-1]) + 1, len(names))
        return names, torch.cat(found)

    def thumbnails(self, rows: Tensor) -> NDArray[Any]:
        """Small pictures [*rows.shape, side, side, 3] of the images with these numbers."""
        chosen = rows.flatten()
        small = centre_crop(self.images.lines[chosen], self.images.sizes[chosen], size=THUMBNAIL_SIDE)
        pixels = small.mul(255).round().byte().transpose(2, 3)
        array: NDArray[Any] = pixels.reshape(*rows.shape, *pixels.shape[1:]).numpy()
        return array

    def _sent(self, order: Tensor) -> Iterable[Tensor]:
        """For each row of ``order`` what :meth:`_lines_of` makes these images from, on the device."""
        if self._resident:
            return order.to(self._device)
        return ahead(self._fetch, order)

    def _lines_of(self, images: Tensor) -> Tensor:
        return self._lines[images] if self._resident else images

    def _fetch(self, rows: Tensor) -> Tensor:
        lines = self._lines[rows]
        if self._device.type == "cuda":
            lines = lines.pin_memory()
        return lines.to(self._device, non_blocking=True)


class ImageRecipe(ImagesOnDevice):
    """A recipe that trains a network on two views of each image of a batch."""

    settings: ViewSettings

    def batches(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """Images, or where they are on the device their numbers, and the parameters of two views of each; for
        schemes that need them the images' numbers too.

        Everything random of the epoch is drawn, and moved to the device, at once.
        """
        size = self.settings.batch_size
        order = torch.randperm(self.images.training, generator=generator)[: self.steps * size]
        order = order.view(self.steps, size)
        sizes = self.images.sizes[order].repeat(1, 2, 1)
        drawn = draw_parameters(
            sizes.flatten(0, 1), generator, blur=self.settings.blur, smallest=self.smallest
        )
        parts = [part.view(self.steps, 2 * size, *part.shape[1:]).to(self._device) for part in drawn]
        if "index" in self.needed:
            parts.append(order.to(self._device))
        for step, images in enumerate(self._sent(order)):
            yield images, *(part[step] for part in parts)

    def views(self, batch: Sequence[Tensor]) -> Tensor:
        """The first views of a batch's images and then the second ones, [2N, 3, crop, crop]."""
        images, *drawn = batch
        lines = self._lines_of(images)
        parameters = Parameters(*drawn[: len(Parameters._fields)])
        return self._augment(torch.cat([lines, lines]), parameters)

    def numbers(self, batch: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those of a batch's images, if the scheme needs them."""
        return batch[1 + len(Parameters._fields) :]

    def embed(self, model: nn.Module, views: Tensor) -> Tensor:
        """The features that are judged, [N, D]."""
        features: Tensor = model(views)
        return features

    def embed_new(
        self, model: nn.Module, source: Path, watch: Callable[[int, int], None]
    ) -> tuple[list[str], Tensor]:
        device = next(model.parameters()).device
        return self.embed_folder(partial(self.embed, model), source, device, watch)

    def features(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Features of the training and of the validation images, float32 on the device."""
        count, size = len(self.images.labels), 2 * self.settings.batch_size
        if self._device.type == "cuda":
            size = max(size, MIN_EVALUATION_BATCH)
        # The last part is filled up, so that a compiled network sees one shape.
        order = torch.arange(-(-count // size) * size).clamp(max=count - 1).view(-1, size)
        found = [
            self.embed(model, self._centre(self._lines_of(images), sizes))
            for images, sizes in zip(self._sent(order), self._sizes[order.to(self._device)], strict=True)
        ]
        features = torch.cat(found)[:count].float()
        return features[: self.images.training], features[self.images.training :]


def _left_out(skipped: Sequence[str], count: int) -> str:
    names = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
    return f"{len(skipped)} of {count + len(skipped)} images cannot be read and are left out: {names}."
