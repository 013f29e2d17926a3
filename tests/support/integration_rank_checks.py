"""What the processes of test_ranks.py do: each is a rank, and returns its relative errors."""

import open_clip
import torch
from sentence_transformers.sentence_transformer import losses
from torch import nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from taufree import sigmoid_nce
from taufree.integrations.open_clip import ClipLoss, SigLipLoss
from taufree.integrations.sentence_transformers import MultipleNegativesRankingLoss
from tests.support.ranks import error

ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
SETTINGS = {
    "forward": {},
    "both": {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
    "joint": {"directions": ("query_to_doc", "doc_to_query")},
    "all": {"directions": ALL},
    "harder": {"hardness_mode": "all_negatives", "hardness_strength": 2.0},
    "dense": {"directions": ALL, "hardness_mode": "all_negatives", "hardness_strength": 2.0},
}
N, D = 5, 6


def whole(columns, world):
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(world * N, D, generator=draw).requires_grad_() for _ in range(columns)]


def own(columns, rank):
    return [x.detach()[rank * N : rank * N + N].clone().requires_grad_() for x in columns]


def ranking(rank, world):
    """Against the library on the same ranks with a scale, and one process on the whole batch without."""
    found = {}
    for name, settings in SETTINGS.items():
        everyone = whole(2 if name == "all" else 3, world)
        for scale in (20.0, None):
            mine = own(everyone, rank)
            loss = MultipleNegativesRankingLoss(nn.Identity(), scale, gather_across_devices=True, **settings)
            loss.compute_loss_from_embeddings(mine).backward()
            if scale:
                theirs = own(everyone, rank)
                loss = losses.MultipleNegativesRankingLoss(
                    nn.Identity(), scale, gather_across_devices=True, **settings
                )
                loss.compute_loss_from_embeddings(theirs, None).backward()
                expected = [x.grad for x in theirs]
            else:
                one = MultipleNegativesRankingLoss(nn.Identity(), **settings)
                one.compute_loss_from_embeddings(everyone).backward()
                expected = [world * x.grad[rank * N : rank * N + N] for x in everyone]
            found[f"{name}, {scale}"] = [error(x.grad, y) for x, y in zip(mine, expected, strict=True)]
    return found


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(D, 4), nn.Linear(D, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        return {
            "image_features": self.image(images),
            "text_features": self.text(texts),
            "logit_scale": self.logit_scale.exp(),
        }


def clip(rank, world):
    """Two steps under DDP, which needs a gradient for every parameter, against one process."""
    torch.manual_seed(0)
    single = Towers()
    several = DistributedDataParallel(Towers())
    several.module.load_state_dict(single.state_dict())
    with torch.no_grad():
        everyone = whole(2, world)
        mine = own(everyone, rank)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (single, several)]
    values = []
    for _ in range(2):
        for model, rows, loss, optimizer in zip(
            (single, several),
            (everyone, mine),
            (ClipLoss(), ClipLoss(local_loss=True, rank=rank, world_size=world)),
            optimizers,
            strict=True,
        ):
            optimizer.zero_grad()
            value = loss(**model(*rows), output_dict=True)["contrastive_loss"]
            value.backward()
            optimizer.step()
            values.append(value.detach())
    pairs = zip(single.parameters(), several.module.parameters(), strict=True)
    return [error(y.detach(), x.detach()) for x, y in pairs] + [
        error(x, y) for x, y in zip(values[1::2], values[::2], strict=True)
    ]


def siglip(rank, world):
    """With a scale and a bias against open_clip on the same ranks; without, against one process."""
    everyone = [x.detach() for x in whole(2, world)]
    images, texts = everyone[0].clone().requires_grad_(), everyone[1].clone().requires_grad_()
    SigLipLoss(link="free")(images, texts).backward()
    mine = own(everyone, rank)
    SigLipLoss(link="free", rank=rank, world_size=world)(*mine).backward()
    span = slice(rank * N, rank * N + N)
    found = [error(x.grad / world, y.grad[span]) for x, y in zip(mine, (images, texts), strict=True)]
    ours, theirs = own(everyone, rank), own(everyone, rank)
    sigmoid_nce(*ours, link=0.1, bias=-10.0, gather_distributed=True).backward()
    options = {"logit_scale": torch.tensor(10.0), "logit_bias": torch.tensor(-10.0)}
    unit = [normalize(x, dim=1) for x in theirs]
    open_clip.loss.SigLipLoss(rank=rank, world_size=world)(*unit, **options).backward()
    return found + [error(x.grad, y.grad) for x, y in zip(ours, theirs, strict=True)]


def everything(rank, world):
    return {"ranking": ranking(rank, world), "clip": clip(rank, world), "siglip": siglip(rank, world)}
