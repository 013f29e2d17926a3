"""A folder of captioned images, and a small text tower."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.support.photographs import write_captioned
from tests.support.small_bert import write_encoder


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def data(tmp_path):
    return write_captioned(tmp_path / "data")
