"""The Triton kernels, and the arithmetic they share."""
