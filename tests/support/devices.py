"""What only a GPU can run."""

import pytest
import torch


def require_gpu() -> pytest.MarkDecorator:
    """The mark of all tests of a file, ``pytestmark = require_gpu()``; without a GPU, skips the file."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, which PyTorch does not find", allow_module_level=True)
    return pytest.mark.gpu
