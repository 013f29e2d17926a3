"""iSogCLR: a temperature for each sample of the data, found while training."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from taufree.baselines.scheme import Scheme, with_value
from taufree.distributed import all_rows
from taufree.links import Temperature
from taufree.links.base import check_number


class ISogCLR(Scheme):
    """A temperature for each sample: a robust loss whose negatives may differ from uniform by rho nats.

    With h_ij = s_ij - s_ii, for each anchor of a batch, by its sample's state (u, tau, m):

        g = mean_j exp(h_ij / tau),  u <- (1 - gamma) u + gamma g,  w_ij = sg[exp(h_ij / tau) / u]
        L_i = mean_j w_ij h_ij
        G = log u + rho - mean_j w_ij h_ij / tau, clipped;  m <- (1 - beta) m + beta G
        tau <- tau - eta m, kept in its range

    That is tau times DCL's gradient with gamma = 1. Qiu et al., ICML 2023, with the defaults of the authors'
    CIFAR-100 runs; for images and texts they have beta 0.9, rho 6, tau 0.01, low 0.005 and clip 5. The two
    views of a sample share its state, by the means of their g and G; of pairs each side has its own. A
    sample's first visit takes u = g, where the public code has gamma g by a slip, and in that for pairs the
    positive is in g.

    The state is in the ``state_dict``; each rank holds all of it, 12 bytes a sample (of pairs 24), and writes
    what all of them found. In evaluation mode and under ``torch.no_grad()`` it stays.

    Args:
        samples: how many samples there are.
        gamma: how much of u is new.
        beta: how much of the momentum m is new.
        rho: how far the negatives' weights are from uniform, in nats.
        tau: the temperature that all begin with.
        low, high: the range of temperatures.
        eta: the step of temperatures.
        clip: the largest G.
        pairs, reduction, gather_distributed, backend: see ``Scheme``.

    Examples:
        >>> loss = ISogCLR(samples=10)
        >>> view = torch.eye(4, requires_grad=True)
        >>> loss(view, torch.eye(4), torch.tensor([7, 1, 2, 3])).backward()
        >>> loss.state_dict()["tau"][0, [0, 7]].tolist()
        [0.10000..., 0.09400...]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"index"})
    log_u: Tensor
    tau: Tensor
    momentum: Tensor

    def __init__(
        self,
        samples: int,
        gamma: float = 0.8,
        beta: float = 0.5,
        rho: float = 0.4,
        tau: float = 0.1,
        low: float = 0.05,
        high: float = 1.0,
        eta: float = 0.03,
        clip: float = 3.0,
        *,
        pairs: bool = False,
        reduction: str = "mean",
        gather_distributed: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(Temperature(tau), pairs, reduction, gather_distributed, backend)
        share, positive = (lambda x: 0 < x <= 1), (lambda x: x > 0)
        self.gamma = check_number("gamma", gamma, "a positive number of at most 1", share)
        self.beta = check_number("beta", beta, "a positive number of at most 1", share)
        self.rho = check_number("rho", rho, "a number of at least 0", lambda x: x >= 0)
        self.low = check_number("low", low, "a positive number", positive)
        self.high = check_number("high", high, f"a number of at least low = {low:g}", lambda x: x >= low)
        self.eta = check_number("eta", eta, "a positive number", positive)
        self.clip = check_number("clip", clip, "a positive number", positive)
        shape = (2 if pairs else 1, samples)  # of the sides that have a state of their own
        self.register_buffer("log_u", torch.full(shape, -torch.inf))
        self.register_buffer("tau", torch.full(shape, float(tau)))
        self.register_buffer("momentum", torch.zeros(shape))

    def forward(self, view_a: Tensor, view_b: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch; ``index`` [N] has the number of each sample, from 0."""
        if index.shape != view_a.shape[:1] or index.is_floating_point():
            raise ValueError(
                f"index must be an integer tensor [{len(view_a)}], got {index.dtype} {list(index.shape)}."
            )
        rows = all_rows(index) if self.gather_distributed else index
        negatives = max(1, len(rows) - 1 if self.pairs else 2 * len(rows) - 2)
        tau = self.tau[:, index].double().expand(2, -1)
        learns = self.training and torch.is_grad_enabled()
        scale = tau.reciprocal().requires_grad_(learns)
        link = Temperature(scale.reciprocal().flatten())
        decoupled = self._decoupled(view_a, view_b, None, link).view(2, -1)
        if not learns:
            return self._reduced((tau * decoupled).flatten())
        # d/dscale of log(sum_j exp(scale h_ij)) is the mean of h under the negatives' softmax.
        (mean_h,) = torch.autograd.grad(decoupled.sum(), scale, retain_graph=True)
        log_g = decoupled.detach().double() - math.log(negatives)
        shared = log_g if self.pairs else log_g.logsumexp(0, keepdim=True) - math.log(2)
        log_u = self._moved(shared, self.log_u[:, index].double())
        ratio = (log_g - log_u).exp()
        weighted_h = ratio * mean_h
        change = weighted_h / tau
        change = log_u + self.rho - (change if self.pairs else change.mean(0, keepdim=True))
        self._keep(index, rows, log_u, change)
        losses = with_value(weighted_h.to(decoupled.dtype), (tau * ratio).to(decoupled) * decoupled)
        return self._reduced(losses.flatten())

    def _moved(self, log_g: Tensor, log_u: Tensor) -> Tensor:
        """The logarithm of u after this visit."""
        if self.gamma == 1:
            return log_g
        moved = torch.logaddexp(math.log(1 - self.gamma) + log_u, math.log(self.gamma) + log_g)
        return moved.where(log_u != -torch.inf, log_g)

    @torch.no_grad()
    def _keep(self, index: Tensor, rows: Tensor, log_u: Tensor, gradient: Tensor) -> None:
        """The samples' next state; ``rows`` are the numbers of all ranks' samples."""
        gradient = gradient.clamp(-self.clip, self.clip)
        momentum = (1 - self.beta) * self.momentum[:, index] + self.beta * gradient
        tau = (self.tau[:, index] - self.eta * momentum).clamp(self.low, self.high)
        found = torch.stack([log_u, tau, momentum]).float().movedim(2, 0)  # [N, 3, sides]
        found = all_rows(found) if self.gather_distributed else found
        known = found.isfinite().all(1).T  # NaN leaves no trace
        for state, new in zip((self.log_u, self.tau, self.momentum), found.unbind(1), strict=True):
            state[:, rows] = new.T.where(known, state[:, rows])
