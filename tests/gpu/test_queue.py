"""NegativeQueue on a GPU."""

import torch

from taufree import NegativeQueue, info_nce
from tests.support.comparison import rows
from tests.support.devices import require_gpu

pytestmark = require_gpu()


def test_the_host_never_waits_for_the_device():
    queue, keys, ids = NegativeQueue(40, 8, device="cuda"), rows(16, 8).cuda(), torch.arange(16).cuda()
    queue.enqueue(keys, ids)  # whatever is made once and for all
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            found = queue.keys, queue.ids
            queue.enqueue(keys, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(found[0]) == len(found[1]) == queue.filled == 40


def test_ids_of_the_queue_by_the_kernels():
    query, key, negatives = (rows(300, 64, seed=i).detach() for i in range(3))
    ids, negative_ids = torch.arange(300) % 7, torch.arange(300) % 11
    values, grads = [], []
    for device, backend in (("cpu", "reference"), ("cuda", "triton")):
        leaf = query.to(device).requires_grad_()
        options = {"ids": ids.to(device), "negative_ids": negative_ids.to(device), "backend": backend}
        values.append(info_nce(leaf, key.to(device), negatives.to(device), **options))
        grads.append(torch.autograd.grad(values[-1], leaf)[0].cpu())
    torch.testing.assert_close(values[1].cpu(), values[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-7)
