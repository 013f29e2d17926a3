"""The temperature-free link of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.links.base import Formula, Link, by_row, check_number


class LogOdds(Link):
    """The temperature-free link: the log-odds of the cosine.

        l(c) = g log((1 + c + delta) / (1 - c + delta)) = 2 g atanh(c / (1 + delta))

    Args:
        gain: g; 1 is the paper's link, and the only one that needs no exponential and no maximum.
        resolution: delta >= 0, the 1 - c below which two vectors count as nearly the same. It makes the
            link finite and differentiable at c = 1; it is not a temperature (docs/explanation/numerics.md).
            0 is the paper's formula itself, to compare with: infinite for identical and opposite vectors,
            whose loss may be NaN.

    Examples:
        >>> import torch
        >>> LogOdds(resolution=0.0)(torch.tensor([0.0, 0.5])).tolist()
        [0.0, 1.09861...]
        >>> LogOdds()
        LogOdds(gain=1.0, resolution=0.0001)
    """

    gain: float | Tensor

    def __init__(self, gain: float = 1.0, resolution: float = 1e-4) -> None:
        super().__init__()
        self.gain = check_number("gain", gain, "a positive number", lambda x: x > 0)
        self.resolution = check_number("resolution", resolution, "a number of at least 0", lambda x: x >= 0)

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return self._gain_like(cosine) * ((rise + self.resolution).log() - (gap + self.resolution).log())

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        steepness = (rise + self.resolution).reciprocal() + (gap + self.resolution).reciprocal()
        return self._gain_like(cosine) * steepness

    def _gain_like(self, cosine: Tensor) -> float | Tensor:
        return by_row(self.gain, cosine) if isinstance(self.gain, Tensor) and self.per_anchor else self.gain

    @property
    def formula(self) -> Formula | None:
        learned = isinstance(self.resolution, Tensor)  # a parameter in its place, which no formula has
        return None if learned else Formula("log-odds", self.resolution)

    def formula_scale(self) -> float | Tensor:
        return self.gain

    @property
    def per_anchor(self) -> bool:
        return isinstance(self.gain, Tensor) and self.gain.numel() > 1

    def extra_repr(self) -> str:
        return f"gain={self.gain}, resolution={self.resolution}"


def with_gain(gain: float | Tensor, resolution: float) -> LogOdds:
    """LogOdds with a gain that may be a tensor on the embeddings' device, so that nothing waits for it."""
    if torch.compiler.is_compiling():  # which cannot follow what is below before PyTorch 2.12
        link = LogOdds()
        link.gain, link.resolution = gain, resolution
        return link
    link = LogOdds.__new__(LogOdds)
    # Without nn.Module's initialisation, which takes longer than the logits of a small batch.
    vars(link).update(vars(_PLAIN), gain=gain, resolution=resolution)
    return link


_PLAIN = LogOdds()
