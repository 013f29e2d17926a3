"""Linear memory on any device: the loss and its gradient, tile by tile."""
