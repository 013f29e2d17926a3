"""Links: how a cosine becomes a logit.

A loss here is link x contrast x reduction. The paper's link is :class:`LogOdds`; the temperatures
it replaces are links as well, so that a comparison changes this one object and nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn


class Link(nn.Module):
    """Base class of all links: write :meth:`logit` and every loss and backend can use it.

    The three arguments say the same thing three times, each without loss of digits:
    ``cosine`` = c, ``gap`` = 1 - c and ``rise`` = 1 + c. Near c = 1 use ``gap`` and near c = -1 use
    ``rise``: ``1 - cosine`` has no digits left there. The function must work elementwise and leave its
    arguments as they are, which the backward uses again. What is learned must be a parameter of the
    link, and nothing that the logit depends on may change between a forward and its backward.

    Example:
        >>> class Cubic(Link):
        ...     def logit(self, cosine, gap, rise):
        ...         return 5 * cosine**3
        >>> Cubic()(torch.tensor([-1.0, 0.0, 1.0])).tolist()
        [-5.0, 0.0, 5.0]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A logit written anew comes without the inherited slope, the derivative of another one."""
        super().__init_subclass__(**kwargs)
        logit, slope = (
            next(i for i, one in enumerate(cls.__mro__) if name in vars(one)) for name in ("logit", "slope")
        )
        if logit < slope:
            cls.slope = Link.slope  # type: ignore[method-assign]

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        """The logit of each pair, of the shape of ``cosine``."""
        raise NotImplementedError(f"{type(self).__name__} must define logit(cosine, gap, rise)")

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        """d logit / d cosine. The default differentiates :meth:`logit`; a closed form is faster."""
        with torch.enable_grad():
            step = torch.zeros_like(cosine, requires_grad=True)
            logit = self.logit(cosine + step, gap - step, rise + step)
            if not logit.requires_grad:  # a constant link
                return torch.zeros_like(cosine)
            (slope,) = torch.autograd.grad(logit.sum(), step, allow_unused=True)
        return torch.zeros_like(cosine) if slope is None else slope

    def project(self) -> None:
        """Bring learned parameters back into their range; called once before each loss."""

    def calibrate(self, measure: Callable[[], tuple[Tensor, Tensor]]) -> Link:
        """The link that one loss uses, forward and backward; called once before each loss.

        ``measure()`` gives two scalars on the embeddings' device: the mean squared cosine of the loss's
        negatives, all ranks' if they are gathered, and its standard error, infinite for a single anchor; NaN
        if there are no negatives. In one process ``measure.contrast`` has the embeddings, for links that
        measure something else.
        """
        return self

    def forward(self, cosine: Tensor) -> Tensor:
        """The logits of plain cosines, for plots and tests; the losses call :meth:`logit`."""
        return self.logit(cosine, 1 - cosine, 1 + cosine)


class LogOdds(Link):
    r"""The temperature-free link: the log-odds of the cosine.

    .. math:: \ell(c) = g \log\frac{1+c+\delta}{1-c+\delta} = 2 g \operatorname{atanh}\frac{c}{1+\delta}

    Args:
        gain: g; 1 is the paper's link, and the only one that needs no exponential and no maximum.
        resolution: delta >= 0, the distance below which two vectors count as the same. It makes the
            link finite and differentiable at c = 1; it is not a temperature (docs/explanation/numerics.md).

    Example:
        >>> LogOdds(resolution=0.0)(torch.tensor([0.0, 0.5])).tolist()
        [0.0, 1.09861...]
        >>> LogOdds()
        LogOdds(gain=1.0, resolution=0.0001)
    """

    gain: float | Tensor

    def __init__(self, gain: float = 1.0, resolution: float = 1e-4) -> None:
        super().__init__()
        self.gain = _number("gain", gain, "a positive number", lambda x: x > 0)
        self.resolution = _number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self.gain * ((rise + self.resolution).log() - (gap + self.resolution).log())

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self.gain * ((rise + self.resolution).reciprocal() + (gap + self.resolution).reciprocal())

    def extra_repr(self) -> str:
        return f"gain={self.gain}, resolution={self.resolution}"


class TensorGain(LogOdds):
    """LogOdds with its gain in a scalar on the embeddings' device, for which no host has to wait."""

    def __init__(self, gain: Tensor, resolution: float) -> None:
        super().__init__()
        self.gain, self.resolution = gain, resolution


class CalibratedLogOdds(Link):
    r"""The log-odds link with a gain that is measured, not set.

    .. math:: \ell(c) = g \log\frac{1+c+\delta}{1-c+\delta}, \qquad
        g = \frac{2\,\Gamma(\nu/2)}{\sqrt\pi\,\Gamma((\nu-1)/2)}, \qquad \nu = 1 / \overline{c^2}

    The cosines of random directions in nu dimensions have a mean square of 1/nu. Taking the negatives for
    such, nu is their effective dimension, and g gives the link at c = 0 the slope of the log-odds that a
    random pair is less similar than this one. On the ordinary sphere, nu = 3, g is 1, the paper's link; fewer
    dimensions leave it at 1. See docs/studies/calibration.md.

    While training, each loss first measures the mean of c^2 over its own negatives, without gradient.
    ``moment`` remembers it from loss to loss: it stays where it is as long as that is within the batch's own
    standard error of the batch's mean, and else moves just so far. There is no rate to choose: a large batch
    is followed at once, a small one is smoothed as much as it is noisy. So a loss is a function of its batch
    and of ``moment`` before it, which is in the ``state_dict``. In evaluation mode, by ``eval()`` of the link
    or of the loss, and under ``torch.no_grad()``, nothing is measured and ``moment`` stays. It begins at 1:
    all alike, gain 1.

    Args:
        resolution: delta, see :class:`LogOdds`.

    Example:
        >>> from taufree import nt_xent
        >>> link = CalibratedLogOdds()
        >>> link.gain
        1.0
        >>> view = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
        >>> loss = nt_xent(view, view, link=link)
        >>> round(link.dimension), round(link.gain, 1)
        (64, 6.3)
    """

    moment: Tensor

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__()
        self.resolution = _number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)
        self.register_buffer("moment", torch.ones(()))

    @property
    def dimension(self) -> float:
        """The effective dimension of the negatives, 1 / mean(c^2)."""
        return 1 / self.moment.item()

    @property
    def gain(self) -> float:
        """The gain the link has now."""
        return _calibrated_gain(self.moment).item()

    def calibrate(self, measure: Callable[[], tuple[Tensor, Tensor]]) -> Link:
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                mean, error = measure()
                if self.moment.device != mean.device:
                    self.moment = self.moment.to(mean.device)
                low, high = mean - error, mean + error
                held = self.moment.clamp(low, high)
                self.moment.copy_(held.where(high < torch.inf, self.moment))  # not where it is NaN
        # What is returned stays as it is when ``moment`` moves on, which may be before the backward.
        if type(self).logit is CalibratedLogOdds.logit:
            return self._now()
        still = copy.copy(self)
        still._buffers = {**self._buffers, "moment": self.moment.clone()}
        return still

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._now().logit(cosine, gap, rise)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._now().slope(cosine, gap, rise)

    def _now(self) -> LogOdds:
        return TensorGain(_calibrated_gain(self.moment), self.resolution)

    def extra_repr(self) -> str:
        return f"resolution={self.resolution}"


class Temperature(Link):
    r"""The classical link with a fixed temperature, :math:`\ell(c) = c / \tau`.

    Example:
        >>> Temperature(0.5)(torch.tensor([1.0])).item()
        2.0
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.tau = _number("tau", tau, "a positive number", lambda x: x > 0)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine / self.tau

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine.new_ones(()).div_(self.tau).expand_as(cosine)

    def extra_repr(self) -> str:
        return f"tau={self.tau}"


class LearnableTemperature(Link):
    r"""CLIP's link, :math:`\ell(c) = e^t c` with a learned :math:`t`.

    Give the link's parameters to the optimizer, as those of any module. Before each loss the
    parameter is brought back to at most ``log(max_scale)``, as CLIP does after each step: unlike a
    cap inside the formula this leaves a gradient that can lower the scale again.

    Args:
        init: the temperature to start from; ``log_scale`` starts at ``log(1 / init)``.
        max_scale: the largest ``exp(log_scale)``.

    Example:
        >>> link = LearnableTemperature()
        >>> round(link.tau, 4), link.log_scale.requires_grad
        (0.07, True)
    """

    def __init__(self, init: float = 0.07, max_scale: float = 100.0) -> None:
        super().__init__()
        init = _number("init", init, "a positive number", lambda x: x > 0)
        self.max_scale = _number(
            "max_scale",
            max_scale,
            f"a number of at least 1/init = {1 / init:g}",
            lambda x: x * init >= 1 - 1e-9,
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / init)))

    @property
    def tau(self) -> float:
        """The temperature the link has now."""
        return 1 / min(math.exp(self.log_scale.item()), self.max_scale)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine * self._scale(cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._scale(cosine).expand_as(cosine)

    def project(self) -> None:
        try:
            with torch.no_grad():
                self.log_scale.clamp_(max=math.log(self.max_scale))
        except RuntimeError as error:
            # torch.func lets nothing change that it was not given; the formula caps the scale as well
            if "captured Tensor" not in str(error):
                raise

    def _scale(self, like: Tensor) -> Tensor:
        t = self.log_scale.to(like, copy=True)  # a copy, for project() may change it before backward
        return (t - (t - math.log(self.max_scale)).clamp(min=0).detach()).exp()

    def extra_repr(self) -> str:
        return f"max_scale={self.max_scale}"


@torch.no_grad()
def _calibrated_gain(moment: Tensor) -> Tensor:
    """2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)) with nu = 1/moment, and exactly 1 for nu <= 3."""
    wide = torch.float32 if moment.device.type == "mps" else torch.float64
    nu = moment.to(wide).reciprocal().clamp(min=3)
    gain = 2 / math.sqrt(math.pi) * (torch.lgamma(nu / 2) - torch.lgamma((nu - 1) / 2)).exp()
    return torch.where(nu > 3, gain, 1.0)


def _number(name: str, value: object, need: str, good: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {need}, got {type(value).__name__}.")
    number = float(value)
    if not math.isfinite(number) or not good(number):
        raise ValueError(f"{name} must be {need}, got {value}.")
    return number
