"""A page as a real browser sees it: headless Chromium, without a network."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def rendered(path: Path, *, dark: bool = False) -> tuple[str, list[str]]:
    """The page's DOM after its scripts have run, and the lines they left on the console, errors first of all.

    As a system in dark mode shows it, if asked for.
    Skips the test where there is no Chromium.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("pages are checked with chromium, which is not on the PATH")
    with tempfile.TemporaryDirectory() as profile:
        run = subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--virtual-time-budget=5000",
                "--enable-logging=stderr",
                "--v=0",
                "--window-size=1280,900",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--user-data-dir={profile}",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--dump-dom",
                path.resolve().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    return run.stdout, [line for line in run.stderr.splitlines() if re.search(r"\bCONSOLE\b", line)]


def drawn(dom: str, id: str) -> bool:
    """Whether the element `id` of a rendered page holds a figure that Plotly has drawn."""
    return re.search(rf'<div[^>]*id="{id}"[^>]*class="[^"]*js-plotly-plot', dom) is not None


def overflow(path: Path, width: int = 375) -> int:
    """By how many pixels the page, or a box of it that scrolls sideways, is wider than a screen of `width`.

    Headless windows are at least 500 pixels wide, so the page is shown in a frame.
    """
    framed = path.with_name(f"framed-{path.name}")
    page = html.escape(path.read_text("utf-8"))
    framed.write_text(
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><script>'
        "const inside = () => document.querySelector('iframe').contentDocument;"
        "const scrolls = (box) => ['auto', 'scroll'].includes(getComputedStyle(box).overflowX);"
        "const scrolling = () => [...inside().querySelectorAll('*')].filter(scrolls);"
        "const boxes = () => [inside().documentElement, ...scrolling()];"
        "const hidden = () => Math.max(...boxes().map((box) => box.scrollWidth - box.clientWidth));"
        "setTimeout(() => document.body.dataset.hidden = hidden(), 3000)</script>",
        encoding="utf-8",
    )
    dom, _ = rendered(framed)
    found = re.search(r'data-hidden="(\d+)"', dom)
    assert found, "the frame did not report its width"
    return int(found.group(1))
