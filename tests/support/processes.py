"""Waiting for what a process does."""

import subprocess
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str], limit: float = 600) -> None:
    """Until a condition holds; fails if the process ends first, or hangs: ``limit`` seconds say no more."""
    deadline = time.monotonic() + limit
    while not condition():
        assert process.poll() is None, "the process ended before it could be interrupted"
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.005)
