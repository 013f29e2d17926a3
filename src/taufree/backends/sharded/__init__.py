"""The losses over the batches of all ranks, for every backend."""
