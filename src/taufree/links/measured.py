"""Links that measure their scale on the embeddings, and the one that measures their dimension."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from taufree.links import scalars
from taufree.links.base import Formula, Link, Measure, check_number
from taufree.links.log_odds import with_gain


class Measured(Link):
    """What such links share: each loss in training measures its batch first, and a buffer remembers it."""

    @property
    def measures(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def prepare(self, measure: Measure) -> Link:
        if self.measures:
            self._leave_inference()
            try:
                with torch.no_grad():
                    self._measure(measure)
            except RuntimeError as error:
                if not any(word in str(error) for word in ("captured Tensor", "functorch", "vmap")):
                    raise
                raise RuntimeError(
                    f"{type(self).__name__} cannot keep what it measures under torch.func; call eval() on "
                    "the link, which then stays as it is."
                ) from error
        # The backward must find the gain of its forward, and the buffer may change before that.
        if type(self).logit is Measured.logit:
            return self._current()
        snapshot = copy.copy(self)
        snapshot._buffers = {name: None if x is None else x.clone() for name, x in self._buffers.items()}
        return snapshot

    def _leave_inference(self) -> None:
        """What was made in inference mode cannot be changed outside of it."""
        if not torch.compiler.is_compiling():
            for name, x in self._buffers.items():
                if x is not None and x.is_inference():
                    self._buffers[name] = x.clone()

    def _measure(self, measure: Measure) -> None:
        raise NotImplementedError

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().logit(cosine, gap, rise)

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._current().slope(cosine, gap, rise)

    def _current(self) -> Link:
        """The link with the scale it has now."""
        raise NotImplementedError


class MeasuredLogOdds(Measured):
    """Those whose scale is a gain of the log-odds."""

    def __init__(self, resolution: float = 1e-4) -> None:
        super().__init__()
        self.resolution = check_number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)

    @property
    def gain(self) -> float:
        """The gain the link has now."""
        return float(self.formula_scale())

    def _current(self) -> Link:
        return with_gain(self.formula_scale(), self.resolution)

    @property
    def formula(self) -> Formula:
        return Formula("log-odds", self.resolution)

    def extra_repr(self) -> str:
        return f"gain={scalars.text(self.formula_scale())}, resolution={self.resolution}"


class CalibratedLogOdds(MeasuredLogOdds):
    """The log-odds link with a gain that is measured, not set.

        l(c) = g log((1 + c + delta) / (1 - c + delta))
        g = 2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)),  nu = 1 / mean(c^2)

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
        resolution: delta, see ``LogOdds``.

    Examples:
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
        super().__init__(resolution)
        self.register_buffer("moment", torch.ones(()))

    @property
    def dimension(self) -> float:
        """The effective dimension of the negatives, 1 / mean(c^2)."""
        return 1 / self.moment.item()

    def _measure(self, measure: Measure) -> None:
        found = measure.squared_cosine()
        if self.moment.device != found[0].device:
            self.moment = self.moment.to(found[0].device)
        mean, error, moment = scalars.numbers(*found, self.moment)
        low, high = mean - error, mean + error
        held = scalars.clamp(moment, low, high)
        scalars.keep(self.moment, scalars.where(high < math.inf, held, moment))  # unless the batch has NaN

    def formula_scale(self) -> float | Tensor:
        """2 Gamma(nu/2) / (sqrt(pi) Gamma((nu-1)/2)) with nu = 1/moment, and exactly 1 for nu <= 3."""
        nu = scalars.clamp(scalars.divide(1.0, scalars.number(self.moment)), 3.0, math.inf)
        gain = scalars.exp(scalars.lgamma(nu / 2) - scalars.lgamma((nu - 1) / 2)) * 2 / math.sqrt(math.pi)
        found: float | Tensor = scalars.where(nu > 3, gain, 1.0)
        return found

    def extra_repr(self) -> str:
        return f"dimension={scalars.text(1 / self.moment)}, {super().extra_repr()}"
