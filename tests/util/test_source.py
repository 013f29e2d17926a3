"""The digest of a user's own code."""

import hashlib
import importlib
import sys

import pytest

from taufree.util.source import source_digest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package of a user's: a module, a constant that it imports, and what nobody imports."""
    package = tmp_path / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "link.py").write_text("import math\nimport torch\nimport taufree\nfrom .sizes import SIZE\n")
    (package / "sizes.py").write_text("from package_of_mine import more\nSIZE = 1\n")
    (package / "more.py").write_text("")
    (package / "apart.py").write_text("")
    (tmp_path / "alone_of_mine.py").write_text("import math\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if "_of_mine" in name]:
        del sys.modules[name]


@pytest.mark.parametrize("file", ["link", "sizes", "more", "__init__"])
def test_what_a_module_imports_counts(folder, file):
    before = source_digest("package_of_mine.link")
    assert source_digest("package_of_mine.link") == before
    path = folder / "package_of_mine" / f"{file}.py"
    path.write_text(path.read_text() + "# another version\n")
    assert source_digest("package_of_mine.link") != before


def test_what_it_does_not_import_counts_not(folder):
    before = source_digest("package_of_mine.link")
    importlib.import_module("package_of_mine.apart")
    (folder / "package_of_mine" / "apart.py").write_text("# another version\n")
    assert source_digest("package_of_mine.link") == before


def test_one_file_has_the_digest_of_its_bytes(folder):
    bytes_ = (folder / "alone_of_mine.py").read_bytes()
    assert source_digest("alone_of_mine") == hashlib.sha256(bytes_).hexdigest()[:12]


def test_taufree_is_known_by_its_version_and_the_installed_by_itself():
    assert source_digest("taufree.experiments.digits") is None
    assert source_digest("taufree") is None
    assert len(source_digest("rich.console")) == 12
