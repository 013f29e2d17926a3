"""How well images find their captions, and captions their images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

RANKS = (1, 5, 10)
ROWS_PER_CHUNK = 1024
"""Queries compared with all candidates at a time, which bounds the memory."""
DIRECTIONS = ("i2t", "t2i")
"""Image to text, and text to image."""


def recalls(images: Tensor, texts: Tensor, owner: Tensor) -> dict[str, float]:
    """Recall at 1, 5 and 10 both ways, in %, and the sum of all six, ``rsum``.

    ``i2t_r5`` is the share of images of which one text at least is among the five texts nearest to it,
    ``t2i_r5`` that of texts whose image is among the five images nearest to it. Equal cosines count against
    the right candidate, so that vectors that are all the same find nothing.

    Args:
        owner: the number of each text's image; several texts may have one, and every image has one at least.

    Shape:
        images: [N, D]; texts: [M, D]; owner: [M]; all on one device.
    """
    images, texts = normalize(images.float(), dim=-1), normalize(texts.float(), dim=-1)
    own = torch.arange(len(images), device=owner.device)
    ranks = dict(
        zip(DIRECTIONS, (_ranks(images, own, texts, owner), _ranks(texts, owner, images, own)), strict=True)
    )
    found = {
        f"{direction}_r{k}": 100 * (of <= k).double().mean().item()
        for direction, of in ranks.items()
        for k in RANKS
    }
    return {"rsum": sum(found.values()), **found}


def _ranks(queries: Tensor, query_owner: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
    """The rank [Q] of each query's nearest right candidate: 1, and 1 more for each wrong one as near."""
    found = []
    chunks = (torch.split(part, ROWS_PER_CHUNK) for part in (queries, query_owner))
    for rows, mine in zip(*chunks, strict=True):
        cosine, right = rows @ candidates.T, mine[:, None] == owner
        best = cosine.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        found.append(1 + ((cosine >= best) & ~right).sum(1))
    return torch.cat(found)
