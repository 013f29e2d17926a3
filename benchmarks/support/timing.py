"""Images per second: what ``--speed`` of the image benchmarks has in common."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from taufree.experiments.training.recorded import WARM_UP_CALLS, Replayed
from taufree.experiments.training.trainer import Training
from taufree.util.machine import hardware, versions


def seconds(work: Callable[[], object], device: str, repeats: int, first: int = WARM_UP_CALLS + 2) -> float:
    """The median time of a call, after ``first`` that are not counted."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    taken = []
    for number in range(first + repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if number >= first:
            taken.append(time.perf_counter() - start)
    return median(taken)


def part_seconds(parts: Mapping[str, Callable[..., Any]], device: str, repeats: int) -> dict[str, float]:
    """The time of each part of a step, replayed on a GPU as the step is."""
    return {
        name: seconds(Replayed(work) if device == "cuda" else work, device, repeats)
        for name, work in parts.items()
    }


def epoch_seconds(training: Training, repeats: int) -> float:
    """The median time of an epoch."""
    epochs = []
    for _ in range(repeats):
        start = time.perf_counter()
        training.train_epoch()  # reads its curves at the end, so the device is done
        epochs.append(time.perf_counter() - start)
    return median(epochs)


def write(
    path: Path, training: Training, images: Mapping[str, int], measured: Mapping[str, float], **about: Any
) -> None:
    """Print and write how many images a second each part takes; ``images`` are those of one call."""
    found = {
        **about,
        "batch_size": training.run.settings.batch_size,
        "precision": training.run.precision,
        "replayed": isinstance(training._step, Replayed) and not training._step.waits,
        "images_per_second": {name: round(images[name] / value) for name, value in measured.items()},
        "milliseconds": {name: round(1e3 * value, 3) for name, value in measured.items()},
        "versions": versions(),
        "hardware": hardware(training.fabric.device),
    }
    text = json.dumps(found, indent=2)
    print(text)
    path.write_text(text + "\n")
