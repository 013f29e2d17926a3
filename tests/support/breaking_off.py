"""A training that is broken off and goes on from its checkpoint, as every recipe's must."""

from taufree.experiments.training.checkpoint import Checkpoint


def assert_goes_on(begin, folder, epochs=3, broken_after=2):
    """Curves and metrics are those of a training that was never broken off, bit for bit.

    Args:
        begin: makes a training; called three times.
    """
    whole, broken, resumed = (begin() for _ in range(3))
    for _ in range(epochs):
        whole.train_epoch()
    for _ in range(broken_after):
        broken.train_epoch()
    broken.save(Checkpoint(folder / "checkpoint"))
    assert resumed.restore(Checkpoint(folder / "checkpoint")) == ""
    for _ in range(epochs - broken_after):
        resumed.train_epoch()
    assert resumed.curves == whole.curves
    assert resumed.evaluate() == whole.evaluate()
