"""The console entry, outside the package, whose import brings torch: Ctrl-C may fall into that second."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command ``taufree``; interrupted where nothing is known of what was done, say only that."""
    try:
        from taufree.cli import main as command

        command()
    except KeyboardInterrupt:
        print("taufree: interrupted.", file=sys.stderr)
        sys.exit(130)
