"""What track=True costs on the CPU: forward and backward of the blockwise backend with and without it.

    python -m benchmarks.speed.stats                # 4,096 rows x 128 columns, one thread; half a minute

Steps with and without take turns, and the fastest of each counts, in the thread's own time. Writes
benchmarks/results/stats.json.
"""

from __future__ import annotations

import datetime
import json
import time

import torch

import taufree
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS

LOSSES = {
    "info_nce": taufree.InfoNCE,
    "info_nce, symmetric": lambda **options: taufree.InfoNCE(symmetric=True, **options),
    "nt_xent": taufree.NTXent,
    "sup_con": taufree.SupCon,
}
LINKS = {"free": None, "tau 0.1": 0.1}


def seconds(loss: torch.nn.Module, *inputs: torch.Tensor) -> float:
    start = time.thread_time()
    loss(*inputs).backward()
    return time.thread_time() - start


def measure(name: str, link: str, rows: int, columns: int, steps: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, columns, generator=generator)
    b = (a + torch.randn(rows, columns, generator=generator)).requires_grad_()
    a.requires_grad_()
    inputs = {"nt_xent": (a[: rows // 2], b[: rows // 2]), "sup_con": (a, torch.arange(rows) % 100)}
    given = inputs.get(name, (a, b))
    losses = [LOSSES[name](link=LINKS[link], backend="blockwise", track=track) for track in (False, True)]
    times = [[seconds(loss, *given) for loss in losses] for _ in range(steps)]
    plain, tracked = (min(column) for column in zip(*times, strict=True))
    return {"loss": name, "link": link, "seconds": plain, "tracked": tracked, "share": tracked / plain}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (options.rows, options.columns, options.steps)
    found = [measure(name, link, *size) for name in LOSSES for link in LINKS]
    head("loss", "link", "ms", "ms with track=True", "share")
    for one in found:
        times = (f"{1e3 * one[key]:.0f}" for key in ("seconds", "tracked"))
        row(one["loss"], one["link"], *times, f"{one['share']:.2f}")
    kept = {"command": "python -m benchmarks.speed.stats", "date": datetime.date.today().isoformat()}
    kept |= {"rows": options.rows, "columns": options.columns, "torch": torch.__version__, "found": found}
    (RESULTS / "stats.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
