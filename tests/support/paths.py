"""Where things are: the repository, and the real data that some tests use when they are there."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TAUFREE_DATA", ROOT.parent / "shared" / "data"))


def needs_data(*names: str) -> pytest.MarkDecorator:
    """Skips a test where one of these files or folders of the real data is missing."""
    missing = [name for name in names if not (DATA / name).exists()]
    reason = f"{', '.join(missing)}: not in {DATA}, which TAUFREE_DATA can change"
    return pytest.mark.skipif(bool(missing), reason=reason)
