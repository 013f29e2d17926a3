"""Linear memory on any device: the loss and its gradient, tile by tile."""

from taufree.backends.blockwise.engine import loss

__all__ = ["loss"]
