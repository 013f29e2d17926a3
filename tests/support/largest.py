"""How large the tensors get that a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor made has, and how many bytes."""

    def __init__(self):
        super().__init__()
        self.numel = self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor):
                self.numel, self.nbytes = max(self.numel, x.numel()), max(self.nbytes, x.nbytes)
        return result
