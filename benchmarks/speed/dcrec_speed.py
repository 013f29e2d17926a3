"""What takes how long in DCRec: ``python -m benchmarks.paper.dcrec --speed``."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.support.timing import epoch_seconds, part_seconds, seconds
from taufree.experiments.evaluation.pair_statistics import observe_pairs
from taufree.experiments.recommendation.catalogue_loss import catalogue_loss
from taufree.experiments.recommendation.dcrec import DCRec, DCRecSettings
from taufree.experiments.recommendation.item_graphs import spread
from taufree.experiments.recommendation.network import contrastive
from taufree.experiments.training.recorded import Replayed
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training
from taufree.util.machine import hardware, versions


def measure(settings: DCRecSettings, data: Path | None, device: str, repeats: int) -> dict[str, Any]:
    """Milliseconds of a step, of its parts and of all around it, and the kernels that take longest."""
    recipe = DCRec(settings)
    took = {"load": elapsed(lambda: recipe.load(data)), "load again": elapsed(lambda: recipe.load(data))}
    training = Training(Run("dcrec", "free", 0, settings, "32-true", device, data), recipe)
    draws, batches = recipe.batches(0, torch.Generator()), []
    took["host, 20 batches"] = elapsed(lambda: batches.extend(islice(draws, 20)))
    batch = training.fabric.to_device(batches[0])
    training.model.train()
    with training.products():
        took["step"] = seconds(lambda: training._step(batch), device, repeats)
        took |= part_seconds(parts(training, batch), device, repeats)
    took["validation"] = seconds(lambda: training._judged(recipe.follow), device, 3)
    took["epoch with validation"] = epoch_seconds(training, 2)
    took["test"] = elapsed(lambda: training._judged(recipe.evaluate))
    milliseconds = {name: round(1e3 * value, 3) for name, value in took.items()}
    print("milliseconds:", milliseconds, flush=True)  # a profiler that fails would take them along
    kernels = longest(lambda: training._step(batch)) if device == "cuda" else {}
    return {
        "dataset": settings.dataset,
        "batch_size": settings.batch_size,
        "steps": recipe.samples.shape[1] // settings.batch_size,
        "rows": sorted({len(slots) for *_, slots in batches}),
        "replayed": isinstance(training._step, Replayed) and not training._step.waits,
        "milliseconds": milliseconds,
        "kernels": kernels,
        "versions": versions(),
        "hardware": hardware(training.fabric.device),
    }


def elapsed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def parts(training: Training, batch: tuple[torch.Tensor, ...]) -> dict[str, Callable[..., object]]:
    """The parts of a step, each with its gradients."""
    model, link, weights = training.weights, training.link, list(training.weights.parameters())
    samples, _, slots = batch
    with torch.no_grad():  # a graph that is alive would tie the recordings to the stream it was made on
        out = model(samples, slots=slots)
    views = [getattr(out, name).requires_grad_() for name in ("sequence", "adjacent", "similar")]
    alone = out._replace(**dict(zip(("sequence", "adjacent", "similar"), views, strict=True)))
    wanted, x = out.wanted.requires_grad_(), model.vectors.detach().requires_grad_()
    graph = model._graph("train")

    def slopes(value: torch.Tensor, leaves: list[torch.Tensor]) -> object:
        return torch.autograd.grad(value, leaves, allow_unused=True)

    def network(inputs: object = ()) -> object:
        seen = model(samples, slots=slots)
        used = (seen.wanted, seen.sequence, seen.adjacent, seen.similar, seen.conformity)
        return slopes(sum(part.square().sum() for part in used), weights)

    def walks(inputs: object = ()) -> object:
        three = model._train_walks(x, torch.zeros_like(graph.weights))
        return slopes(torch.stack(three).square().sum(), [x])

    def product(inputs: object = ()) -> object:
        return slopes(spread(x, graph.edges, graph.weights).square().sum(), [x])

    def scores(inputs: object = ()) -> object:
        return slopes(catalogue_loss(wanted, x, out.targets), [wanted, x])

    def contrast(inputs: object = ()) -> object:
        return slopes(contrastive(alone, out.last, link), views)

    def observation(inputs: object = ()) -> object:
        return observe_pairs(views[0], views[1], link, ids=out.last, anchors=64).gradient_scale

    def optimizer(inputs: object = ()) -> object:
        return training.optimizer.step()

    work = (network, walks, product, scores, contrast, observation, optimizer)
    return {one.__name__: one for one in work}


def longest(work: Callable[[], object], shown: int = 16) -> dict[str, str]:
    """The number of kernels of a call, and the time and the calls of those that take longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda one: -one.self_device_time_total)
    total = sum(one.self_device_time_total for one in found)
    rows = {one.key[:90]: f"{one.self_device_time_total:.0f} us, {one.count}" for one in found[:shown]}
    return {"all": f"{total:.0f} us, {sum(one.count for one in found)}", **rows}
