"""README and docs: links lead somewhere, and the code in them runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


# reading-the-report.md reads files of the reader's; its calls are tested in tests/diagnostics.
SNIPPETS = [
    (page.name, code)
    for page in PAGES
    if page.name != "reading-the-report.md"
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if code.startswith(("import", "from"))
]


@pytest.mark.parametrize(
    ("page", "code"), SNIPPETS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SNIPPETS)]
)
def test_code_runs(page, code):
    exec(compile(code, page, "exec"), {})


def test_there_is_code_to_run():
    assert {page for page, _ in SNIPPETS} >= {"README.md", "CONTRIBUTING.md", "theory.md"}
