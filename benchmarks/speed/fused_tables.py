"""The tables of docs/explanation/kernels.md, from the results of fused.py."""

from __future__ import annotations

from benchmarks.support.markdown import head, row
from taufree.bench.compare import table_row

STEPS = {
    "taufree, free": "taufree triton, free",
    "taufree, tau": "taufree triton, tau",
    "torch.compile, free": "torch.compile dense, free",
    "torch.compile, tau": "torch.compile dense, tau",
    "dense, free": "dense eager, free",
    "open_clip": "open_clip, tau",
    "cut-cross-entropy": "cut-cross-entropy x2, tau",
    "Liger": "Liger x2, tau",
    "Inf-CL": "Inf-CL x2, tau",
    "FlexAttention, free": "FlexAttention, free",
}
GRAPHS = ("taufree, free", "torch.compile, free", "torch.compile, tau", "dense, free")
PLAIN = GRAPHS[:3]


def tables(result: dict) -> None:
    """Markdown: relative errors, the symmetric step, the step in a CUDA graph; what of it was measured."""
    if "error" in result:
        errors(result["error"])
    if "steps" in result:
        steps([line for line in result["steps"] if line["loss"] == "symmetric"])
    if "graphs" in result:
        graphs(result["graphs"])
    if "links" in result:
        by_link(result["links"])
    if "contrasts" in result:
        called_and_replayed(result["contrasts"])
    if "tune" in result:
        shapes(result["tune"])


def errors(lines: list[dict]) -> None:
    names = [f"{what}_{how}" for how in ("loss", "gradient") for what in ("fused", "dense")]
    head("inputs", "rows", "loss, fused", "loss, dense", "gradient, fused", "gradient, dense")
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        for line in lines:
            if line["dtype"] == dtype and line["n"] == 4096:
                found = (line[name] for name in names)
                row(dtype, line["rows"], *("NaN" if x is None else f"{x:.1e}" for x in found))


def steps(lines: list[dict]) -> None:
    """Milliseconds, and in brackets MiB beyond the inputs."""
    print()
    head("N x D", "floor", *STEPS)
    for size, of in by_size(lines).items():
        cells = {name: table_row(line) for name, line in of.items()}
        shown = (cells.get(name) for name in STEPS.values())
        floor = next(line["floor_ms"] for line in of.values() if "floor_ms" in line)
        row(size, f"{floor:.2f}", *(f"{x['ms']} ({x['MiB']})" if x else "-" for x in shown))


def graphs(lines: list[dict]) -> None:
    """Milliseconds of the step replayed from a CUDA graph, then of the same step called plainly."""
    print()
    first, *others = PLAIN
    head("N x D", *GRAPHS, f"plainly: {first}", *others)
    for size, of in by_size(lines).items():
        replayed = (f"{of[STEPS[name]]['ms']:.3f}" for name in GRAPHS)
        row(size, *replayed, *(f"{of[STEPS[name]]['plain_ms']:.2f}" for name in PLAIN))


def by_link(lines: list[dict]) -> None:
    """Milliseconds called plainly, then replayed from a CUDA graph; columns are methods."""
    methods = list(dict.fromkeys(line["method"] for line in lines))
    found: dict[str, dict[str, dict]] = {}
    for line in lines:
        found.setdefault(f"{line['n']:,} x {line['d']}, {line['dtype']}", {})[line["method"]] = line
    for what in ("ms", "graph_ms"):
        print()
        head("called plainly" if what == "ms" else "replayed", *methods)
        for size, of in found.items():
            shown = (of[name].get(what) if name in of else None for name in methods)
            row(size, *("-" if x is None else f"{x:.2f}" if x >= 0.995 else f"{x:.3f}" for x in shown))


def called_and_replayed(lines: list[dict]) -> None:
    """Milliseconds of the step replayed from a CUDA graph and, in brackets, called plainly; then MiB."""
    print()
    head("N x D", "method", "replayed (called)", "MiB")
    for line in lines:
        size = " x ".join(f"{line[name]:,}" for name in ("n", "m", "d") if name in line)
        row(
            f"{size}, {line['dtype']}",
            line["method"],
            line.get("problem") or f"{line['graph_ms']:.3f} ({line['ms']:.2f})",
            f"{line['extra_mib']:.0f}" if "extra_mib" in line else "-",
        )


def shapes(lines: list[dict]) -> None:
    """Milliseconds by the tile's rows x columns, warps and stages."""
    print()
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        of = line["shape"]
        shape = f"{of['bm']} x {of['bn']}, {of['warps']}, {of['stages']}"
        name = f"{line['n']:,} x {line['d']}, {line['dtype']}: {line['loss']}"
        found.setdefault(name, {})[shape] = f"{line['ms']:.2f}" if "ms" in line else "-"
    columns = list(dict.fromkeys(shape for of in found.values() for shape in of))
    head("loss, link", *columns)
    for name, of in found.items():
        row(name, *(of.get(column, "-") for column in columns))


def by_size(lines: list[dict]) -> dict[str, dict[str, dict]]:
    """Size -> method -> line."""
    found: dict[str, dict[str, dict]] = {}
    for line in lines:
        found.setdefault(f"{line['n']:,} x {line['d']}", {})[line["method"]] = line
    return found
