"""Views against torchvision's transforms, image by image, with the same parameters."""

import math

import pytest
import torch
from PIL import ImageFilter
from torchvision.transforms import CenterCrop, Compose, Normalize, RandomResizedCrop, Resize, ToTensor
from torchvision.transforms import functional as vision

from taufree.experiments.images.augment import (
    MEAN,
    STD,
    Parameters,
    augment,
    blur_weights,
    centre_view,
    draw_parameters,
    jitter,
    shift_hue,
)
from tests.support.photographs import canvas, patches

SIZES = [(160, 160), (160, 213), (200, 120), (60, 90)] * 12
LEVELS = torch.tensor(STD)[:, None, None] * 255
"""What one unit of a normalised view is in levels of 0 to 255."""


def drawn(sizes, seed=0, **chosen):
    generator = torch.Generator().manual_seed(seed)
    return draw_parameters(torch.tensor(sizes), generator, **{"blur": 0.5, **chosen})


def by_torchvision(image, one, size, *, pillow):
    """A view by torchvision, on floats or, as LightlySSL makes it, on a Pillow image."""
    x = image if pillow else vision.to_tensor(image)
    x = vision.resized_crop(x, *map(int, one.box), [size, size], antialias=True)
    if one.flip:
        x = vision.hflip(x)
    adjust = (
        vision.adjust_brightness,
        vision.adjust_contrast,
        vision.adjust_saturation,
        vision.adjust_hue,
    )
    for kind in one.order.tolist():
        x = adjust[kind](x, float(one.factors[kind]))
    if one.grey:
        x = vision.rgb_to_grayscale(x, 3)
    if one.sigma > 0 and pillow:
        x = x.filter(ImageFilter.GaussianBlur(float(one.sigma)))
    elif one.sigma > 0:  # torchvision mirrors at the edges, Pillow and we repeat the last pixel
        wider = torch.nn.functional.pad(x, [12] * 4, mode="replicate")
        x = vision.gaussian_blur(wider, 21, float(one.sigma))[:, 12:-12, 12:-12]
    return vision.normalize(vision.to_tensor(x) if pillow else x, MEAN, STD)


@pytest.mark.parametrize("size", [128, 40])
def test_views_are_torchvisions(size):
    images, parameters = patches(SIZES), drawn(SIZES)
    views = augment(canvas(images), parameters, size=size)
    assert views.shape == (len(images), 3, size, size)
    assert views.is_contiguous(memory_format=torch.channels_last)
    rounded = []
    for number, image in enumerate(images):
        one = Parameters(*(part[number] for part in parameters))
        exact = by_torchvision(image, one, size, pillow=False)
        assert ((views[number] - exact) * LEVELS).abs().max() < 0.01, number
        rounded.append(
            ((views[number] - by_torchvision(image, one, size, pillow=True)) * LEVELS).abs().mean()
        )
    # Pillow rounds to 8 bits after every operation, the hue coarsely.
    assert torch.stack(rounded).mean() < 2


def test_every_part_of_a_view_was_tested():
    parameters = drawn(SIZES)
    assert {tuple(order) for order in parameters.order.tolist()} >= {(3, 0, 1, 2), (0, 1, 3, 2)}
    for part in (parameters.flip, parameters.grey, parameters.sigma > 0, parameters.factors[:, 3] != 0):
        assert 3 < part.sum() < len(SIZES)


@pytest.mark.parametrize(("size", "resize"), [(128, None), (32, None), (112, 128)])
def test_the_centre_view_is_torchvisions(size, resize):
    images = patches(SIZES[:4])
    views = centre_view(canvas(images), torch.tensor(SIZES[:4]), size=size, resize=resize)
    by_vision = Compose([Resize(resize or size), CenterCrop(size), ToTensor(), Normalize(MEAN, STD)])
    for view, image in zip(views, images, strict=True):
        gap = ((view - by_vision(image)) * LEVELS).abs()
        # Pillow rounds twice to whole levels, after the rows and after the columns.
        assert gap.max() < 1.2
        assert gap.mean() < 0.4


@pytest.mark.parametrize("smallest", [0.08, 0.2])
def test_boxes_are_distributed_like_torchvisions(smallest):
    height, width, count = 160, 213, 4000
    box = drawn([(height, width)] * count, smallest=smallest).box
    torch.manual_seed(0)
    blank = torch.empty(3, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(blank, [smallest, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    ).float()
    quantiles = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    for column in range(4):
        mine, other = (torch.quantile(boxes[:, column], quantiles) for boxes in (box, theirs))
        assert (mine - other).abs().max() <= 6, column
    assert torch.equal(box, box.round())
    assert (box[:, 0] + box[:, 2]).max() == height
    assert (box[:, 1] + box[:, 3]).max() == width
    assert box[:, :2].min() == 0


@pytest.mark.parametrize(("size", "expected"), [((30, 600), [0, 280, 30, 40]), ((600, 30), [280, 0, 40, 30])])
def test_an_image_that_no_crop_fits_gets_torchvisions_middle(size, expected):
    assert drawn([size] * 5, smallest=0.9).box.tolist() == [expected] * 5


def test_probabilities_and_ranges():
    parameters = drawn([(160, 160)] * 20000)
    assert parameters.flip.float().mean().item() == pytest.approx(0.5, abs=0.015)
    assert parameters.grey.float().mean().item() == pytest.approx(0.2, abs=0.015)
    blurred = parameters.sigma[parameters.sigma > 0]
    assert len(blurred) / 20000 == pytest.approx(0.5, abs=0.015)
    assert (blurred.min().item(), blurred.max().item()) == pytest.approx((0.1, 2.0), abs=0.01)
    jittered = parameters.factors[(parameters.factors != torch.tensor([1.0, 1, 1, 0])).any(-1)]
    assert len(jittered) / 20000 == pytest.approx(0.8, abs=0.015)
    assert jittered.amin(0).tolist() == pytest.approx([0.6, 0.6, 0.6, -0.1], abs=0.01)
    assert jittered.amax(0).tolist() == pytest.approx([1.4, 1.4, 1.4, 0.1], abs=0.01)
    assert len({tuple(order) for order in parameters.order.tolist()}) == 24
    assert drawn([(160, 160)] * 100, blur=0.0).sigma.max() == 0


def test_draws_are_the_generators_alone():
    torch.manual_seed(1)
    one = drawn(SIZES)
    torch.manual_seed(2)
    assert all(map(torch.equal, one, drawn(SIZES)))
    assert not torch.equal(one.box, drawn(SIZES, seed=1).box)


def test_parameters_that_change_nothing_leave_the_image():
    (image,) = patches([(64, 64)])
    still = Parameters(
        torch.tensor([[0.0, 0, 64, 64]]), torch.tensor([False]), torch.tensor([[1.0, 1, 1, 0]]),
        torch.tensor([[3, 1, 0, 2]]), torch.tensor([False]), torch.zeros(1),
    )  # fmt: skip
    view = augment(canvas([image]), still, size=64)[0]
    assert ((view - vision.normalize(vision.to_tensor(image), MEAN, STD)) * LEVELS).abs().max() < 1e-3


def test_a_hue_turned_once_around_is_itself_and_grey_stays_grey():
    colours = torch.rand(2, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    once = torch.ones(2, 1, 1, 1)
    assert torch.allclose(shift_hue(colours, once), colours, atol=1e-5)
    assert not torch.allclose(shift_hue(colours, once / 3), colours, atol=0.1)
    assert torch.allclose(shift_hue(colours, once / 3), colours.roll(1, dims=2), atol=1e-5)
    grey = torch.full((1, 2, 3, 2), 0.3)
    assert torch.allclose(shift_hue(grey, torch.full((1, 1, 1, 1), 0.2)), grey)


def test_jitter_follows_the_order():
    views = torch.full((2, 2, 3, 2), 0.8)
    views[:, 0] = 0.2
    factors = torch.tensor([[1.4, 0.6, 1.0, 0.0]] * 2)
    found = jitter(views, factors, torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]]))
    # 0.8 x 1.4 is cut at 1 before the contrast; the other way round nothing is cut.
    assert found[0, 1, 0, 0].item() == pytest.approx(0.6 * 1.0 + 0.4 * (0.28 + 1) / 2 * 0.9999, abs=1e-3)
    assert found[1, 1, 0, 0].item() == pytest.approx(1.4 * (0.6 * 0.8 + 0.4 * 0.5 * 0.9999), abs=1e-3)


def test_blur_weights_are_a_gaussian_whose_edges_repeat():
    weights = blur_weights(torch.tensor([1.5, 0.0]), size=32)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 32))
    assert torch.allclose(weights[1], torch.eye(32))
    ratio = weights[0, 16, 18] / weights[0, 16, 16]
    assert ratio.item() == pytest.approx(math.exp(-0.5 * (2 / 1.5) ** 2), rel=1e-5)
    # Half of the weight of the first row's Gaussian, its middle included, lies at or before the edge.
    assert weights[0, 0, 0].item() == pytest.approx((1 + weights[0, 16, 16].item()) / 2, rel=1e-4)
