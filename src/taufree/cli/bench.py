"""``taufree bench``: time the losses on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taufree.cli.messages import bar, imports, path, refusing, writable, writing


def bench(
    n: Annotated[
        str | None,
        typer.Option(help="Pairs in a batch, comma-separated.  [default: 4096,16384; 1024,4096 on a CPU]"),
    ] = None,
    d: Annotated[
        str | None, typer.Option(help="Columns, comma-separated.  [default: 512; 128 on a CPU]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16 or float32.  [default: bfloat16; float32 on a CPU]"),
    ] = None,
    loss: Annotated[str, typer.Option(help="symmetric (CLIP) or nt-xent (SimCLR).")] = "symmetric",
    links: Annotated[
        str,
        typer.Option(help="Links of taufree's losses: free, fitted, calibrated, learnable, temperatures."),
    ] = "free,0.07",
    out: Annotated[Path, typer.Option(parser=path, help="Where the JSON goes.")] = Path("bench.json"),
) -> None:
    """Time the losses here, beside dense code and libraries.

    A step is a forward and a backward. The floor is the time of the operations that no exact way can do
    without, at the rate of a large matrix product measured in the same run; "of floor" is the floor in %
    of the time, 100 % the fastest possible. Libraries that are installed are measured too, with a
    temperature; what fails or runs out of memory is a line that says so.

    \b
    Examples:
      taufree bench                                  a minute or two
      taufree bench --n 4096,65536 --d 128,512 --out mine.json
      taufree bench --loss nt-xent --dtype float32
      taufree bench --links free,fitted,0.07 --n 256,4096
    """
    with imports():
        import torch

        from taufree.bench.compare import DEFAULT_OPTIONS, check, links_of, numbers, remarks, table_row
        from taufree.bench.compare import bench as measure
        from taufree.bench.measure import save

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = [given or default for given, default in zip((n, d, dtype), DEFAULT_OPTIONS[device], strict=True)]
    with refusing():
        if out.is_dir():
            raise ValueError(f"--out must be a file, got the folder {out}.")
        ns, ds = numbers("n", given[0], 2), numbers("d", given[1])  # one pair has no negatives
        check(given[2], loss)
        chosen = links_of(links)
    writable(out, out.parent)
    with bar("measuring") as watch:
        result = measure(ns, ds, given[2], loss, device, watch, chosen)
    rows = [table_row(row) for row in result["rows"]]
    table = Table(title=f"{loss}, {given[2]}: a forward and a backward")
    for name in rows[0]:
        number = name in ("ms", "of floor", "MiB")
        table.add_column(name, justify="right" if number else "left", overflow="fold")  # nothing is cut off
    for row in rows:
        table.add_row(*map(Text, row.values()))
    show = Console(soft_wrap=True)
    show.print(table)
    for line in remarks(result):
        show.print(line, highlight=False, markup=False)
    with writing(out):
        save(result, out)
    show.print(f"Results: {out}", highlight=False, markup=False)
