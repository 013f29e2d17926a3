"""What the processes of experiments/training/test_ranks.py do: two ranks, without torchrun or the command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import nn

from taufree.distributed import Ranks
from taufree.experiments.training.batch_norm import synchronised
from taufree.experiments.training.trainer import train


def normalise(rank, sizes=(5, 2)):
    """Relative errors of a batch norm over ranks against one process: results, statistics, gradients."""
    generator = torch.Generator().manual_seed(0)
    x, pull = torch.randn(2, sum(sizes), 3, 4, generator=generator, dtype=torch.float64)
    plain, shared = (nn.Sequential(nn.Identity(), nn.BatchNorm1d(3)) for _ in range(2))
    plain, shared = plain.double(), synchronised(shared, x.device).double()
    x = (100 + x).requires_grad_()
    y = plain(x)
    (y * pull).sum().backward()
    own = x.detach().split(sizes)[rank].clone().requires_grad_()
    z = shared(own)
    (z * pull.split(sizes)[rank]).sum().backward()
    pairs = [(z, y.split(sizes)[rank]), (own.grad, x.grad.split(sizes)[rank])]
    pairs += zip(shared.buffers(), plain.buffers(), strict=True)
    ranks = Ranks(x.device)
    pairs += [
        (ranks.sum(p.grad, "a gradient"), q.grad)
        for p, q in zip(shared.parameters(), plain.parameters(), strict=True)
    ]
    pairs.append((shared.eval()(own), plain.eval()(x).split(sizes)[rank]))
    return [((p - q).double().norm() / q.double().norm()).item() for p, q in pairs]


def work(rank, port, folder, runs, broken):
    """Train all runs, and the one named ``broken`` in two goes."""
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    ranks = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in {**alone, **ranks}.items()})
    torch.set_num_threads(1)
    # Other ranks find no file of the first one, as on another machine.
    checkpoints = Path(folder) / f"checkpoints-{rank}"
    found = {}

    def break_off(epoch, loss):
        if epoch == 2:
            raise KeyboardInterrupt

    for name, run in runs.items():
        epochs = []
        if name == broken:
            try:
                train(run, checkpoints, every=0, watch=break_off)
            except KeyboardInterrupt:
                epochs.append("broken off")
        found[name] = train(run, checkpoints, watch=lambda epoch, loss, epochs=epochs: epochs.append(epoch))
        found[f"{name}, epochs"] = epochs
    found["batch norm"] = normalise(rank)
    found["files"] = sorted(path.name for path in checkpoints.glob("*/epoch-*/*"))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # gloo's threads may outlive their group, and then abort an orderly end of the process
