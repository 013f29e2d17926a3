"""Truths that share no code with the library: every loss as an explicit list of pairs.

A problem is a list of row vectors and a list of anchors (row, positives, negatives, weight), all by
index. Its loss is summed in float64 with autograd, or in mpmath with 50 digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mpmath
import torch

import taufree


@dataclass
class Case:
    """One call of the library: the function's name, its tensors and its keyword arguments."""

    function: str
    tensors: list[torch.Tensor]
    options: dict = field(default_factory=dict)

    def call(self, backend: str, link: taufree.Link, reduction: str = "sum"):
        """The loss, and the gradients of all tensors as one list of rows, then of the link's parameters."""
        leaves = [t.detach().clone().requires_grad_() for t in self.tensors]
        names = {
            "sup_con": ("embeddings", "keys"),
            "nt_xent": ("view_a", "view_b"),
            "sigmoid_nce": ("query", "key"),
            "info_nce": ("query", "positive_key", "negative_keys"),
        }[self.function]
        loss = getattr(taufree, self.function)(
            **dict(zip(names, leaves, strict=False)), **self.options, link=link, reduction=reduction,
            backend=backend,
        )  # fmt: skip
        grads = torch.autograd.grad(loss.sum(), leaves + list(link.parameters()), allow_unused=True)
        rows = [
            (torch.zeros_like(x) if g is None else g).double().reshape(-1, x.shape[-1])
            for g, x in zip(grads, leaves, strict=False)
        ]
        return loss.detach().double(), torch.cat(rows), [g.double() for g in grads[len(leaves) :]]

    def rows(self) -> torch.Tensor:
        return torch.cat([t.double().reshape(-1, t.shape[-1]) for t in self.tensors])

    def anchors(self, lonely: bool = False) -> list[tuple[int, list[int], list[int], float]]:
        """Row, positives, negatives and weight; ``lonely`` ones have no positive, and no part in a loss."""
        n = len(self.tensors[0])
        if self.function == "sup_con":
            labels, first = self.options["labels"].tolist(), 0
            if len(self.tensors) > 1:  # keys
                labels, first = labels + self.options["key_labels"].tolist(), n
            found = []
            for i in range(n):
                others = [j for j in range(first, len(labels)) if j != i]
                positives = [j for j in others if labels[j] == labels[i]]
                if positives or lonely:
                    found.append((i, positives, [j for j in others if labels[j] != labels[i]], 1.0))
            return found
        ids = self.options.get("ids")
        ids = list(range(n)) if ids is None else ids.tolist()
        if self.function == "nt_xent":
            every, ids = range(2 * n), ids + ids
            return [(i, [(i + n) % (2 * n)], [j for j in every if ids[j] != ids[i]], 1.0) for i in every]
        extra = self.tensors[2] if len(self.tensors) > 2 else None
        theirs = self.options.get("negative_ids")
        in_batch = self.options.get("in_batch")
        in_batch = extra is None if in_batch is None else in_batch
        both = self.options.get("symmetric", False)
        found = []
        for i in range(n):
            others = [j for j in range(n) if ids[j] != ids[i]] if in_batch else []
            negatives = [n + j for j in others]
            if extra is not None and extra.dim() == 2:
                every = range(extra.shape[0])
                negatives += [2 * n + j for j in every if theirs is None or theirs[j] != ids[i]]
            elif extra is not None:
                negatives += [2 * n + i * extra.shape[1] + j for j in range(extra.shape[1])]
            found.append((i, [n + i], negatives, 0.5 if both else 1.0))
            if both:
                found.append((n + i, [i], others, 0.5))
        return found

    def bias(self) -> float:
        """That of the sigmoid loss."""
        return self.options.get("bias", -math.log(max(1, len(self.tensors[0]) - 1)))

    def closest(self) -> float:
        """The smallest angle of a pair that is compared, to each other or to the opposite."""
        u = torch.nn.functional.normalize(self.rows(), dim=1, eps=1e-300)
        angles = [1.0]
        for i, positives, negatives, _ in self.anchors():
            v = u[positives + negatives]
            chord = torch.minimum((v - u[i]).norm(dim=1), (v + u[i]).norm(dim=1))
            angles.append(float(chord.min()))
        return min(angles)


@dataclass
class Truth:
    """Sum of the losses, gradients of the rows and of the link's parameters.

    ``terms`` is how large the rows' gradient would be if the pulls of the pairs (and of a labelled
    pair, its share and its target) did not cancel: where they nearly do, no precision gives the
    difference more digits than the terms have. ``pulls`` is the
    same with the radial part, which the normalisation takes away, still in.
    """

    loss: torch.Tensor
    rows: torch.Tensor
    params: list[torch.Tensor]
    terms: float
    pulls: float


def hard_factors(case: Case, cosines: torch.Tensor) -> torch.Tensor:
    """The logarithms of what the negatives' weights are multiplied by for their hardness and number."""
    found = case.options.get("hardness", 0.0) * cosines
    if case.options.get("scale_hardness", True) and len(found):
        found = found - (found.exp().mean()).log()
    return found - math.log(max(1, len(found))) if case.options.get("balanced") else found


def float64(case: Case, link: taufree.Link) -> Truth:
    """By plain autograd in float64."""
    rows = case.rows().requires_grad_()
    total, met = rows.sum() * 0, []
    for i, positives, negatives, weight in case.anchors():
        keys = positives + negatives
        cosine = torch.nn.functional.cosine_similarity(rows[i : i + 1], rows[keys], eps=0)
        factors = hard_factors(case, cosine.detach()[len(positives) :])
        logits = link(cosine) + torch.cat([torch.zeros(len(positives)), factors])
        share = logits.detach().softmax(0) + torch.tensor(
            [len(positives) > 1] * len(positives) + [False] * len(negatives)
        )
        met.append((i, keys, cosine, weight * share * link.slope(cosine, 1 - cosine, 1 + cosine).detach()))
        if case.function == "sigmoid_nce":
            signs = torch.tensor([-1.0] + [1.0] * len(negatives))
            z = signs * (logits + case.bias())
            total = total + (z.clamp(min=0) + z.abs().neg().exp().log1p()).sum()
            continue
        loss = logits.logsumexp(0) - logits[: len(positives)].mean()
        if case.options.get("decoupled"):
            loss = logits[len(positives) :].logsumexp(0) - logits[: len(positives)].mean()
            loss = loss if negatives else logits.sum() * 0
        excess = logits[1:] - logits[0]
        if (
            not case.options.get("decoupled") and len(positives) == 1 and bool((excess < 30).all())
        ):  # the difference has no digits of a tiny loss
            loss = excess.exp().sum().log1p()
        total = total + weight * loss
    inputs = [rows, *link.parameters(), *(cosine for _, _, cosine, _ in met)]
    grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    params = grads[1 : len(grads) - len(met)]
    terms, pulls, norms = torch.zeros(len(rows)), torch.zeros(len(rows)), rows.detach().norm(dim=1)
    for (i, keys, cosine, size), a in zip(met, grads[len(grads) - len(met) :], strict=True):
        for j, c, pull in zip(keys, cosine.tolist(), torch.maximum(size, a.abs()).tolist(), strict=True):
            for row in (i, j):
                pulls[row] += pull / float(norms[row])
                terms[row] += pull * max(0, 1 - c * c) ** 0.5 / float(norms[row])
    return Truth(
        total.detach(), grads[0], [g.double() for g in params], float(terms.norm()), float(pulls.norm())
    )


def digits50(case: Case, link: taufree.Link) -> Truth:
    """By the chain rule, written out by hand, with 50 digits."""
    with mpmath.workdps(50):
        rows = [[mpmath.mpf(x) for x in row] for row in case.rows().tolist()]
        norms = [mpmath.sqrt(mpmath.fsum(x * x for x in row)) for row in rows]
        units = [[x / n for x in row] for row, n in zip(rows, norms, strict=True)]
        grads = [[mpmath.mpf(0)] * len(rows[0]) for _ in rows]
        terms, pulls = [0.0] * len(rows), [0.0] * len(rows)
        total = mpmath.mpf(0)
        for i, positives, negatives, weight in case.anchors():
            keys, p = positives + negatives, len(positives)
            cosines = [mpmath.fsum(a * b for a, b in zip(units[i], units[j], strict=True)) for j in keys]
            logits, slopes = zip(*(_mp_link(link, c) for c in cosines), strict=True)
            factors = [mpmath.exp(case.options.get("hardness", 0.0) * c) for c in cosines[p:]]
            if case.options.get("scale_hardness", True) and factors:
                factors = [x * len(factors) / mpmath.fsum(factors) for x in factors]
            if case.options.get("balanced"):
                factors = [x / len(factors) for x in factors]
            logits = [*logits[:p], *(x + mpmath.log(y) for x, y in zip(logits[p:], factors, strict=True))]
            questions = case.function == "sigmoid_nce"
            coupled = not case.options.get("decoupled")
            if not coupled and not negatives:
                continue
            z = mpmath.fsum(mpmath.exp(x) for x in (logits if coupled else logits[p:]))
            if questions:
                odds = [mpmath.exp(x + case.bias()) for x in logits]
                total += mpmath.log1p(1 / odds[0]) + mpmath.fsum(mpmath.log1p(x) for x in odds[1:])
            else:
                total += weight * (mpmath.log(z) - mpmath.fsum(logits[:p]) / p)
            for k, j in enumerate(keys):
                share = mpmath.exp(logits[k]) / z if coupled or k >= p else mpmath.mpf(0)
                if questions:
                    share = odds[k] / (1 + odds[k])
                a = weight * slopes[k] * (share - (mpmath.mpf(1) / p if k < p else 0))
                size = float(weight * slopes[k] * (share + mpmath.mpf(1) / p) if k < p and p > 1 else abs(a))
                for x, y in ((i, j), (j, i)):
                    pulls[x] += size / float(norms[x])
                    terms[x] += size * float(mpmath.sqrt(abs(1 - cosines[k] ** 2)) / norms[x])
                    for d, (own, other) in enumerate(zip(units[x], units[y], strict=True)):
                        grads[x][d] += a * (other - cosines[k] * own) / norms[x]
        gradients = torch.tensor([[float(g) for g in row] for row in grads], dtype=torch.float64)
        loss = torch.tensor(float(total), dtype=torch.float64)
        return Truth(loss, gradients, [], math.hypot(*terms), math.hypot(*pulls))


def _mp_link(link: taufree.Link, c):
    if isinstance(link, taufree.LogOdds):
        delta, gain = mpmath.mpf(link.resolution), mpmath.mpf(link.gain)
        above, below = 1 + c + delta, 1 - c + delta
        return gain * mpmath.log(above / below), gain * (1 / above + 1 / below)
    scale = 1 / mpmath.mpf(link.tau)
    return c * scale, scale


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    """|found - truth| / |truth|; NaN counts as inf."""
    norm = float(truth.norm())
    error = float((found.double() - truth.double()).norm())
    if error != error:
        return float("inf")
    return error / norm if norm else error


def statistics(case: Case, margin: float = 1e-5) -> list[float]:
    """Accuracy, mean cosines of positives and negatives, effective dimension; pair by pair in float64."""
    u = torch.nn.functional.normalize(case.rows(), dim=1, eps=1e-300)
    hits, positive, negative = [], [], []
    for i, positives, negatives, _ in case.anchors(lonely=True):
        near, far = u[positives] @ u[i], u[negatives] @ u[i]
        negative.append(far)
        if positives and negatives:
            hits.append(float(near.max() > far.max() + margin))
            positive.append(near.mean())
    if not hits:
        return [math.nan] * 4
    far = torch.cat(negative)
    dimension = min(u.shape[1], 1 / float(far.square().mean()))
    return [sum(hits) / len(hits), float(sum(positive) / len(positive)), float(far.mean()), dimension]
