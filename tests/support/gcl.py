"""The real PyGCL, on a machine without the compiled packages that it imports.

Its losses and contrast models use only torch_scatter's ``scatter``, which PyTorch Geometric has as well;
dgl and torch_sparse serve its augmentations. Stand-ins are there during the import alone, since PyTorch
Geometric looks for the real ones.
"""

import importlib.util
import sys
from types import ModuleType

import torch_geometric.utils

STAND_INS = {
    "dgl": {"DGLGraph": None},
    "torch_scatter": {"scatter": torch_geometric.utils.scatter},
    "torch_sparse": {"SparseTensor": None, "coalesce": None},
}


def _import():
    missing = [name for name in STAND_INS if importlib.util.find_spec(name) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(STAND_INS[name])
    try:
        import GCL
    finally:
        for name in missing:
            del sys.modules[name]
    return GCL


GCL = _import()
