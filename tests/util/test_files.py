"""A file or a folder is whole or not there, and nothing is left beside it."""

import os
import stat

import pytest

from taufree.util.files import atomic_write, write_text


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "new" / "page.html"
    assert write_text(path, "first") == path
    with atomic_write(path, sync=True) as draft:
        draft.write_bytes(b"second")
        assert path.read_text() == "first"
        assert draft.parent == path.parent
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["page.html"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("folder", [False, True])
def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path, error, folder):
    path = write_text(tmp_path / "page.html", "first")

    def fail():
        with atomic_write(path) as draft:
            draft.mkdir() if folder else draft.write_text("sec")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_folder_takes_the_place_of_a_full_one(tmp_path):
    path = tmp_path / "data"
    for number in (1, 2):
        with atomic_write(path, sync=True) as draft:
            (draft / "inside").mkdir(parents=True)
            (draft / "inside" / f"{number}.txt").write_text("whole")
    assert [file.name for file in path.rglob("*.txt")] == ["2.txt"]
    assert os.listdir(tmp_path) == ["data"]


def test_the_mode_is_that_of_a_plain_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "atomic", "")
    plain, atomic = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic"))
    assert plain == atomic


def test_a_name_that_is_not_utf_8_can_be_written(tmp_path):
    write_text(tmp_path / "names.txt", "caf\udce9, τ")
    assert (tmp_path / "names.txt").read_text(encoding="utf-8") == "caf\\udce9, τ"
