"""Fitted links trained for some steps, by the kernels that fit them or by torch."""

import torch

from taufree import info_nce, nt_xent


def _rows(n, d, width=1.0, noise=0.5, step=0):
    """Pairs of rows, some of them short, zero, equal or opposite; in a cone of that width."""
    generator = torch.Generator().manual_seed(step)
    centre, a, b = (torch.randn(k, d, generator=generator, dtype=torch.float64) for k in (1, n, n))
    a, b = a + centre * (1 / width - 1), a + centre * (1 / width - 1) + noise * b
    a[0], b[1], b[2], a[3], b[4] = 0, a[1], -a[7], a[3] * 1e-30, b[5] + 0.1 * b[4]
    return a, b


def _pairs(n, d, step, **options):
    return *_rows(n, d, step=step), info_nce, options


FIT_LOSSES = {
    "pairs": lambda n, d, step: _pairs(n, d, step, symmetric=True),
    "views": lambda n, d, step: (*_rows(n, d, step=step), nt_xent, {}),
    "ids": lambda n, d, step: _pairs(n, d, step, ids=torch.arange(n) // 2),
    "views with ids": lambda n, d, step: (
        *_rows(n, d, step=step), nt_xent, {"ids": torch.arange(n, dtype=torch.int32) // 3},
    ),
    "cone": lambda n, d, step: (*_rows(n, d, 0.01, step=step), info_nce, {}),
    "nothing and something": lambda n, d, step: (
        *((x[:1] for x in _rows(n, d, step=step)) if step % 2 else _rows(n, d, step=step)), info_nce, {},
    ),
    "NaN and numbers": lambda n, d, step: (
        *(x * (float("nan") if step % 3 == 1 else 1) for x in _rows(n, d, step=step)), info_nce, {},
    ),
    "all the same": lambda n, d, step: (
        *((torch.ones(n, d) for _ in range(2)) if step % 2 else _rows(n, d, step=step)), info_nce, {},
    ),
    "far away": lambda n, d, step: (*_rows(n, d, noise=0.02 if step > 1 else 2.0, step=step), info_nce, {}),
}  # fmt: skip


def fit_steps(kind, name, n, d, dtype, device="cpu", *, exactly, steps=3):
    """The buffers of a link of that kind after some steps, measured by torch on the same rows in float64, or
    by the kernels."""
    link = kind().to(device)
    for step in range(steps):
        a, b, loss, options = FIT_LOSSES[name](n, d, step)
        a, b = (x.to(device, dtype) for x in (a, b))
        a, b = (x.double() if exactly else x.t().contiguous().t() for x in (a, b))
        options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
        loss(a, b, link=link, **options, backend="reference" if exactly else "triton")
    return [x.item() for x in link.state_dict().values()]
