"""Vectors with their names as a file: .npz, .npy or .csv, all of which ``taufree diagnose`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from taufree.util.files import atomic_write, write_text


def save_vectors(path: Path, names: Sequence[str], vectors: Tensor) -> None:
    """Write vectors [N, D], whole or not at all, in the format that the name of the file says."""
    values = vectors.numpy()
    if path.suffix == ".csv":
        table = pd.DataFrame(values, columns=[f"x{number}" for number in range(values.shape[1])])
        table.insert(0, "name", list(names))
        write_text(path, table.to_csv(index=False, lineterminator="\n"))
        return
    with atomic_write(path) as draft, draft.open("wb") as file:
        if path.suffix == ".npz":
            np.savez(file, vectors=values, names=np.array(names))
        else:
            np.save(file, values)
