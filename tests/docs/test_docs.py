"""README and docs: links lead somewhere, and the code in them runs."""

import pydoc
import re

import pytest

import taufree
from tests.support import gcl  # noqa: F401  the page on PyGCL imports it
from tests.support.paths import ROOT

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS])


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


# A block that needs files of the reader's begins with a comment that names them, and is not run.
SNIPPETS = [
    (page.name, code)
    for page in PAGES
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if code.startswith(("import", "from"))
]


@pytest.mark.parametrize(
    ("page", "code"), SNIPPETS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SNIPPETS)]
)
def test_code_runs(page, code):
    exec(compile(code, page, "exec"), {})


def test_there_is_code_to_run():
    assert {page for page, _ in SNIPPETS} >= {"README.md", "choosing-a-link.md", "theory.md", "lightly.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_files_that_a_page_names_are_there(page):
    text = " ".join(page.read_text().split())  # a command may go on in the next line
    for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    rooms = [ROOT, *(ROOT / name for name in ("src/taufree", "benchmarks", "examples"))]
    for file in re.findall(r"`([\w/-]+\.py|(?:benchmarks|examples|src|tests)/[\w./-]+)`", text):
        assert file == "mine.py" or any((room / file).exists() for room in rooms), file  # a reader's own
    for name in re.findall(r"`(taufree(?:\.\w+)+)[`(]", text):
        assert pydoc.locate(name), name


@pytest.mark.parametrize("name", taufree.__all__)
def test_every_public_name_has_its_page(name):
    assert f"::: taufree.{name}\n" in (ROOT / "docs" / "reference" / f"{name}.md").read_text()


def test_the_site_has_every_page():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCS)


def test_readme_is_short_and_shows_its_picture_early():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert any(".png)" in line for line in lines[:20])
