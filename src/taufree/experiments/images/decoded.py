"""Images as one array of bytes, decoded once: the next run finds them in a file and starts at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from taufree.experiments.images.listing import ImageFile, Listing
from taufree.util.cache import cache_folder, cached
from taufree.util.machine import usable_cores

CACHE_FORMAT = 3
"""Of the cached files; another number leaves those of before alone."""
MEMORY_SHARE = 0.5
"""Of a device's free memory, that images may take."""
Bytes = NDArray[np.uint8]
Item = TypeVar("Item")


@dataclass(frozen=True)
class DecodedImages:
    """Images line by line, the first ``training`` of them to train with, the others to validate with.

    Shape:
        lines: [N, H, 3, W] bytes, a smaller image in the upper left; sizes: [N, 2], each one's own height
        and width; labels: [N].
    """

    lines: Tensor
    sizes: Tensor
    labels: Tensor
    training: int
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """What the images take in memory."""
        return self.lines.numel()


def fits(count: int, device: torch.device) -> bool:
    """Whether so many bytes stay on the device, rather than come to it batch by batch."""
    if device.type == "cuda":
        return count <= MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return count <= MEMORY_SHARE * torch.mps.recommended_max_memory()
    return True


def load_images(listing: Listing, side: int) -> DecodedImages:
    """The images of a listing, from the cache if they are there.

    Args:
        listing: the images; one that cannot be read is left out and named in :attr:`DecodedImages.skipped`.
        side: images whose shorter side is longer are shrunk to it; none is enlarged. What a longer side has
            beyond twice the shorter one is cut off on both ends.
    """
    folder = cache_folder() / "images" / f"{listing.fingerprint()}-{side}-{CACHE_FORMAT}"
    about, lines = cached(folder, lambda draft: _decode_all(listing, side, draft), _load)
    return DecodedImages(
        torch.from_numpy(lines),
        torch.tensor(about["sizes"]),
        torch.tensor(about["labels"]),
        about["training"],
        listing.classes,
        tuple(about["skipped"]),
    )


def _load(folder: Path) -> tuple[dict[str, Any], Bytes]:
    about: dict[str, Any] = json.loads((folder / "about.json").read_text())
    # Copy on write: PyTorch has no read-only tensors, and nothing here writes.
    return about, np.load(folder / "lines.npy", mmap_mode="c")[: len(about["labels"])]


def from_arrays(
    train: Bytes, train_labels: Any, val: Bytes, val_labels: Any, classes: Sequence[str]
) -> DecodedImages:
    """Images [N, H, W, 3] that are in memory already."""
    both = np.concatenate([train, val])
    lines = torch.from_numpy(np.ascontiguousarray(both.transpose(0, 1, 3, 2)))
    labels = torch.from_numpy(np.concatenate([np.ravel(train_labels), np.ravel(val_labels)]).astype(np.int64))
    sizes = torch.tensor(both.shape[1:3]).expand(len(both), 2)
    return DecodedImages(lines, sizes, labels, len(train), tuple(classes))


def stored_size(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width that an image has in the cache.

    >>> stored_size(320, 400, 160), stored_size(100, 500, 160)
    ((160, 200), (100, 200))
    """
    short = min(height, width)
    shrink = min(1.0, side / short)
    short = min(short, side)
    height, width = (max(1, round(length * shrink)) for length in (height, width))
    return min(height, 2 * short), min(width, 2 * short)


def decode(raw: bytes, side: int) -> Bytes:
    """An encoded image as lines [h, 3, w] of the size that :func:`stored_size` says.

    Any mode but floating point, in which white has no fixed value.
    """
    with Image.open(BytesIO(raw)) as file:
        opened = _upright(file)
        if opened.mode == "F":
            raise ValueError("floating-point numbers have no white.")
        if opened.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255: all white
            image = Image.fromarray((np.asarray(opened) / 257).clip(0, 255).round().astype(np.uint8))
        else:
            image = opened
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # the same colours, without Pillow's warning
        image = image.convert("RGB")
    height, width = stored_size(image.height, image.width, side)
    if (shrink := side / min(image.size)) < 1:
        whole = (max(1, round(image.width * shrink)), max(1, round(image.height * shrink)))
        image = image.resize(whole, Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)))
    return np.ascontiguousarray(pixels.transpose(0, 2, 1))


def _upright(image: Image.Image) -> Image.Image:
    """The image as viewers show it: a camera that is held on its side leaves the turn to a tag."""
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # else it need not be decoded
            return ImageOps.exif_transpose(image)
    except Exception:  # damaged tags, which can raise anything, make no image unreadable
        pass
    return image


def _decode_all(listing: Listing, side: int, folder: Path) -> None:
    """Write the folder: ``lines.npy``, one array of bytes, and ``about.json``, all else."""
    files = (*listing.train, *listing.val)
    broken: set[int] = set()

    def size_of(file: ImageFile) -> tuple[int, int] | None:
        try:
            with Image.open(BytesIO(file.read())) as opened:
                image = _upright(opened)
                return stored_size(image.height, image.width, side)
        except Exception:  # a damaged file can raise anything
            return None

    with ThreadPoolExecutor(usable_cores()) as pool:  # Pillow's decoders run beside each other in threads
        sizes = list(pool.map(size_of, files))
        if not any(sizes):
            raise ValueError(f"none of {len(files)} images can be read, {files[0].name} being the first.")
        height, width = (max(size[i] for size in sizes if size) for i in (0, 1))
        _check_disk(folder.parent, len(files) * height * 3 * width)
        folder.mkdir()
        shape = (len(files), height, 3, width)
        lines = np.lib.format.open_memmap(folder / "lines.npy", "w+", np.uint8, shape)

        def place(index: int) -> None:
            try:
                image = decode(files[index].read(), side)
            except Exception:
                broken.add(index)
            else:
                lines[index, : image.shape[0], :, : image.shape[2]] = image

        list(pool.map(place, range(len(files))))
    good = [index for index in range(len(files)) if index not in broken]
    for place_now, index in enumerate(good):
        if place_now != index:
            lines[place_now] = lines[index]
    lines.flush()
    about = {
        "sizes": [sizes[index] for index in good],
        "labels": [files[index].label for index in good],
        "training": sum(index < len(listing.train) for index in good),
        "skipped": [files[index].name for index in sorted(broken)],
    }
    (folder / "about.json").write_text(json.dumps(about))


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"the decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are left."
        )


def ahead(make: Callable[[Item], Any], items: Iterable[Item], count: int = 3) -> Iterator[Any]:
    """``make(item)`` of each item in order, ``count`` of them begun in a thread before they are asked for.

    >>> list(ahead(lambda x: x * x, range(5)))
    [0, 1, 4, 9, 16]
    """
    with ThreadPoolExecutor(1) as pool:
        begun = []
        for item in items:
            begun.append(pool.submit(make, item))
            if len(begun) > count:
                yield begun.pop(0).result()
        for one in begun:
            yield one.result()
