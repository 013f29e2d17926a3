"""Linear memory on any device, tile by tile; start with ``engine``."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends.blockwise import function
from taufree.contrast import Contrast
from taufree.links import Link


def loss(contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None."""
    if contrast.bias is not None:
        from taufree.backends.blockwise import sigmoid  # only here: with its operator

        return sigmoid.loss(contrast, link, weights)
    if torch.compiler.is_compiling() and link.formula is not None:
        from taufree.backends.blockwise import op  # only here: its operators are not needed otherwise

        return op.loss(contrast, link, weights)
    return function.loss(contrast, link, weights)
