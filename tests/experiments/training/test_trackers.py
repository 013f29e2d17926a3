"""Trackers: every epoch once, also of a run that was interrupted; one that fails costs the log alone."""

import csv
import time

import pytest
import yaml

from taufree.experiments.digits import DigitsSettings
from taufree.experiments.training import trackers
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.run import Run
from taufree.experiments.training.trackers import check_trackers, parse_trackers
from taufree.experiments.training.trainer import CURVES, train
from taufree.util.errors import BadInputError, MissingPackageError

SETTINGS = DigitsSettings(epochs=3, batch_size=432)


def run_of(*log, seed=0):
    return Run("digits", "gain=2", seed, SETTINGS, log=log)


def interrupted(run, out):
    """The line of a run that was stopped in its second epoch and goes on from the first."""

    def stop(epoch, loss):
        if epoch == 2:
            raise KeyboardInterrupt

    def save_first(checkpoint, epoch, *state, save=Checkpoint.save):
        if epoch == 1:
            save(checkpoint, epoch, *state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_first)
        with pytest.raises(KeyboardInterrupt):
            train(run, out / "checkpoints", every=0, watch=stop)
    return train(run, out / "checkpoints")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run that was interrupted, and the folder of its log."""
    out, run = tmp_path_factory.mktemp("logged"), run_of("csv", "tensorboard")
    return interrupted(run, out), out / "logs" / run.slug


def test_csv_has_every_epoch_once_with_metrics_and_settings(logged):
    line, folder = logged
    with (folder / "metrics.csv").open() as file:
        *epochs, last = csv.DictReader(file)
    assert [row["step"] for row in epochs] == ["1", "2", "3"]
    for name in CURVES:
        assert [float(row[name]) for row in epochs] == line["curves"][name]
    assert [float(row["gain"]) for row in epochs] == pytest.approx([2, 2, 2], rel=1e-3)
    assert {name: float(last[f"final/{name}"]) for name in line["metrics"]} == line["metrics"]
    settings = yaml.safe_load((folder / "hparams.yaml").read_text())
    assert settings["link"] == "gain=2"
    assert {name: settings[name] for name in line["settings"]} == line["settings"]


def test_tensorboard_has_every_epoch_once_and_the_table_of_settings(logged):
    pytest.importorskip("tensorboard", reason="the extra trackers is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    line, folder = logged
    found = EventAccumulator(str(folder)).Reload()
    for name in CURVES:
        scalars = found.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2, 3]
        assert [scalar.value for scalar in scalars] == pytest.approx(line["curves"][name])
    for name, value in line["metrics"].items():
        assert found.Scalars(f"final/{name}")[0].value == pytest.approx(value)
    content = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert (settings["link"].string_value, settings["epochs"].number_value) == ("gain=2", 3)


def test_the_result_is_that_of_a_run_without_trackers(logged, tmp_path):
    plain = train(run_of(), tmp_path / "checkpoints")
    assert run_of().key == run_of("csv").key
    assert [plain[key] for key in ("metrics", "curves")] == [logged[0][key] for key in ("metrics", "curves")]
    assert not (tmp_path / "logs").exists()


def test_a_tracker_that_fails_is_named_and_the_run_goes_on(tmp_path):
    (tmp_path / "logs").write_text("not a folder")
    notes = []
    line = train(run_of("csv"), tmp_path / "checkpoints", note=notes.append)
    assert len(line["curves"]["loss"]) == 3
    (note,) = notes
    assert note.startswith("csv failed (")
    assert note.endswith("; the runs go on without it.")


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra trackers is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_trackers(["wandb"])
    interrupted(run_of("wandb"), tmp_path)
    train(run_of("wandb", seed=1), tmp_path / "checkpoints")
    folders = sorted((tmp_path / "logs" / "wandb").glob("offline-run-*"))
    first, again, other = (folder.name.split("-")[3] for folder in folders)
    assert first == again != other
    for folder in folders:
        (file,) = folder.glob("run-*.wandb")
        deadline = time.monotonic() + 120  # its own process writes it
        while b"positive_cosine" not in (content := file.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert b"learning_rate" in content
        assert (b"final/knn" in content) == (folder != folders[0])


def test_mlflow_goes_on_with_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra trackers is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    check_trackers(["mlflow"])
    line = interrupted(run_of("mlflow"), tmp_path)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("taufree").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.status, run.data.params["link"]) == ("FINISHED", "gain=2")
    assert run.data.metrics["final/knn"] == line["metrics"]["knn"]
    losses = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")}
    assert losses == dict(enumerate(line["curves"]["loss"], start=1))


def test_names_that_are_wrong_or_not_installed_are_refused(monkeypatch):
    assert parse_trackers("csv, csv,") == ("csv",)
    for text, got in (("csv,tb", "'tb'"), (" ", "' '")):
        with pytest.raises(BadInputError) as refused:
            parse_trackers(text)
        assert str(refused.value) == f"--log must be some of csv, tensorboard, wandb, mlflow, got {got}."
    monkeypatch.setattr(trackers, "TRACKERS", ("no_such_tracker",))
    with pytest.raises(MissingPackageError, match=r'no_such_tracker: pip install "taufree\[trackers\]"$'):
        parse_trackers("no_such_tracker")


def test_weights_and_biases_without_a_login_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra trackers is not installed")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    with pytest.raises(BadInputError, match=r"^wandb .*, log in by wandb login or set WANDB_MODE=offline\.$"):
        check_trackers(["wandb"])


def test_mlflow_without_an_address_is_refused(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(BadInputError, match=r"^--log mlflow needs MLFLOW_TRACKING_URI, such as http"):
        check_trackers(["mlflow"])
