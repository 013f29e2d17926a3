"""Views of images: their products are made in float16 on a GPU."""

import pytest
import torch

from taufree.experiments.images.augment import STD, Parameters, augment, draw_parameters
from tests.support.devices import require_gpu
from tests.support.photographs import canvas, patches

pytestmark = require_gpu()


@pytest.mark.parametrize("make", [augment, torch.compile(augment, dynamic=False)], ids=["plain", "compiled"])
def test_views_are_those_of_the_cpu(make):
    sizes = [(160, 160), (160, 213), (200, 120), (60, 90)] * 12
    lines = canvas(patches(sizes))
    parameters = draw_parameters(torch.tensor(sizes), torch.Generator().manual_seed(0), blur=0.5)
    there = make(lines.cuda(), Parameters(*(part.cuda() for part in parameters)), size=128).cpu()
    levels = torch.tensor(STD)[:, None, None] * 255  # of 0 to 255, in one unit of a normalised view
    gap = ((there - augment(lines, parameters, size=128)) * levels).abs()
    # A hue can jump where two channels are within rounding of each other, so a few pixels may differ more.
    assert gap.mean() < 0.1
    assert gap.flatten().kthvalue(int(0.999 * gap.numel())).values < 1
