"""README and docs: links lead somewhere, and the code in them runs."""

import re

import pytest

from tests.support import gcl  # noqa: F401  the page on PyGCL imports it
from tests.support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(page):
    """What GitHub calls the headings of a page: lower case, punctuation gone, a hyphen for each space."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


# report.md reads files of the reader's; its calls are tested in tests/diagnostics.
SNIPPETS = [
    (page.name, code)
    for page in PAGES
    if page.name != "report.md"
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if code.startswith(("import", "from"))
]


@pytest.mark.parametrize(
    ("page", "code"), SNIPPETS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SNIPPETS)]
)
def test_code_runs(page, code):
    exec(compile(code, page, "exec"), {})


def test_there_is_code_to_run():
    assert {page for page, _ in SNIPPETS} >= {"README.md", "CONTRIBUTING.md", "theory.md", "lightly.md"}
