"""Every implementation that is measured, by name: the backends, dense code, and the libraries people use.

Two losses, each over N pairs of D columns: "symmetric" (CLIP: the mean of both directions) and "nt-xent"
(SimCLR: 2N rows, each with 2N - 1 candidates). The backends take any link. Dense code has two: "free", the
log-odds, and "tau", a temperature of 0.07, since libraries know nothing but a temperature. A library that
computes one direction is called twice ("x2").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import taufree

TAU = 0.07
LINKS: tuple[str | float, ...] = ("free", TAU)  # those of the backends, unless others are asked for
RESOLUTION = taufree.LogOdds().resolution
LOSSES = ("symmetric", "nt-xent")
SLICE_SIZE = 2**26  # similarities that `truth` holds at a time

Loss = Callable[[Tensor, Tensor], Tensor]
OneWayLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """One implementation. ``make`` imports what it needs and gives the loss of that name.

    ``link`` is "free" or "tau" of dense code and libraries; a loss of taufree has the link as its attribute.
    """

    name: str
    link: str
    make: Callable[[str], Loss]
    losses: Sequence[str] = LOSSES
    devices: Sequence[str] = ("cuda", "cpu")
    package: str | None = None  # what pip calls it
    module: str | None = None  # what Python calls it

    def installed(self) -> bool:
        return self.module is None or find_spec(self.module) is not None


def methods(device: str, loss: str, links: Sequence[str | float] = LINKS) -> list[Method]:
    """What can compute ``loss`` on ``device`` ("cuda" or "cpu"), installed or not; taufree comes first."""
    every = [*backends(links), *PEERS]
    return [m for m in every if device in m.devices and loss in m.losses]


def log_odds(cosines: Tensor) -> Tensor:
    """The free link, written by hand."""
    cosines = cosines / (1 + RESOLUTION)
    return torch.log1p(cosines) - torch.log1p(-cosines)


def over_tau(cosines: Tensor) -> Tensor:
    return cosines / TAU


def logits_of(method: Method, loss: Loss) -> Logits:
    """The logits that ``loss``, made by ``method``, has now, written by hand."""
    link = getattr(loss, "link", None)
    if link is None:
        return BY_HAND[method.link]
    kind, scale = link.formula.kind, float(link.formula_scale())
    return lambda cosines: scale * (cosines if kind == "linear" else log_odds(cosines))


def truth(loss: str, logits: Logits, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradients [2N, D], dense and in float32.

    A slice of the rows at a time, computed again in the backward, so that it fits where N x N does not.
    """
    rows = torch.cat([a, b]).detach().float().requires_grad_()
    unit, n = F.normalize(rows), len(a)
    with torch.enable_grad():
        if loss == "nt-xent":
            total = _sliced(logits, unit, unit, n, without_self=True)
        else:
            total = (_sliced(logits, unit[:n], unit[n:], 0) + _sliced(logits, unit[n:], unit[:n], 0)) / 2
        return total.detach(), torch.autograd.grad(total, rows)[0]


def _sliced(logits: Logits, anchors: Tensor, keys: Tensor, shift: int, without_self: bool = False) -> Tensor:
    def part(rows: Tensor, keys: Tensor, own: Tensor) -> Tensor:
        c = rows @ keys.T
        if without_self:
            c = c.scatter(1, own[:, None], 0)
        scores = logits(c)
        if without_self:
            scores = scores.scatter(1, own[:, None], -torch.inf)
        return F.cross_entropy(scores, (own + shift) % len(keys), reduction="sum")

    own = torch.arange(len(anchors), device=anchors.device)
    size = max(1, SLICE_SIZE // len(keys))
    parts = [
        checkpoint(part, rows, keys, mine, use_reentrant=False, preserve_rng_state=False)
        for rows, mine in zip(torch.split(anchors, size), torch.split(own, size), strict=True)
    ]
    return torch.stack(parts).sum() / len(anchors)


def _dense(logits: Logits) -> Callable[[str], Loss]:
    """The loss by hand in the inputs' precision, with its matrix of logits in float32."""

    def symmetric(a: Tensor, b: Tensor) -> Tensor:
        scores = logits((F.normalize(a) @ F.normalize(b).T).float())
        own = torch.arange(len(a), device=a.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2

    def nt_xent(a: Tensor, b: Tensor) -> Tensor:
        z = F.normalize(torch.cat([a, b]))
        c = (z @ z.T).float().fill_diagonal_(0)  # before the link, or rounding to c > 1 makes it NaN
        scores = logits(c).fill_diagonal_(-torch.inf)
        return F.cross_entropy(scores, torch.arange(len(z), device=a.device).roll(len(a)))

    return lambda loss: nt_xent if loss == "nt-xent" else symmetric


def _compiled(logits: Logits) -> Callable[[str], Loss]:
    def make(loss: str) -> Loss:
        torch.compiler.reset()  # every size gets code of its own
        compiled: Loss = torch.compile(_dense(logits)(loss), dynamic=False)
        return compiled

    return make


def _taufree(backend: str, link: str | float) -> Callable[[str], Loss]:
    def make(loss: str) -> Loss:
        if loss == "nt-xent":
            return taufree.NTXent(link=link, backend=backend)
        return taufree.InfoNCE(symmetric=True, link=link, backend=backend)

    return make


def backends(links: Sequence[str | float]) -> list[Method]:
    """Ours with each link, a name or a temperature: the kernels on a GPU, the tiles and, to compare, the free
    link by tiles on a GPU and by the reference on a CPU."""
    found = []
    for backend, devices in (("triton", _GPU), ("blockwise", _CPU)):
        for link in links:
            name = link if isinstance(link, str) else "tau" if link == TAU else f"tau {link:g}"
            found.append(Method(f"taufree {backend}, {name}", name, _taufree(backend, link), devices=devices))
    slow = [("blockwise", _GPU), ("reference", _CPU)]
    return found + [
        Method(f"taufree {backend}, free", "free", _taufree(backend, "free"), devices=devices)
        for backend, devices in slow
    ]


def _twice(find: Callable[[], OneWayLoss]) -> Callable[[str], Loss]:
    """The symmetric loss from one direction, a function of unit rows, unit keys and the rows' own numbers."""

    def make(loss: str) -> Loss:
        direction = find()

        def both(a: Tensor, b: Tensor) -> Tensor:
            u, v, own = F.normalize(a), F.normalize(b), torch.arange(len(a), device=a.device)
            return (direction(u, v, own) + direction(v, u, own)) / 2

        return both

    return make


def _load(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _linear_cross_entropy() -> OneWayLoss:
    fused = _load("torch.nn.functional", "linear_cross_entropy")
    return lambda u, v, own: fused(u / TAU, v, own)


def _cut_cross_entropy() -> OneWayLoss:
    fused = _load("cut_cross_entropy", "linear_cross_entropy")
    # Its filter drops small probabilities from the gradient; without it the gradient is the loss's.
    return lambda u, v, own: fused(u / TAU, v, own, filter_eps=None)


def _liger() -> OneWayLoss:
    fused = _load("liger_kernel.transformers", "LigerFusedLinearCrossEntropyLoss")()
    return lambda u, v, own: fused(v, u / TAU, own)


def _inf_cl() -> OneWayLoss:
    fused = _load("inf_cl", "cal_inf_loss")

    def direction(u: Tensor, v: Tensor, own: Tensor) -> Tensor:
        head = next((h for h in (256, 128, 64, 32, 16) if u.shape[1] % h == 0), 0)
        if len(u) % 64 or not head:  # elsewhere it reads past the end
            raise ValueError("Inf-CL needs N a multiple of 64 and D a multiple of 16")
        loss: Tensor = fused(u / TAU, v, head_dim=head)
        return loss

    return direction


def _info_nce_pytorch() -> OneWayLoss:
    one = _load("info_nce", "InfoNCE")(TAU)
    return lambda u, v, own: one(u, v)


def _open_clip(loss: str) -> Loss:
    clip = _load("open_clip.loss", "ClipLoss")()
    return lambda a, b: clip(F.normalize(a), F.normalize(b), 1 / TAU)


def _lightly(loss: str) -> Loss:
    one: Loss = _load("lightly.loss", "NTXentLoss")(TAU)
    return one


def _flex_attention(loss: str) -> Loss:
    """The mean of logsumexp - positive; the link is a score_mod, the values are a few zeros."""
    from torch.nn.attention.flex_attention import flex_attention

    def link(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        if loss == "nt-xent":  # before the link and after it, as in dense code
            score = torch.where(row == key, 0.0, score)
        scores = log_odds(score)
        return torch.where(row == key, -torch.inf, scores) if loss == "nt-xent" else scores

    torch.compiler.reset()
    attention: Any = torch.compile(flex_attention, dynamic=False)

    def direction(u: Tensor, v: Tensor, own: Tensor) -> Tensor:
        q, k = u[None, None], v[None, None]
        nothing = k.new_zeros(1, 1, len(v), 16)
        _, total = attention(q, k, nothing, score_mod=link, scale=1.0, return_lse=True)
        loss: Tensor = total[0, 0] - log_odds((u.float() * v[own].float()).sum(1))
        return loss.mean()

    def nt_xent(a: Tensor, b: Tensor) -> Tensor:
        z = F.normalize(torch.cat([a, b]))
        return direction(z, z, torch.arange(len(z), device=z.device).roll(len(a)))

    return nt_xent if loss == "nt-xent" else _twice(lambda: direction)(loss)


BY_HAND: dict[str, Logits] = {"free": log_odds, "tau": over_tau}
_GPU, _CPU, _ONE = ("cuda",), ("cpu",), ("symmetric",)
PEERS = [
    Method("dense eager, free", "free", _dense(log_odds)),
    Method("dense eager, tau", "tau", _dense(over_tau)),
    Method("torch.compile dense, free", "free", _compiled(log_odds), devices=_GPU),
    Method("torch.compile dense, tau", "tau", _compiled(over_tau), devices=_GPU),
    Method("FlexAttention, free", "free", _flex_attention, devices=_GPU),
    Method("Inf-CL x2, tau", "tau", _twice(_inf_cl), _ONE, _GPU, "inf-cl", "inf_cl"),
    Method(
        "cut-cross-entropy x2, tau", "tau", _twice(_cut_cross_entropy), _ONE, _GPU,
        "cut-cross-entropy", "cut_cross_entropy",
    ),
    Method("Liger x2, tau", "tau", _twice(_liger), _ONE, _GPU, "liger-kernel", "liger_kernel"),
    Method("open_clip, tau", "tau", _open_clip, _ONE, package="open_clip_torch", module="open_clip"),
    Method(
        "info-nce-pytorch x2, tau", "tau", _twice(_info_nce_pytorch), _ONE,
        package="info-nce-pytorch", module="info_nce",
    ),
    Method("lightly, tau", "tau", _lightly, ("nt-xent",), package="lightly", module="lightly"),
]  # fmt: skip
if hasattr(F, "linear_cross_entropy"):
    PEERS.append(Method("F.linear_cross_entropy x2, tau", "tau", _twice(_linear_cross_entropy), _ONE))
