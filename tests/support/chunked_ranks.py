"""chunked_backward under DDP on two ranks: gradients are those of one process, and exchanged once a step."""

import copy
import os

import pytest
import torch
from torch import distributed, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

from taufree import InfoNCE, LearnableTemperature, info_nce, nt_xent, sup_con
from taufree.large_batch import chunked_backward
from tests.support.chunked_steps import A, B, N, buffers, gradients, mlp, one_graph

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
SHARES = slice(0, 4), slice(4, N)


class TowersAndLink(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"image": mlp(), "text": mlp(seed=1)})
        self.link = LearnableTemperature().double()

    def forward(self, batch):
        ((kind, x),) = batch.items()
        return self.towers[kind](x)


def count_exchanges(ddp):
    exchanges = []

    def hook(state, bucket):
        exchanges.append(bucket.index())
        future = distributed.all_reduce(bucket.buffer() / 2, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, hook)
    return exchanges


def one_encoder(rank):
    """With a loss over the rows of both ranks: the gradients of one process with all rows."""
    plain = mlp()
    shared = DistributedDataParallel(mlp())
    exchanges = count_exchanges(shared)
    own = slice(0, 6) if rank == 0 else slice(6, N)

    def gathered(a, b):
        return nt_xent(torch.cat(all_gather(a)), torch.cat(all_gather(b)))

    expected = one_graph(nt_xent, (plain, A), (plain, B))
    for step in (1, 2):  # the second adds to the first
        value = chunked_backward(gathered, (shared, A[own]), (shared, B[own]), chunk_size=4)
        torch.testing.assert_close(value, expected, **CLOSE)
        torch.testing.assert_close(gradients(shared), [step * g for g in gradients(plain)], **CLOSE)
        assert len(exchanges) == step
    with shared.no_sync():
        chunked_backward(gathered, (shared, A[own]), (shared, B[own]), chunk_size=4)
        assert len(exchanges) == 2
    chunked_backward(gathered, (shared, A[own]), (shared, B[own]), chunk_size=4)
    assert len(exchanges) == 3
    torch.testing.assert_close(gradients(shared), [4 * g for g in gradients(plain)], **CLOSE)


def two_encoders(rank):
    """And a link, a loss of each rank's own rows, and as many chunks as each rank needs."""

    def towers():
        return InfoNCE(link=LearnableTemperature()).double(), mlp(nn.BatchNorm1d(8)), mlp(seed=1)

    plain = towers()
    wrapped = [DistributedDataParallel(module) for module in towers()]
    exchanges = [count_exchanges(module) for module in wrapped]
    for other, part, chunks in ((0, SHARES[0], 1), (1, SHARES[1], 2)):
        copied = copy.deepcopy(plain)  # each rank has its own running statistics
        one_graph(copied[0], (copied[1], A[part]), (copied[2], B[part]), chunks=chunks)
        for module, done in zip(plain, copied, strict=True):
            for parameter, gradient in zip(module.parameters(), gradients(done), strict=True):
                parameter.grad = gradient / 2 + (0 if parameter.grad is None else parameter.grad)
            if other == rank:
                expected_buffers = buffers(*copied)
    own = SHARES[rank]
    chunked_backward(wrapped[0], (wrapped[1], A[own]), (wrapped[2], B[own]), chunk_size=4)
    torch.testing.assert_close(gradients(*wrapped), gradients(*plain), **CLOSE)
    torch.testing.assert_close(buffers(*wrapped), expected_buffers, **CLOSE)
    assert [len(done) for done in exchanges] == [1, 1, 1]


def everything_in_one_module(rank):
    """One DDP around all: its last chunk uses neither the first tower nor the link."""
    plain, wrapped = TowersAndLink(), DistributedDataParallel(TowersAndLink(), find_unused_parameters=True)
    exchanges = count_exchanges(wrapped)
    for part in SHARES:
        z = plain({"image": A[part]}), plain({"text": B[part]})
        (info_nce(*z, link=plain.link) / 2).backward()
    own = SHARES[rank]
    for step in (1, 2):
        chunked_backward(
            InfoNCE(link=wrapped.module.link),
            (wrapped, {"image": A[own]}),
            (wrapped, {"text": B[own]}),
            chunk_size=3,
        )
        torch.testing.assert_close(gradients(wrapped), [step * g for g in gradients(plain)], **CLOSE)
        assert len(exchanges) == step


def on_two_ranks(rank, store):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for check in (one_encoder, two_encoders, everything_in_one_module):
        check(rank)
    with pytest.raises(ValueError, match=r"calls\[0\] must have a DDP without static_graph"):
        chunked_backward(sup_con, (DistributedDataParallel(mlp(), static_graph=True), A), chunk_size=4)
    distributed.destroy_process_group()
    os._exit(0)  # gloo's threads may outlive their group, and then abort an orderly end of the process
