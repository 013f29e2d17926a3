"""What is made once: all wait for one, what is damaged is made again, a failure is one sentence."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from taufree.util.cache import cache_folder, cached, download


def test_the_cache_follows_the_home_folder_and_two_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "taufree"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which is to be ignored
    assert cache_folder() == tmp_path / ".cache" / "taufree"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "taufree"
    monkeypatch.setenv("TAUFREE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("TAUFREE_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("TAUFREE_CACHE", "")  # as from a shell variable that is not set
    assert cache_folder() == tmp_path / "caches" / "taufree"
    assert os.listdir(tmp_path) == []


def test_it_is_made_once_and_again_when_damaged(tmp_path):
    made = []

    def make(draft):
        made.append(draft)
        draft.mkdir()
        (draft / "number").write_text("7")

    def load(folder):
        return int((folder / "number").read_text())

    path = tmp_path / "new" / "data"
    assert cached(path, make, load) == cached(path, make, load) == 7
    assert len(made) == 1
    (path / "number").write_text("damaged")
    assert cached(path, make, load) == 7
    assert len(made) == 2


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".data.123456.draft").mkdir()
    (tmp_path / ".other.123456.draft").mkdir()
    cached(tmp_path / "data", lambda draft: draft.write_text("whole"), lambda path: path.read_text())
    assert sorted(os.listdir(tmp_path)) == [".other.123456.draft", "data", "data.lock"]


def test_all_who_ask_at_once_get_what_one_has_made(tmp_path):
    makers = []

    def make(draft):
        makers.append(threading.get_ident())
        time.sleep(0.2)
        draft.write_text("whole")

    def ask(_):
        return cached(tmp_path / "data", make, lambda path: path.read_text())

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(3))) == ["whole"] * 3
    assert len(makers) == 1


def test_a_download_that_fails_is_one_sentence_and_leaves_nothing(tmp_path):
    def make(draft):
        draft.mkdir()
        raise OSError("no route")

    with pytest.raises(
        ValueError, match=r"^Digits could not be downloaded to .*data \(OSError\); read them\.$"
    ):
        download(tmp_path / "data", make, os.listdir, title="Digits", advice="read them")
    assert os.listdir(tmp_path) == ["data.lock"]


def test_a_cache_that_is_a_file_is_named_with_the_variable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAUFREE_CACHE", str(tmp_path / "file"))
    for name in ("digits", "images/digits"):
        with pytest.raises(ValueError, match=rf"^the folder {tmp_path}/file.* TAUFREE_CACHE must be .*\.$"):
            download(cache_folder() / name, os.mkdir, os.listdir, title="Digits", advice="read them")
