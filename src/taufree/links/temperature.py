"""The classical links: a temperature that is given, and one that is learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from taufree.dtypes import wide_dtype
from taufree.links.base import Formula, Link, Measure, by_row, check_number
from taufree.links.scalars import known, text

LINEAR = Formula("linear")


class Temperature(Link):
    """The classical link with a fixed temperature, l(c) = c / tau.

    Args:
        tau: a positive number. A tensor is used as it is and gets its gradient if it requires one: a
            parameter is learned, and is one of the link's own. A tensor [A] has a temperature for each
            anchor: 2N for ``nt_xent`` and a symmetric ``info_nce``, else N.

    Examples:
        >>> Temperature(0.5)(torch.tensor([1.0])).item()
        2.0
    """

    tau: float | Tensor

    def __init__(self, tau: float | Tensor) -> None:
        super().__init__()
        if isinstance(tau, Tensor):
            if (tau.numel() != 1 and tau.dim() != 1) or not tau.numel() or not tau.is_floating_point():
                raise ValueError(
                    "tau must be a positive number, or a floating-point tensor of one or of one for each "
                    f"anchor, got a tensor of shape {list(tau.shape)} and dtype {tau.dtype}."
                )
            if known(tau) and not (tau > 0).all():
                raise ValueError(f"tau must be a positive number, got a tensor of {tau.min().item()}.")
            self.tau = tau
        else:
            self.tau = check_number("tau", tau, "a positive number", lambda x: x > 0)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine * by_row(self.formula_scale(), cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return by_row(self.formula_scale(), cosine).expand_as(cosine)

    @property
    def formula(self) -> Formula:
        return LINEAR

    def formula_scale(self) -> float | Tensor:
        if not isinstance(self.tau, Tensor):
            return 1 / self.tau
        tau = self.tau if self.per_anchor else self.tau.reshape(())
        return tau.to(wide_dtype(tau.device)).reciprocal()

    @property
    def per_anchor(self) -> bool:
        return isinstance(self.tau, Tensor) and self.tau.numel() > 1

    def extra_repr(self) -> str:
        if isinstance(self.tau, Tensor):
            return "tau per anchor" if self.per_anchor else f"tau={text(self.tau)}"
        return f"tau={self.tau}"


class Scaled(Link):
    """l(c) = scale c, for backends that differentiate a formula with respect to its scale."""

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        self.scale = scale

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return cosine * by_row(self.scale, cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        scale = self.scale.detach() if isinstance(self.scale, Tensor) else self.scale
        return by_row(scale, cosine).expand_as(cosine)

    @property
    def formula(self) -> Formula:
        return LINEAR

    def formula_scale(self) -> float | Tensor:
        return self.scale

    @property
    def per_anchor(self) -> bool:
        return isinstance(self.scale, Tensor) and self.scale.numel() > 1


class LearnableTemperature(Link):
    """CLIP's link, l(c) = exp(t) c with a learned t.

    Give the link's parameters to the optimizer, as those of any module. Before each loss the
    parameter is brought back to at most ``log(max_scale)``, as CLIP does after each step: unlike a
    cap inside the formula this leaves a gradient that can lower the scale again.

    Args:
        init: the temperature to start from; ``log_scale`` starts at ``log(1 / init)``.
        max_scale: the largest ``exp(log_scale)``.

    Examples:
        >>> link = LearnableTemperature()
        >>> round(link.tau, 4), link.log_scale.requires_grad
        (0.07, True)
    """

    def __init__(self, init: float = 0.07, max_scale: float = 100.0) -> None:
        super().__init__()
        init = check_number("init", init, "a positive number", lambda x: x > 0)
        self.max_scale = check_number(
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
        return cosine * self.formula_scale().to(cosine)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self.formula_scale().to(cosine).expand_as(cosine)

    @property
    def formula(self) -> Formula:
        return LINEAR

    def formula_scale(self) -> Tensor:
        # A copy, since the next prepare() may clamp the parameter before the backward of this loss.
        t = self.log_scale.to(wide_dtype(self.log_scale.device), copy=True)
        return (t - (t - math.log(self.max_scale)).clamp(min=0).detach()).exp()

    def prepare(self, measure: Measure) -> Link:
        try:
            with torch.no_grad():
                self.log_scale.clamp_(max=math.log(self.max_scale))
        except RuntimeError as error:
            # torch.func forbids changing a tensor that it was not given; formula_scale() caps it anyway.
            if "captured Tensor" not in str(error):
                raise
        return self

    def extra_repr(self) -> str:
        return f"tau={text(1 / self.formula_scale())}, max_scale={self.max_scale}"
