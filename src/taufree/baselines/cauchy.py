"""t-SimCNE's Cauchy kernel as a link."""

from __future__ import annotations

from torch import Tensor

from taufree.links import Link


class Cauchy(Link):
    """The logarithm of a Cauchy kernel of the Euclidean distance d of unit vectors.

        l(c) = -log(1 + d^2) = -log(1 + 2 (1 - c))

    Böhm et al., ICLR 2023 (t-SimCNE), have no temperature either, since their vectors are not normalised:
    their lengths are learned. On the sphere, where all losses here are, the kernel is between 1/5 and 1.

    Examples:
        >>> import torch
        >>> Cauchy()(torch.tensor([-1.0, 0.0])).tolist()
        [-1.60943..., -1.09861...]
    """

    def logit(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return -(2 * gap).log1p()

    def slope(self, cosine: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return 2 / (1 + 2 * gap)
