"""Small batches on one core: each drop-in beside its original, and each link beside dense code.

    python -m benchmarks.speed.small_batches             # drop-ins at 32 x 128, links at 32 to 4,096 rows
    python -m benchmarks.speed.small_batches --only lightly open_clip

Forward and backward, CPU time of one thread. The methods of a row take turns, and the median of all turns
counts. "tau" is the original's loss, "default" the drop-in's own link, and "bare" the calls of torch that no
exact loss can do without. Libraries that are not installed are left out. Adds a line for each row to
benchmarks/results/small-batches.jsonl.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taufree
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree.util.json_lines import append_json
from taufree.util.machine import hardware, versions

TAU, N, D = 0.1, 32, 128
SIZES = (32, 256, 1024, 4096)  # rows of the links' table
CATALOGUE = 1000  # users or items that RecBole's SGL contrasts with
Step = Callable[[], Tensor]  # computes the loss
Case = tuple[str, dict[str, Step]]  # a row's name, and its methods by column


def pair(n: int = N, d: int = D) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    a = torch.randn(n, d, generator=draw)
    return a.requires_grad_(), (a.detach() + torch.randn(n, d, generator=draw)).requires_grad_()


def modules(name: str, original: Callable, tau: Callable, default: Callable, *inputs: Tensor) -> Case:
    losses = {"original": original, "tau": tau, "default": default}
    return name, {column: lambda loss=loss: loss(*inputs) for column, loss in losses.items()}


def lightly() -> Iterator[Case]:
    from lightly import loss as theirs

    from taufree.integrations import lightly as ours

    for name in ("NTXentLoss", "DCLLoss"):
        kind = getattr(ours, name)
        yield modules(f"lightly {name}", getattr(theirs, name)(TAU), kind(TAU), kind(), *pair())


def info_nce() -> Iterator[Case]:
    from info_nce import InfoNCE

    from taufree.integrations import info_nce as ours

    yield modules("info-nce InfoNCE", InfoNCE(TAU), ours.InfoNCE(TAU), ours.InfoNCE(), *pair())


def metric_learning() -> Iterator[Case]:
    from pytorch_metric_learning import losses as theirs

    from taufree.integrations import pytorch_metric_learning as ours

    rows = torch.cat(pair(N // 2)).detach().requires_grad_()
    for name in ("NTXentLoss", "SupConLoss"):
        for each in (2, 4):
            labels = torch.arange(N) % (N // each)
            kind = getattr(ours, name)
            title = f"pytorch-metric-learning {name}, {each} rows a label"
            yield modules(title, getattr(theirs, name)(TAU), kind(TAU), kind(), rows, labels)


def open_clip() -> Iterator[Case]:
    import open_clip as theirs

    from taufree.integrations.open_clip import ClipLoss

    scale = torch.tensor(1 / TAU, requires_grad=True)
    yield modules("open_clip ClipLoss", theirs.ClipLoss(), ClipLoss(link=TAU), ClipLoss(), *pair(), scale)


def pygcl() -> Iterator[Case]:
    from tests.support.gcl import GCL  # isort: skip  imports it without its compiled packages
    from taufree.integrations import pygcl as ours

    for intraview in (False, True):
        a, b = pair()
        sampler = GCL.models.get_sampler("L2L", intraview_negs=intraview)
        losses = (GCL.losses.InfoNCE(TAU), ours.InfoNCE(TAU), ours.InfoNCE())
        of = [lambda a, b, loss=loss, sampler=sampler: loss(*sampler(a, b)) for loss in losses]
        yield modules("PyGCL InfoNCE" + ", intraview" * intraview, *of, a, b)


def sentence_transformers() -> Iterator[Case]:
    from sentence_transformers.sentence_transformer import losses as theirs

    from taufree.integrations.sentence_transformers import MultipleNegativesRankingLoss as Ranking

    model = nn.Identity()
    losses = (theirs.MultipleNegativesRankingLoss(model, 1 / TAU), Ranking(model, 1 / TAU), Ranking(model))
    of = [lambda a, b, loss=loss: loss.compute_loss_from_embeddings([a, b], None) for loss in losses]
    yield modules("sentence-transformers MultipleNegativesRankingLoss", *of, *pair())


def transformers() -> Iterator[Case]:
    """The Trainer has no contrastive loss: beside the same in plain torch."""
    from taufree.integrations.transformers import ContrastiveLoss

    labels = torch.zeros(N)
    losses = (ContrastiveLoss(taufree.InfoNCE(link=TAU), 0, 1), ContrastiveLoss(None, 0, 1))
    of = [lambda a, b, loss=loss: loss((a, b), labels, num_items_in_batch=N) for loss in losses]
    yield modules("transformers ContrastiveLoss", lambda a, b: dense(a, b), *of, *pair())


def recbole() -> Iterator[Case]:
    import numpy as np

    for name, kind in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        if not hasattr(np, name):  # which RecBole 1.2 uses
            setattr(np, name, kind)
    from taufree.integrations import recbole as ours  # isort: skip  first, or anomalies are looked for
    from recbole.model import general_recommender, sequential_recommender

    def of(kind: type, link: object) -> SimpleNamespace:
        options = {"ssl_tau": TAU, "ssl_weight": 1.0, "batch_size": N, "mask_default": mask}
        return SimpleNamespace(kind=kind, link=link, backend="auto", **options)

    mask = sequential_recommender.FEARec.mask_correlated_samples(None, N)
    links = (None, taufree.Temperature(TAU), taufree.LogOdds())
    users, (first, second) = torch.arange(N), pair(CATALOGUE)
    kinds = (general_recommender.SGL, ours.SGL, ours.SGL)
    models = [of(kind, link) for kind, link in zip(kinds, links, strict=True)]
    sgl = [
        lambda a, b, model=model: model.kind.calc_ssl_loss(model, users, users, a, b, a, b)
        for model in models
    ]
    yield modules(f"RecBole SGL, {CATALOGUE:,} rows", *sgl, first, second)
    kinds = (sequential_recommender.FEARec, ours.FEARec, ours.FEARec)
    models = [of(kind, link) for kind, link in zip(kinds, links, strict=True)]
    fearec = [
        lambda a, b, model=model: F.cross_entropy(*model.kind.info_nce(model, a, b, TAU, N, "cos"))
        for model in models
    ]
    yield modules("RecBole FEARec", *fearec, *pair())


def dense(query: Tensor, key: Tensor) -> Tensor:
    logits = F.normalize(query) @ F.normalize(key).T / TAU
    return F.cross_entropy(logits, torch.arange(len(query)))


class Bare(torch.autograd.Function):
    """InfoNCE with a temperature in the fewest calls of torch: rows are normalised inside, in float64, those
    that are too short are found, and a tiny loss is exact. Without checks, options or second derivatives."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, both: bool) -> Tensor:
        n, rows = len(query), torch.cat([query, key]).double()
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        if not length.min().item() > 1e-36:
            raise ValueError("a row is too short")
        inverse = length.reciprocal_()
        u, v = rows.mul_(inverse)[:n], rows[n:]
        weight = torch.mm(u, v.T).mul_(1 / TAU).exp_()
        diagonal = weight.diagonal()
        positive = diagonal.clone()
        diagonal.zero_()
        total = torch.stack([weight.sum(1), weight.sum(0)]) if both else weight.sum(1)
        factor = 1 / n / (2 if both else 1)
        loss = (total / positive).log1p_().sum().mul_(factor).float()
        share = (total + positive).reciprocal_()
        missed = total.mul_(share)
        by_pair = share[0].unsqueeze(1) + share[1] if both else share.unsqueeze(1)
        weight.mul_(by_pair)
        torch.neg(missed.sum(0) if both else missed, out=diagonal)
        grad = torch.cat([torch.mm(weight, v), torch.mm(weight.T, u)])
        grad.addcmul_(rows, torch.linalg.vecdot(grad, rows).unsqueeze(1), value=-1)
        ctx.gradients = grad.mul_(inverse.mul_(factor / TAU)).float()
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients.mul_(upstream)
        n = len(gradients) // 2
        return gradients[:n], gradients[n:], None


def bare() -> Iterator[Case]:
    """What an exact loss with a gradient written by hand takes at least, called from Python."""
    import open_clip

    a, b = pair()
    for both in (False, True):
        found, truth = (
            torch.autograd.grad(loss, (a, b))
            for loss in (Bare.apply(a, b, both), taufree.info_nce(a, b, symmetric=both, link=TAU))
        )
        torch.testing.assert_close(found, truth)
    clip, scale = open_clip.ClipLoss(), torch.tensor(1 / TAU, requires_grad=True)
    yield "bare, one direction", {"dense": lambda: dense(a, b), "bare": lambda: Bare.apply(a, b, False)}
    yield (
        "bare, both directions",
        {"open_clip": lambda: clip(a, b, scale), "bare": lambda: Bare.apply(a, b, True)},
    )


def links() -> Iterator[Case]:
    """InfoNCE in one direction with each link, beside dense code."""
    made = {"tau": TAU, "free": "free", "calibrated": "calibrated", "fitted": "fitted"}
    for n in SIZES:
        a, b = pair(n)
        losses: dict[str, Callable] = {"dense": dense}
        losses |= {name: taufree.InfoNCE(link=link) for name, link in made.items()}
        yield f"{n:,} x {D}", {name: lambda loss=loss, a=a, b=b: loss(a, b) for name, loss in losses.items()}


CASES = {
    "lightly": lightly,
    "info_nce": info_nce,
    "pytorch_metric_learning": metric_learning,
    "open_clip": open_clip,
    "pygcl": pygcl,
    "sentence_transformers": sentence_transformers,
    "transformers": transformers,
    "recbole": recbole,
    "bare": bare,
    "links": links,
}


def milliseconds(steps: Mapping[str, Step], seconds: float) -> dict[str, float]:
    """The median CPU time of each step with its backward, in turns of 5 ms at least."""
    repeats = {}
    for name, step in steps.items():
        took = []
        for _ in range(10):  # the first ones also load libraries, and fit a gain
            start = time.process_time()
            step().backward()
            took.append(time.process_time() - start)
        repeats[name] = max(1, round(5e-3 / median(took)))
    turns: dict[str, list[float]] = {name: [] for name in steps}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(turns[name]) < 5:
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                step().backward()
            turns[name].append((time.process_time() - start) / repeats[name])
    return {name: round(1e3 * median(times), 4) for name, times in turns.items()}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--seconds", type=float, default=3, help="for each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns: list[str] = []
    for name in options.only:
        try:
            cases = list(CASES[name]())
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        for title, steps in cases:
            if columns != list(steps):
                columns = list(steps)
                print()
                head("ms", *columns)
            took = milliseconds(steps, options.seconds)
            first = took[columns[0]]
            row(title, *(f"{ms:.3f} ({ms / first:.2f} x)" for ms in took.values()))
            line = {"what": name, "row": title, "milliseconds": took, "date": str(date.today())}
            about = {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
            append_json(RESULTS / "small-batches.jsonl", {**line, **about})


if __name__ == "__main__":
    main()
