"""Markdown tables, printed."""

from __future__ import annotations


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def head(*cells: str) -> None:
    row(*cells)
    print("|---" * len(cells) + "|")
