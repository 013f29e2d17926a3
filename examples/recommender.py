"""A two-tower recommender trained without a temperature, in plain PyTorch: python examples/recommender.py

Users and items of an invented shop have hidden tastes; a user buys what is near to theirs, popular items
more often. Each tower turns ids into vectors, and InfoNCE makes a user's vector find the item that was bought
among the other items of the batch. Two things matter in practice, and each is one argument:

- ``ids``: popular items stand in a batch several times; without it a user's own purchase is a negative, too.
- ``link``: None is the free link; ``taufree.Temperature(0.1)`` is the usual loss, to compare.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import taufree


class Towers(nn.Module):
    """Vectors of users and of items; their cosine says how well they fit."""

    def __init__(self, users: int, items: int, width: int = 32) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(users, width), nn.Linear(width, width))
        self.item = nn.Sequential(nn.Embedding(items, width), nn.Linear(width, width))


def draw_purchases(users: int, items: int, each: int, tastes: int = 8) -> Tensor:
    """[users, each] different items: the largest of taste + popularity + chance (Gumbel noise)."""
    person, thing = torch.randn(users, tastes), torch.randn(items, tastes)
    appeal = 3 * normalize(person, dim=1) @ thing.T + 0.5 * torch.randn(items)
    chance = -torch.log(-torch.log(torch.rand(users, items).clamp(1e-9, 1 - 1e-6)))
    return (appeal + chance).topk(each, dim=1).indices[:, torch.randperm(each)]


def train(model: Towers, bought: Tensor, link: taufree.Link | None, epochs: int, batch: int = 256) -> None:
    users = torch.arange(len(bought)).repeat_interleave(bought.shape[1])
    items = bought.flatten()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(users)).split(batch):
            query, key = model.user(users[rows]), model.item(items[rows])
            loss = taufree.info_nce(query, key, ids=items[rows], link=link)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"  epoch {epoch + 1}: loss {total / len(users):.3f}")


@torch.no_grad()
def hit_rate(model: Towers, bought: Tensor, held_out: Tensor, k: int = 10) -> float:
    """The share of users whose held-out purchase is among their k best items, past purchases left out."""
    query = normalize(model.user(torch.arange(len(bought))), dim=-1)
    key = normalize(model.item(torch.arange(model.item[0].num_embeddings)), dim=-1)
    scores = (query @ key.T).scatter(1, bought, -torch.inf)
    return (scores.topk(k).indices == held_out[:, None]).any(1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    purchases = draw_purchases(chosen.users, chosen.items, each=21)
    bought, held_out = purchases[:, 1:], purchases[:, 0]
    chance = 10 / (chosen.items - bought.shape[1])
    for name, link in {
        "free": None,
        "tau 0.1": taufree.Temperature(0.1),
        "tau 1": taufree.Temperature(1),
    }.items():
        print(name)
        torch.manual_seed(0)
        model = Towers(chosen.users, chosen.items)
        train(model, bought, link, chosen.epochs)
        print(f"  hit rate @10: {hit_rate(model, bought, held_out):.3f} (by chance {chance:.3f})")


if __name__ == "__main__":
    main()
