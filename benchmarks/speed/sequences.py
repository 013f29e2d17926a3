"""How long ``taufree sequences`` takes for 20 million invented ratings, as many as MovieLens-20M has.

python -m benchmarks.speed.sequences [--rows 20000000]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from taufree.experiments.recommendation.sequences import build_sequences

USERS, ITEMS = 138_493, 26_744


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    rows = parser.parse_args().rows
    draw = np.random.default_rng(0)
    columns = {
        "userId": draw.integers(1, USERS + 1, rows),
        "movieId": (ITEMS * draw.random(rows) ** 2.5).astype(int) + 1,
        "rating": draw.integers(1, 11, rows) / 2,
        "timestamp": draw.integers(8e8, 1.4e9, rows),
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ratings.csv"
        pl.DataFrame(columns).write_csv(log)
        del columns
        start = time.perf_counter()
        made = build_sequences(log, Path(folder) / "made")
        seconds = time.perf_counter() - start
        print(f"{log.stat().st_size / 1e6:.0f} MB, {made.rows:,} rows, {made.users:,} users: {seconds:.1f} s")
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB in memory")


if __name__ == "__main__":
    main()
