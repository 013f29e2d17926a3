"""Where things are: the repository, and the real data that some tests use when they are there."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TAUFREE_DATA", ROOT.parent / "shared" / "data"))
