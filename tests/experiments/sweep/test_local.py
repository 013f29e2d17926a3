"""Workers: a run that fails, or takes its process down, costs that run alone."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from taufree.experiments.digits import DigitsSettings
from taufree.experiments.sweep.events import reason
from taufree.experiments.sweep.local import work
from taufree.experiments.training.run import Run

TINY = DigitsSettings(epochs=2, batch_size=432)
BROKEN = DigitsSettings(epochs=2, batch_size=432, learning_rate=1e37)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What was told of five runs, one at a time, and how their processes ended.

    One process is killed at its first run; the next has one that fails and a good one, and is killed before
    it hears of the fourth; the third hears Ctrl-C while it still imports.
    """
    runs = [
        *(Run("digits", "free", 0, TINY), Run("digits", "free", 0, BROKEN), Run("digits", "0.5", 0, TINY)),
        *(Run("digits", "free", 1, TINY), Run("digits", "free", 2, TINY)),
    ]
    told, children = {run: [] for run in runs}, []
    for event in work(runs, tmp_path_factory.mktemp("served"), jobs=1, every=30):
        told[event.run].append(event)
        children += [child for child in multiprocessing.active_children() if child not in children]
        now = runs.index(event.run), event.kind
        if now == (0, "begun"):
            children[-1].kill()
        elif now == (2, "done"):
            children[-1].kill()
            children[-1].join()
        elif now == (4, "begun") and hasattr(signal, "pthread_sigmask"):
            time.sleep(0.3)  # long enough for Python to be there, too short for PyTorch
            os.kill(children[-1].pid, signal.SIGINT)
    assert not multiprocessing.active_children()
    return list(told.values()), [child.exitcode for child in children]


@pytest.mark.slow
def test_a_killed_process_and_a_failing_run_do_not_stop_the_others(served):
    killed, failed, good, *_ = served[0]
    assert [event.kind for event in killed] == ["begun", "failed"]
    assert killed[-1].value == "its process ended with exit code -9"
    assert [event.kind for event in failed] == ["begun", "failed"]
    assert failed[-1].value == "the loss became nan in epoch 1."
    assert [event.kind for event in good] == ["begun", "epoch", "epoch", "done"]
    assert [event.value[0] for event in good[1:3]] == [1, 2]
    assert good[-1].value["link"] == "0.5"


@pytest.mark.slow
def test_a_process_killed_between_two_runs_costs_the_next_one_alone(served):
    *_, good, lost, last = served[0]
    assert good[-1].kind == last[-1].kind == "done"
    assert [event.kind for event in lost] == ["begun", "failed"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system has no signal masks")
def test_ctrl_c_is_not_heard_by_a_worker_that_still_imports(served):
    assert served[0][-1][-1].kind == "done"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
def test_a_worker_that_has_nothing_left_to_do_ends_by_itself(served):
    assert served[1] == [-signal.SIGKILL, -signal.SIGKILL, 0]


def test_closing_the_iterator_stops_the_workers(tmp_path):
    events = work([Run("digits", "free", 0, TINY)], tmp_path, jobs=1, every=30)
    assert next(events).kind == "begun"
    assert len(multiprocessing.active_children()) == 1
    events.close()
    assert not multiprocessing.active_children()


def test_no_runs_start_no_process(tmp_path):
    assert list(work([], tmp_path, jobs=1, every=30)) == []


def test_too_little_memory_is_a_sentence_and_a_mistake_shows_its_place():
    with pytest.raises(RuntimeError) as on_cpu:
        torch.empty(2**60, dtype=torch.uint8)
    for error in (on_cpu.value, MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")):
        assert reason(error, "cuda").startswith("the cuda has too little memory for it, try a smaller")
    with pytest.raises(ZeroDivisionError) as mistake:
        1 / 0  # noqa: B018
    assert "test_local.py" in reason(mistake.value, "cpu")


def test_of_several_ranks_one_that_dies_ends_the_work(tmp_path, monkeypatch):
    told = {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    events = work([Run("digits", "free", seed, TINY) for seed in (0, 1)], tmp_path, jobs=1, every=30)
    assert next(events).kind == "begun"
    (child,) = multiprocessing.active_children()
    child.kill()
    assert [(event.run.seed, event.kind) for event in events] == [(0, "broken")]
