"""Every kind of contrast, on rows of float64."""

import torch

from taufree.contrast import Contrast


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contrasts(n, d):
    a, queue, own = rows(n, d), rows(n + 3, d, seed=2), rows(n, 2, d, seed=3)
    b, ids = a + rows(n, d, seed=1), torch.arange(n) % 4
    two = torch.cat([a, b])
    return {
        "pairs": Contrast(a, b),
        "symmetric": Contrast(a, b, symmetric=True),
        "ids": Contrast(a, b, ids=ids),
        "queue": Contrast(a, b, in_batch=False, queue=queue),
        "queue and batch": Contrast(a, b, queue=queue),
        "queue ids": Contrast(a, b, in_batch=False, queue=queue, ids=ids, queue_ids=torch.arange(n + 3) % 5),
        "own": Contrast(a, b, own_negatives=own, in_batch=False),
        "all": Contrast(a, b, own_negatives=own, queue=queue, ids=ids),
        "views": Contrast(two, shift=n),
        "views, ids": Contrast(two, shift=n, ids=torch.cat([ids, ids])),
        "labels": Contrast(two, labels=torch.cat([ids, ids])),
        "labelled keys": Contrast(a, queue, labels=ids, key_labels=torch.arange(n + 3) % 5),
    }
