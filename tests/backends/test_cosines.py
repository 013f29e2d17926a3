"""The mean cosines of a contrast against a loop over its pairs."""

import pytest
import torch

from taufree import LogOdds
from taufree.backends.measure import ContrastMeasure, MaskMeasure
from tests.support.contrasts import contrasts


@pytest.mark.parametrize("kind", sorted(contrasts(7, 5)))
def test_the_means_are_those_of_a_loop_over_the_pairs(kind):
    contrast = contrasts(7, 5)[kind]
    unit = torch.nn.functional.normalize
    keys = contrast.anchors if contrast.keys is None else contrast.keys
    positive, candidate, count = [], [], []
    for i, anchor in enumerate(unit(contrast.anchors, dim=1)):
        cosine, groups = unit(keys, dim=1) @ anchor, contrast.groups
        same = torch.arange(len(keys)) == i if groups is None else contrast.key_groups == groups[i]
        if contrast.labels is not None:
            itself = torch.arange(len(keys)) == (i if contrast.keys is None else -1)
            positives, others = cosine[same & ~itself], cosine[~itself]
        else:
            target = (i + contrast.shift) % len(keys)
            left_out = same if contrast.keys is None or groups is not None else torch.zeros_like(same)
            left_out = left_out.clone()
            left_out[target] = False
            positives, others = cosine[[target]], cosine[~left_out] if contrast.in_batch else cosine[[target]]
        queue = contrast.queue
        if contrast.queue_ids is not None:
            queue = queue[contrast.queue_ids != groups[i]]
        more = [] if queue is None else [unit(queue, dim=1) @ anchor]
        more += [] if contrast.own_negatives is None else [unit(contrast.own_negatives[i], dim=1) @ anchor]
        others = torch.cat([others, *more])
        positive.append(positives.mean())
        candidate.append(others.mean())
        count.append(torch.tensor(float(len(others))))
    found = ContrastMeasure(contrast, LogOdds()).cosines()
    expected = [torch.stack(x).double().mean() for x in (positive, candidate, count)]
    torch.testing.assert_close(torch.stack(found[:3]), torch.stack(expected))
    assert found.dimensions == 5


@pytest.mark.parametrize("kind", ["pairs", "labels"])
def test_masks_give_the_same_means(kind):
    contrast = contrasts(7, 5)[kind]
    unit = torch.nn.functional.normalize
    keys = contrast.anchors if contrast.keys is None else contrast.keys
    cosine = unit(contrast.anchors, dim=1) @ unit(keys, dim=1).T
    itself = torch.eye(len(cosine), dtype=torch.bool)
    if kind == "pairs":
        positives, negatives = itself, ~itself
    else:
        same = contrast.labels[:, None] == contrast.labels
        positives, negatives = same & ~itself, ~same
    found = MaskMeasure(1 - cosine, 1 + cosine, negatives, positives, 5).cosines()
    expected = ContrastMeasure(contrast, LogOdds()).cosines()
    torch.testing.assert_close(torch.stack(found[:3]), torch.stack(expected[:3]))
