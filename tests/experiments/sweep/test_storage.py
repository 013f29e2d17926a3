"""Checkpoints that machines share: whole or not there."""

import zipfile

import fsspec
import pytest

from taufree.experiments.sweep.storage import Storage
from taufree.util.errors import BadInputError


@pytest.fixture(params=["folder", "memory"])
def storage(request, tmp_path):
    yield Storage(str(tmp_path / "shared") if request.param == "folder" else "memory://shared/checkpoints")
    fsspec.filesystem("memory").store.clear()


def checkpoint(folder, epoch):
    made = folder / f"epoch-{epoch}"
    made.mkdir(parents=True)
    (made / "weights.safetensors").write_text(f"weights of epoch {epoch}")
    (made / "state.pt").write_bytes(bytes([epoch]))
    return made


def test_the_newest_checkpoint_comes_back_on_another_machine(storage, tmp_path):
    assert not storage.get("one", tmp_path / "none")
    for epoch in (3, 7):
        storage.put("one", checkpoint(tmp_path / "here", epoch))
    storage.put("other", checkpoint(tmp_path / "elsewhere", 1))
    assert Storage(storage.url).get("one", tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["epoch-7"]
    for name in ("weights.safetensors", "state.pt"):
        found, put = (tmp_path / where / "epoch-7" / name for where in ("there", "here"))
        assert found.read_bytes() == put.read_bytes()


def test_a_run_that_is_done_leaves_nothing(storage, tmp_path):
    storage.check()
    for slug in ("one", "one-more"):
        storage.put(slug, checkpoint(tmp_path / slug, 1))
    files, root = fsspec.core.url_to_fs(storage.url)
    files.pipe_file(f"{root}/.one.dead-node-1.draft", b"half of it")
    storage.remove("one")
    storage.remove("never-there")
    assert [path.rpartition("/")[2] for path in files.ls(root, detail=False)] == ["one-more.zip"]


def test_a_damaged_checkpoint_raises(tmp_path):
    storage = Storage(str(tmp_path))
    storage.put("one", checkpoint(tmp_path / "here", 1))
    whole = (tmp_path / "one.zip").read_bytes()
    (tmp_path / "one.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(zipfile.BadZipFile):
        storage.get("one", tmp_path / "there")


def test_a_folder_is_named_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Storage("shared").url == (tmp_path / "shared").as_uri()


def test_what_cannot_be_opened_or_written_to_is_refused(tmp_path):
    with pytest.raises(
        BadInputError, match=r"^--storage foo://x cannot be opened: Protocol not known: foo\.$"
    ):
        Storage("foo://x")
    (tmp_path / "file").write_text("")
    for use in (Storage.check, lambda storage: storage.put("one", checkpoint(tmp_path / "here", 1))):
        with pytest.raises(
            BadInputError, match=r"^--storage .*/file/below cannot be written to: Not a dir.*\.$"
        ):
            use(Storage(str(tmp_path / "file" / "below")))
