"""SimCLR's views of many images at once: random numbers first, then a pure function of tensors.

:func:`draw_parameters` draws everything that is random, as tensors of fixed shapes, so that a CPU and a GPU,
and all links of a seed, make the same views. :func:`augment` applies it, each image with numbers of its own,
without asking the host anything, so that a GPU can run it as part of one recorded step.

Cropping, flipping, resizing and blurring are linear in the rows and in the columns of an image: they are
products with small matrices, out = R image C^T, which tensor cores do faster than any gathering of pixels.
Images are stored line by line, [height, 3, width], because then both products are plain ones.

Against torchvision on PIL images, with the same parameters: nothing is rounded to 8 bits between the
operations, and the blur is a true Gaussian where Pillow's is three box filters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

AREA_SHARES = (0.08, 1.0)
ASPECT_RATIOS = (3 / 4, 4 / 3)
FLIP, JITTER, GREY = 0.5, 0.8, 0.2
JITTER_STRENGTHS = (0.4, 0.4, 0.4, 0.1)
"""Of brightness, contrast, saturation (factors from 1 - s to 1 + s) and hue (a shift from -s to s)."""
BLUR_SIGMAS = (0.1, 2.0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

MAX_CROP_DRAWS = 10
"""Crops that do not fit into the image are drawn again this many times, as torchvision does."""
BLUR_MARGIN = 10
"""Pixels past an edge that a blur uses, five standard deviations of the widest."""


class Parameters(NamedTuple):
    """All that is random in N views.

    Shape:
        box: [N, 4], top, left, height and width of the crop, in whole pixels.
        flip, grey: [N] booleans.
        factors: [N, 4], by ``BRIGHTNESS``, ``CONTRAST``, ``SATURATION``, ``HUE``; 1, 1, 1, 0 change nothing.
        order: [N, 4], the order in which these four are applied.
        sigma: [N], the blur's standard deviation in pixels; 0 is none.
    """

    box: Tensor
    flip: Tensor
    factors: Tensor
    order: Tensor
    grey: Tensor
    sigma: Tensor


def draw_parameters(
    sizes: Tensor, generator: torch.Generator, *, blur: float, smallest: float = AREA_SHARES[0]
) -> Parameters:
    """Parameters of one view of each image.

    Args:
        sizes: [N, 2], heights and widths.
        generator: all draws are from it.
        blur: the probability of a blur.
        smallest: the least share of an image's area that a crop has.
    """
    count = len(sizes)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    box, flip = draw_crops(sizes, generator, smallest=smallest)
    strength = torch.tensor(JITTER_STRENGTHS)
    middle = torch.tensor([1.0, 1.0, 1.0, 0.0])
    change = strength * uniform(-1, 1, count, 4)
    factors = middle + change * (uniform(0, 1, count, 1) < JITTER)
    order = uniform(0, 1, count, 4).argsort(-1)
    grey = uniform(0, 1, count) < GREY
    sigma = uniform(*BLUR_SIGMAS, count) * (uniform(0, 1, count) < blur)
    return Parameters(box, flip, factors, order, grey, sigma)


def draw_crops(sizes: Tensor, generator: torch.Generator, *, smallest: float) -> tuple[Tensor, Tensor]:
    """Boxes [N, 4] and whether they are flipped [N], as in :class:`Parameters`, for images of these sizes."""
    box = _draw_boxes(sizes.float(), generator, (smallest, AREA_SHARES[1]))
    return box, torch.rand(len(sizes), generator=generator) < FLIP


def _draw_boxes(sizes: Tensor, generator: torch.Generator, scale: tuple[float, float]) -> Tensor:
    """RandomResizedCrop's boxes [N, 4]: the first of ten that fits, else the largest of a fitting ratio."""
    height, width = sizes.unbind(-1)
    count, (lowest, highest) = len(sizes), ASPECT_RATIOS
    share = scale[0] + (scale[1] - scale[0]) * torch.rand(MAX_CROP_DRAWS, count, generator=generator)
    area = height * width * share
    span = math.log(highest / lowest)
    ratio = (math.log(lowest) + span * torch.rand(MAX_CROP_DRAWS, count, generator=generator)).exp()
    tall, wide = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    first = fits.int().argmax(0, keepdim=True)
    found = fits.any(0)
    tall = torch.where(found, tall.gather(0, first)[0], (width / lowest).round().minimum(height))
    wide = torch.where(found, wide.gather(0, first)[0], (height * highest).round().minimum(width))
    room = torch.stack([height - tall, width - wide], dim=-1)
    anywhere = (torch.rand(count, 2, generator=generator) * (room + 1)).floor().minimum(room)
    start = torch.where(found[:, None], anywhere, (room / 2).floor())
    return torch.cat([start, torch.stack([tall, wide], dim=-1)], dim=-1)


@torch.no_grad()
def augment(lines: Tensor, parameters: Parameters, *, size: int) -> Tensor:
    """The views, normalised, as float32 [N, 3, size, size] with the channels last in memory.

    Shape:
        lines: [N, height, 3, width] bytes; what lies outside of an image's own size is not used.
    """
    views = _cropped(lines, parameters.box, parameters.flip, size)
    views = jitter(views, parameters.factors, parameters.order)
    views = torch.where(parameters.grey[:, None, None, None], luma(views), views)
    smooth = blur_weights(parameters.sigma, size=size)
    return _normalised(separable(views, smooth, smooth))


@torch.no_grad()
def cropped_view(lines: Tensor, box: Tensor, flip: Tensor, *, size: int) -> Tensor:
    """Views that are cropped and flipped alone, like those of :func:`augment` in their shape."""
    return _normalised(_cropped(lines, box, flip, size))


def _cropped(lines: Tensor, box: Tensor, flip: Tensor, size: int) -> Tensor:
    """[N, size, 3, size] in [0, 1]."""
    top, left, tall, wide = box.unbind(-1)
    rows = resize_weights(top, top + tall, top, tall / size, source=lines.shape[1], size=size)
    columns = resize_weights(left, left + wide, left, wide / size, source=lines.shape[3], size=size)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    return (separable(lines, rows, columns) / 255).clamp(0, 1)


@torch.no_grad()
def centre_view(lines: Tensor, sizes: Tensor, *, size: int, resize: int | None = None) -> Tensor:
    """The view that features are judged by, like that of :func:`augment` in its shape."""
    return _normalised(centre_crop(lines, sizes, size=size, resize=resize))


def centre_crop(lines: Tensor, sizes: Tensor, *, size: int, resize: int | None = None) -> Tensor:
    """The shorter side resized to ``resize``, or else to ``size``, and the middle cut out, in [0, 1].

    Shape:
        lines: [N, height, 3, width] bytes; sizes: [N, 2]; the result: [N, size, 3, size].
    """
    target = torch.floor((resize or size) * sizes / sizes.amin(-1, keepdim=True))
    scale = sizes / target
    first = ((target - size) / 2).round() * scale
    rows, columns = (
        resize_weights(torch.zeros_like(high), high, first[:, axis], scale[:, axis], source=source, size=size)
        for axis, (high, source) in enumerate(
            zip(sizes.unbind(-1), (lines.shape[1], lines.shape[3]), strict=True)
        )
    )
    return (separable(lines, rows, columns) / 255).clamp(0, 1)


def resize_weights(
    low: Tensor, high: Tensor, first: Tensor, scale: Tensor, *, source: int, size: int
) -> Tensor:
    """Matrices [N, size, source] of an antialiased bilinear resize along one axis.

    Result pixel o has its centre at first + (o + 1/2) scale; a source pixel between ``low`` and ``high``
    at distance d of it weighs 1 - d / max(scale, 1), if that is positive, and a row's weights sum to 1.

    Shape:
        low, high, first, scale: [N], in pixels of the source.
    """
    cell = torch.arange(size, device=scale.device) + 0.5
    pixel = torch.arange(source, device=scale.device) + 0.5
    centre = first[:, None] + cell * scale[:, None]
    distance = (pixel - centre[:, :, None]).abs() / scale.clamp(min=1)[:, None, None]
    inside = (pixel > low[:, None]) & (pixel < high[:, None])
    weights = (1 - distance).clamp(min=0) * inside[:, None]
    return weights / weights.sum(-1, keepdim=True)


def blur_weights(sigma: Tensor, *, size: int) -> Tensor:
    """Matrices [N, size, size] of a Gaussian blur along one axis; edges go on with their last pixel."""
    place = torch.arange(size, device=sigma.device)
    wider = torch.arange(-BLUR_MARGIN, size + BLUR_MARGIN, device=sigma.device)
    # A blur of a tenth of a pixel leaves an image as it is, and so does none.
    steps = (wider - place[:, None]) / sigma.clamp(min=0.1)[:, None, None]
    weights = (-0.5 * steps.square()).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    before, after = (
        part.sum(-1, keepdim=True) for part in (weights[..., :BLUR_MARGIN], weights[..., -BLUR_MARGIN:])
    )
    return weights[..., BLUR_MARGIN:-BLUR_MARGIN] + (place == 0) * before + (place == size - 1) * after


def separable(lines: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """R image C^T for each image and channel, in float32.

    On a GPU the products are of float16, with sums in float32: bytes are exact in it, and a crop is within a
    quarter of one of the 255 levels.

    Shape:
        lines: [N, H, 3, W]; rows: [N, h, H]; columns: [N, w, W]; the result: [N, h, 3, w].
    """
    dtype = torch.float16 if lines.is_cuda else torch.float32
    count, height, channels, width = lines.shape
    across = torch.bmm(lines.to(dtype).reshape(count, height * channels, width), columns.to(dtype).mT)
    down = torch.bmm(rows.to(dtype), across.reshape(count, height, -1))
    return down.float().reshape(count, rows.shape[1], channels, columns.shape[1])


def jitter(views: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """torchvision's adjust_brightness, _contrast, _saturation and _hue, in each image's own order.

    The first three mix the image with black, with its mean grey, and with its own grey:
    factor image + (1 - factor) other.

    Shape:
        views: [N, h, 3, w] in [0, 1]; factors, order: [N, 4].
    """
    for place in range(4):
        kind = order[:, place, None, None, None]
        factor = factors.gather(1, order[:, place, None])[:, :, None, None]
        grey = luma(views)
        mean = grey.mean((1, 2, 3), keepdim=True)
        other = mean * (kind == CONTRAST) + grey * (kind == SATURATION)
        mixed = (factor * views + (1 - factor) * other).clamp(0, 1)
        views = torch.where(kind == HUE, shift_hue(views, factor), mixed)
    return views


def luma(views: Tensor) -> Tensor:
    """The grey of each pixel, [N, h, 1, w]."""
    red, green, blue = views.chunk(3, dim=2)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def shift_hue(views: Tensor, shift: Tensor) -> Tensor:
    """Turn the colours on their circle by ``shift``, 1 being once around.

    With v the largest channel, c = v minus the smallest and H the hue in sixths of the circle, the channels
    are v - c clamp(min(k, 4 - k), 0, 1), k = (n + H) mod 6, n = 5, 3, 1 for red, green and blue.
    """
    red, green, blue = views.chunk(3, dim=2)
    largest = views.amax(2, keepdim=True)
    chroma = largest - views.amin(2, keepdim=True)
    divisor = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(
        largest == red,
        (green - blue) / divisor,
        torch.where(largest == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    turned = hue + 6 * shift
    k = torch.cat([torch.remainder(turned + n, 6) for n in (5, 3, 1)], dim=2)
    return largest - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def _normalised(views: Tensor) -> Tensor:
    channels = zip(views.chunk(3, dim=2), MEAN, STD, strict=True)
    whole = torch.cat([(channel - mean) / std for channel, mean, std in channels], dim=2)
    return whole.transpose(1, 2).contiguous(memory_format=torch.channels_last)
