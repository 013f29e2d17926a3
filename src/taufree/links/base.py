"""What a link is: the base class, and the formula by which a backend may compute one by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Likelihood(NamedTuple):
    """How the mean loss changes with the logarithm of the factor by which all logits are multiplied; scalars.

    Attributes:
        gradient: the first derivative, mean over anchors of E[l] - target, with l an anchor's logits, E the
            expectation under their softmax, and the target the positive's logit (see ``Measure``).
        variance: mean over anchors of the variance of l under their softmax. The second derivative is
            ``variance + gradient``.
    """

    gradient: Tensor
    variance: Tensor


class Gain(NamedTuple):
    """What a step of a fitted link changes, in place: see ``links.fitted.Fitted``.

    Attributes:
        largest: the logit of c = 1 at scale 1.
        most: the largest log_gain.
    """

    log_gain: Tensor
    curvature: Tensor
    far_in_a_row: Tensor
    largest: float
    most: float = math.inf


class Cosines(NamedTuple):
    """Mean cosines of a batch; scalars.

    Attributes:
        positive: the mean over the anchors of the cosine of their positives.
        candidate: the mean over the anchors of the cosine of all their candidates, positives included.
        candidates: how many candidates an anchor has, in the mean.
        dimensions: of the embeddings.
    """

    positive: Tensor
    candidate: Tensor
    candidates: Tensor
    dimensions: int


class Measure(Protocol):
    """What a link can learn of the batch before its loss is computed, over all ranks if they are gathered.

    Nothing of it has a gradient. All ranks must ask together.
    """

    def squared_cosine(self) -> tuple[Tensor, Tensor]:
        """The mean squared cosine of the negatives, and its standard error.

        NaN if there are no negatives; the error of a single anchor is infinite.
        """

    def cosines(self) -> Cosines:
        """See ``Cosines``; NaN if no anchor has a positive. Exact, in O(N D) but for ids and labels."""

    def likelihood(self, link: Link) -> Likelihood:
        """See ``Likelihood``; of up to 128 anchors with all their candidates, NaN if there are no negatives.

        The targets are smoothed by Laplace's rule: of n anchors' positives each has probability
        (n + 1)/(n + 2), and the rest is spread over its negatives. So the best factor is finite even where
        every positive is ahead of all negatives.
        """

    def fit_gain(self, link: Link, gain: Gain) -> bool:
        """Take a fitted link's step from the likelihood of ``link``, where kernels do all of it; where none
        do, nothing happens.

        Returns:
            Whether kernels did.
        """


class Formula(NamedTuple):
    """A link in closed form, for backends that compute it in their own arithmetic.

    - "log-odds": logit = scale * log((1 + c + resolution) / (1 - c + resolution))
    - "linear": logit = scale * c

    The scale is what ``Link.formula_scale`` gives.
    """

    kind: Literal["log-odds", "linear"]
    resolution: float = 0.0


class Link(nn.Module):
    """Base class of all links: write ``logit`` and every loss and backend can use it.

    The three arguments are the same number in three forms, each without loss of digits:
    ``cosine`` = c, ``gap`` = 1 - c and ``rise`` = 1 + c. Near c = 1 use ``gap`` and near c = -1 use
    ``rise``: ``1 - cosine`` has no digits left there. The function must work elementwise and leave its
    arguments as they are, which the backward uses again. What is learned must be a parameter of the
    link, and nothing that the logit depends on may change between a forward and its backward.

    Examples:
        >>> class Cubic(Link):
        ...     def logit(self, cosine, gap, rise):
        ...         return 5 * cosine**3
        >>> Cubic()(torch.tensor([-1.0, 0.0, 1.0])).tolist()
        [-5.0, 0.0, 5.0]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A class with its own logit does not inherit slope and formula, which are those of another one."""
        super().__init_subclass__(**kwargs)
        defined_at = {
            name: next(i for i, one in enumerate(cls.__mro__) if name in vars(one))
            for name in ("logit", "slope", "formula")
        }
        for name in ("slope", "formula"):
            if defined_at["logit"] < defined_at[name]:
                setattr(cls, name, vars(Link)[name])

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        """The logit of each pair, of the shape of ``cosine``."""
        raise NotImplementedError(f"{type(self).__name__} must define logit(cosine, gap, rise)")

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        """d logit / d cosine. The default differentiates ``logit``; a closed form is faster."""
        with torch.enable_grad():
            step = torch.zeros_like(cosine, requires_grad=True)
            logit = self.logit(cosine + step, gap - step, rise + step)
            if not logit.requires_grad:  # a constant link
                return torch.zeros_like(cosine)
            (slope,) = torch.autograd.grad(logit.sum(), step, allow_unused=True)
        return torch.zeros_like(cosine) if slope is None else slope

    @property
    def formula(self) -> Formula | None:
        """The link in closed form, if it is one of those of ``Formula``, else None.

        The blockwise backend is faster with it, and the fused kernels need it.
        """
        return None

    def formula_scale(self) -> float | Tensor:
        """The scale in ``formula``: a number, or a scalar tensor if it is measured or learned, or a tensor
        with one for each anchor, see ``per_anchor``.

        A gradient reaches what is learned through that tensor.
        """
        raise NotImplementedError(f"{type(self).__name__} has no formula, and so no scale")

    @property
    def per_anchor(self) -> bool:
        """Whether ``formula_scale`` is [A], with a scale for each of a loss's A anchors.

        ``nt_xent`` has 2N anchors, view_a's first, and a symmetric ``info_nce`` 2N, the queries first; other
        losses have N. Outside of a loss the rows of ``cosine`` are the anchors.
        """
        return False

    def step(self, progress: float) -> None:
        """Hear how much of the training is done, from 0 to 1; called before each epoch or each step.

        Links with a schedule override it, all others stay as they are.
        """
        return

    def prepare(self, measure: Measure) -> Link:
        """The link that one loss uses, forward and backward; called once before each loss.

        Here a link brings what it learns back into its range, and asks ``measure`` what it needs to know of
        the batch. A link that does overrides ``measures``, by which ranks that would differ are found.
        In one process ``measure.contrast`` has the embeddings, for links that measure something else; only
        the losses by masks, of some drop-ins, have none.
        """
        return self

    @property
    def measures(self) -> bool:
        """Whether ``prepare`` may use ``measure`` now, which ranks must do together."""
        return False

    def forward(self, cosine: Tensor) -> Tensor:
        """The logits of plain cosines, for plots and tests; the losses call ``logit``."""
        return self.logit(cosine, 1 - cosine, 1 + cosine)


def by_row(scale: float | Tensor, cosine: Tensor) -> Tensor:
    """``scale`` in the dtype of ``cosine``; one for each row of it, if there are several."""
    if not isinstance(scale, Tensor):
        return cosine.new_ones(()).mul_(scale)  # or inf
    return scale.to(cosine).reshape(scale.shape + (1,) * (cosine.dim() - 1) if scale.dim() else ())


def check_number(name: str, value: object, need: str, good: Callable[[float], bool]) -> float:
    """``value`` as a float; raises, naming the argument, unless it is a finite number and ``good``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {need}, got {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:  # Python may not even print such an integer
        number, value = math.inf, "one that float64 cannot hold"
    if not -math.inf < number < math.inf or not good(number):  # torch.compile has no math.isfinite of inputs
        raise ValueError(f"{name} must be {need}, got {value}.")
    return number
