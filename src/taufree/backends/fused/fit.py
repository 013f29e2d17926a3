"""The step of a fitted gain in two kernels, where torch takes a hundred."""

from __future__ import annotations

import torch

from taufree.backends.fused.kernels import fit as kernels
from taufree.backends.fused.launch import start
from taufree.backends.likelihood import MAX_ANCHORS
from taufree.backends.numerics import shortest
from taufree.contrast import Contrast
from taufree.links import Gain, Link

PROGRAMS = 16, 128  # that share the candidates, at most: in a small batch and in any
BN, BK = 64, 32  # candidates and columns at a time


def step(contrast: Contrast, link: Link, gain: Gain) -> None:
    """One Newton step of ``gain``, in place, from the likelihood of ``link``."""
    formula, n = link.formula, contrast.n
    assert formula is not None
    x = contrast.anchors.detach().contiguous()
    scale = torch.as_tensor(link.formula_scale(), dtype=torch.float64, device=x.device)
    y = x if contrast.keys is None else contrast.keys.detach().contiguous()
    sample = min(n, MAX_ANCHORS)
    blocks = -(-n // BN)
    most = PROGRAMS[0] if blocks <= PROGRAMS[0] else PROGRAMS[1]
    programs = min(blocks, most)
    parts = x.new_empty(kernels.PARTS, programs, MAX_ANCHORS, dtype=torch.float32)
    ids = parts if contrast.ids is None else contrast.ids.contiguous()
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        start(
            kernels.sample_logits, programs, x, y, ids, scale, parts, shortest(x.dtype), shortest(y.dtype),
            n, sample, contrast.shift, programs, float(formula.resolution), D=x.shape[1],
            LINEAR=formula.kind == "linear", ALONE=contrast.keys is None, IDS=contrast.ids is not None,
            BM=MAX_ANCHORS, BN=BN, BK=BK, num_warps=8,
        )  # fmt: skip
        start(
            kernels.newton, 1, parts, scale, gain.log_gain, gain.curvature, gain.far_in_a_row, n, sample,
            programs, float(gain.largest), float(gain.most), MAX_PROGRAMS=most, BM=MAX_ANCHORS, BLOCK=16,
            num_warps=8,
        )  # fmt: skip
    torch.autograd.graph.increment_version((gain.log_gain, gain.curvature, gain.far_in_a_row))
