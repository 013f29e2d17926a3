"""Several processes that train one run together, as torchrun starts them.

All ranks draw the same batches and take their own rows of each. The loss, the batch norms and what is
observed reach over all ranks, and gradients are averaged, so that the result is that of one process. Rank 0
alone reads and writes results and checkpoints, and prints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taufree.experiments.settings import BatchSettings, Settings
from taufree.util.errors import BadInputError

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import Tensor

    from taufree.experiments.recipe import Recipe
    from taufree.experiments.training.run import Run

FIRST_RANK_SECONDS = 5.0
"""Seconds that rank 0 has to print an error that all ranks have found."""


def world() -> int:
    """How many ranks train together; 1 unless torchrun has started this process."""
    return _from_torchrun("WORLD_SIZE", 1)


def rank() -> int:
    """Which of them this is."""
    return _from_torchrun("RANK", 0)


def here() -> int:
    """How many of them are on this machine."""
    return _from_torchrun("LOCAL_WORLD_SIZE", 1)


def _from_torchrun(name: str, alone: int) -> int:
    return int(os.environ[name]) if "TORCHELASTIC_RUN_ID" in os.environ else alone


def check(recipe: type[Recipe], settings: Settings, device: str, jobs: int) -> None:
    """Raise a :class:`BadInputError` where several ranks cannot do what is asked for."""
    if world() == 1:
        return
    if not recipe.independent_rows:
        raise BadInputError(
            f"the recipe {recipe.name} trains in one process only, start it without torchrun."
        )
    if jobs > 1:
        raise BadInputError(f"--jobs must be 1 under torchrun, where all ranks train one run, got {jobs}.")
    if isinstance(settings, BatchSettings) and settings.batch_size < world():
        raise BadInputError(
            f"batch_size must be at least {world()}, a pair for each rank, got {settings.batch_size}."
        )
    if device == "mps":
        raise BadInputError("device mps cannot train over ranks, use --device cpu.")
    import torch  # the command line asks for the rank before it needs torch

    if device == "cuda" and torch.cuda.device_count() < here():
        raise BadInputError(
            f"{here()} ranks on this machine need as many GPUs, PyTorch sees {torch.cuda.device_count()}; "
            "use another --nproc-per-node or --device cpu."
        )


def wait_for_first() -> None:
    """Let rank 0 print first: torchrun ends the other ranks with it, so that an error is printed once."""
    if rank():
        time.sleep(FIRST_RANK_SECONDS)


def make_fabric(run: Run) -> Fabric:
    """One device, or this rank under DDP: gloo on CPUs, NCCL on GPUs."""
    from lightning.fabric import Fabric  # takes seconds, and the command line imports this module

    return Fabric(
        accelerator=run.device,
        devices=here(),
        num_nodes=world() // here(),
        strategy="ddp" if world() > 1 else "auto",
        precision=run.precision,
    )


def own_rows(batch: Sequence[Tensor], rank: int, world: int) -> tuple[Tensor, ...]:
    """A rank's share of a batch: of N rows those from N rank / world on, N (rank + 1) / world left out.

    N is the length of the first tensor. One of k N rows holds k views, one after the other, and the share is
    of each of them. Shares differ by a row where N cannot be divided.

    >>> import torch
    >>> [x.tolist() for x in own_rows((torch.arange(3), torch.arange(6)), 1, 2)]
    [[1, 2], [1, 2, 4, 5]]
    """
    n = len(batch[0])
    mine = slice(n * rank // world, n * (rank + 1) // world)
    return tuple(x.reshape(-1, n, *x.shape[1:])[:, mine].flatten(0, 1) for x in batch)
