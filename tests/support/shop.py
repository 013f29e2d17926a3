"""A small data set for DCRec, and a run of it that has begun."""

import pytest
import torch

from taufree.experiments.recommendation.dcrec import DCRec, DCRecSettings
from taufree.experiments.recommendation.interactions import COLUMNS
from taufree.experiments.training.run import Run
from taufree.experiments.training.seeds import seed_everything
from taufree.experiments.training.trainer import Training


def write_shop(folder):
    """120 users who walk around a ring of 30 items, one or two at a time; the last two are held out."""
    draw = torch.Generator().manual_seed(0)
    lines = {"train": ["\t".join(COLUMNS)], "test": ["\t".join(COLUMNS)]}
    for user in range(120):
        steps = torch.randint(1, 3, (int(torch.randint(3, 9, (1,), generator=draw)),), generator=draw)
        walk = [str(int(item)) for item in (user + steps.cumsum(0)) % 30]
        lines["train"].append(f"{user}\t{' '.join(walk[:-2])}\t{walk[-2]}")
        lines["test"].append(f"{user}\t{' '.join(walk[:-1])}\t{walk[-1]}")
    for part, text in lines.items():
        (folder / f"shop.{part}.inter").write_text("\n".join(text) + "\n")


def begun(shop, link="free", seed=0, precision="32-true", device="cpu", **settings):
    chosen = DCRecSettings(**{"dataset": str(shop), "epochs": 3, "batch_size": 64, **settings})
    recipe = DCRec(chosen)
    recipe.load(None)
    return Training(Run("dcrec", link, seed, chosen, precision, device), recipe)


def assert_seeded_dropout(training):
    """Each step draws another dropout, and the seed says which; nothing is learned meanwhile."""
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0
    batch = next(iter(training.recipe.batches(0, torch.Generator().manual_seed(0))))
    training.model.train()

    def losses():
        seed_everything(0, "epoch", 0)
        return [training._step(training.fabric.to_device(batch))[0][0].item() for _ in range(8)]

    first, again, later = losses(), losses(), losses()
    assert len(set(first)) == len(set(again)) == 8
    assert later == pytest.approx(again, rel=1e-6)
