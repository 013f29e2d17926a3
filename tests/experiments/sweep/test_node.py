"""A run as a task, without a cluster: what it sends, what it leaves and where it goes on."""

from queue import SimpleQueue

import pytest

from taufree.experiments.digits import DigitsSettings
from taufree.experiments.settings import Settings
from taufree.experiments.sweep.node import Task, train_run
from taufree.experiments.sweep.storage import Storage
from taufree.experiments.training.function import FunctionRun
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import train

RUN = Run("digits", "learnable", 0, DigitsSettings(epochs=3, batch_size=432))


def told(task):
    queue = SimpleQueue()
    event, files = train_run(task, queue.put)
    news = [queue.get() for _ in range(queue.qsize())]
    assert {attempt for attempt, _ in news} == {task.attempt}
    return event, files, [(one.kind, one.value) for _, one in news]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(RUN, tmp_path_factory.mktemp("whole") / "checkpoints")


def test_a_run_goes_on_from_the_shared_checkpoint(tmp_path, whole, monkeypatch):
    class Killed(BaseException):
        pass

    def die(storage, *given, put=Storage.put):
        put(storage, *given)
        raise Killed

    shared = tmp_path / "shared"
    shared.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "put", die)
        with pytest.raises(Killed):
            train_run(Task(RUN, 0, 1, str(shared), every=0), SimpleQueue().put)
    assert [path.name for path in shared.iterdir()] == [f"{RUN.slug}.zip"]
    event, files, news = told(Task(RUN, 1, 1, str(shared), every=0))
    epochs = [value[0] for kind, value in news if kind == "epoch"]
    assert news[0] == ("begun", None)
    assert epochs[-1] == 3
    assert 1 not in epochs
    assert (event.kind, files) == ("done", {})
    assert [event.value[key] for key in ("metrics", "curves", "settings")] == [
        whole[key] for key in ("metrics", "curves", "settings")
    ]


def counted(link, seed, folder):
    """Saves how far it is."""
    file = folder / "parts" / "count"
    for epoch in range(int(file.read_text()) if file.exists() else 0, 4):
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(epoch + 1))
        yield {"epoch": epoch}


def test_a_function_goes_on_from_its_shared_folder(tmp_path):
    run = FunctionRun("counted", "free", 0, Settings(epochs=4), function=counted)
    event, _, _ = told(Task(run, 0, 1, str(tmp_path), every=600))  # what the first epoch saved is shared
    assert event.value["curves"]["epoch"] == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == [f"{run.slug}.zip"]
    event, files, _ = told(Task(run, 1, 1, str(tmp_path), every=0))
    assert event.value["curves"]["epoch"] == [1, 2, 3]
    assert files == {}
    folder = tmp_path / "unpacked"
    assert Storage(str(tmp_path)).get(run.slug, folder)
    assert (folder / "saved" / "parts" / "count").read_text() == "4"
    event, _, _ = told(Task(run, 2, 1, None, every=0))
    assert event.value["curves"]["epoch"] == [0, 1, 2, 3]


def test_a_damaged_shared_checkpoint_is_named_and_the_run_starts_again(tmp_path, whole):
    (tmp_path / f"{RUN.slug}.zip").write_bytes(b"half of it")
    event, _, news = told(Task(RUN, 2, 1, str(tmp_path), every=30))
    (note,) = [value for kind, value in news if kind == "note"]
    assert note.startswith(f"the checkpoint {RUN.slug} in {tmp_path} cannot be read (BadZipFile);")
    assert event.value["curves"] == whole["curves"]


@pytest.mark.parametrize(
    ("run", "version", "sentence"),
    [
        (RUN, "0.0.1", "taufree must be 0.0.1 as on the driver, got "),
        (Run("digits", "free", 0, DigitsSettings(batch_size=1500)), None, "batch_size must be at most 1297"),
        (Run("digits", "free", 0, DigitsSettings(), device="mps"), None, "device mps is not available to"),
    ],
)
def test_what_does_not_fit_the_node_is_refused_with_its_name(run, version, sentence, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "node-7")
    task = Task(run, 0, 1, None, 30, *([version] if version else []))
    event, _, _ = told(task)
    assert event.kind == "refused"
    assert event.value.startswith(f"node node-7: {sentence}")


def test_a_storage_that_the_node_does_not_share_is_refused(tmp_path):
    event, _, _ = told(Task(RUN, 0, 1, str(tmp_path / "absent"), every=30))
    assert event.kind == "refused"
    assert "absent is not there, it must be a folder that all nodes share." in event.value


def test_logs_come_to_the_driver_while_the_run_trains_and_at_its_end():
    run = Run("digits", "free", 0, RUN.settings, log=("csv",))
    queue = SimpleQueue()
    event, files = train_run(Task(run, 0, 1, None, every=0), queue.put)
    news = [queue.get()[1] for _ in range(queue.qsize())]
    sent = [one[f"logs/{run.slug}/metrics.csv"].count(b"\n") for one in news if isinstance(one, dict)]
    assert event.kind == "done"
    assert sent == [2, 3, 4]  # the header, and the epochs so far
    assert sorted(files) == [f"logs/{run.slug}/hparams.yaml", f"logs/{run.slug}/metrics.csv"]
    assert files[f"logs/{run.slug}/metrics.csv"].count(b"\n") == 5
