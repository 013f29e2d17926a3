"""Options that benchmarks share."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.support.paths import RESULTS, ROOT


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the module's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_training_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options that all benchmarks which train have; ``name`` is that of their folder of runs."""
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long; 0 is never")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / name, help="folder of the runs' checkpoints"
    )


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    """The option of benchmarks whose recipe has mixed precision on a GPU."""
    parser.add_argument("--precision", help="bf16-mixed on CUDA and 32-true elsewhere if not given")


def add_result_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of all benchmarks that print tables of their results."""
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.jsonl")
    parser.add_argument("--table", action="store_true", help="only print the tables")
