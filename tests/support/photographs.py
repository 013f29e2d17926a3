"""Real photographs for the tests, the two that come with scikit-learn, and folders of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images


def photographs() -> list[Image.Image]:
    """A temple and a flower, 640 x 427 pixels."""
    return [Image.fromarray(picture) for picture in load_sample_images().images]


def patches(sizes: list[tuple[int, int]]) -> list[Image.Image]:
    """For each (height, width) a part of a photograph, each another one."""
    draw = np.random.default_rng(0)
    wholes = [picture.resize((320, 214)) for picture in photographs()]
    found = []
    for number, (height, width) in enumerate(sizes):
        left, top = draw.integers(0, 320 - width + 1), draw.integers(0, 214 - height + 1)
        found.append(wholes[number % 2].crop((left, top, left + width, top + height)))
    return found


def write_folder(folder: Path, count: int = 12, size: tuple[int, int] = (48, 56)) -> Path:
    """``count`` JPEGs of each photograph, each photograph being a class."""
    for number, image in enumerate(patches([size] * 2 * count)):
        path = folder / ("temple", "flower")[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return folder


def write_captioned(folder: Path, count: int = 40, size: tuple[int, int] = (48, 56)) -> Path:
    """``count`` JPEGs in ``images``, two captions of each in ``captions.tsv``, and the lists of the parts."""
    (folder / "images").mkdir(parents=True)
    names = [f"{number:03d}.jpg" for number in range(count)]
    for name, image in zip(names, patches([size] * count), strict=True):
        image.save(folder / "images" / name)
    rows = [
        f"{name}#{k}\tA {what} with {' '.join(name[:3])} {kind} ."
        for number, name in enumerate(names)
        for what in [("house", "table")[number % 2]]
        for k, kind in enumerate(("people", "dogs"))
    ]
    (folder / "captions.tsv").write_text("\n".join(rows))
    fifth = count // 5
    parts = {"train": names[: -2 * fifth], "dev": names[-2 * fifth : -fifth], "test": names[-fifth:]}
    for part, own in parts.items():
        (folder / f"{part}.txt").write_text("\n".join(own))
    return folder


def canvas(images, height=210, width=220):
    """Images in the upper left of a canvas of noise, line by line."""
    noise = torch.Generator().manual_seed(1)
    lines = torch.randint(0, 256, (len(images), height, 3, width), dtype=torch.uint8, generator=noise)
    for place, image in zip(lines, images, strict=True):
        pixels = torch.from_numpy(np.array(image)).permute(0, 2, 1)
        place[: image.height, :, : image.width] = pixels
    return lines
