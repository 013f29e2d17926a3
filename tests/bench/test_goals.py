"""The goals of benchmarks/fused.py: which rows they look at, and on which side of the line they fall."""

import pytest

from benchmarks.fused_goals import goals


def row(method, n, d, ms, share=0.5, mib=100.0, loss="symmetric"):
    return {
        "method": method,
        "loss": loss,
        "n": n,
        "d": d,
        "ms": ms,
        "share_of_floor": share,
        "extra_mib": mib,
    }


def met(result):
    return {(goal["goal"], goal["at"]): goal["met"] for goal in goals(result)}


@pytest.mark.parametrize(
    ("n", "d", "share", "expected"),
    [
        (16384, 512, 0.8, [True]),
        (16384, 512, 0.79, [False]),
        (32768, 1024, 0.81, [True]),
        (16384, 128, 0.6, [True]),
        (65536, 256, 0.59, [False]),
        (8192, 512, 0.1, []),
    ],
)
def test_share_of_the_floor(n, d, share, expected):
    found = met({"steps": [row("taufree triton, free", n, d, 1.0, share)]})
    assert [value for (goal, _), value in found.items() if "floor" in goal] == expected


def test_dense_code_at_small_n():
    steps = [row("taufree triton, free", 4096, 512, 1.0), row("dense eager, free", 4096, 512, 1.5)]
    steps += [
        row("torch.compile dense, free", 4096, 512, 1.2),
        row("torch.compile dense, tau", 4096, 512, 0.9),
    ]
    steps += [row("torch.compile dense, free", 1024, 512, 0.1)]
    goal = "N <= 4096: time at most that of the faster dense code"
    found = met({"steps": steps, "graphs": steps})
    for name in (goal, f"CUDA graph, {goal}"):
        assert found[f"{name} (free)", "4096 x 512"] is True
        assert found[f"{name} (free or tau)", "4096 x 512"] is False


def test_peers_at_large_n_but_not_those_that_failed_or_compute_another_loss():
    steps = [row("taufree triton, free", 16384, 512, 2.0), row("taufree triton, tau", 16384, 512, 1.0)]
    steps += [row("Liger x2, tau", 16384, 512, 9.0), row("open_clip, tau", 16384, 512, 1.9)]
    steps += [{**row("FlexAttention, free", 16384, 512, 1.0), "problem": "out of memory"}]
    steps += [row("lightly, tau", 16384, 512, 1.0, loss="nt-xent")]
    found = {goal: value for (goal, _), value in met({"steps": steps}).items() if "faster than" in goal}
    assert found == {
        "N >= 4096: faster than Liger x2, tau, times": True,
        "N >= 4096: faster than open_clip, tau, times": False,
    }


def test_memory_symmetry_and_a_million():
    result = {
        "steps": [row("taufree triton, free", 65536, 512, 30.0, mib=701.0)],
        "symmetry": [{"rows": 16384, "d": 512, "share": 0.6}, {"rows": 32768, "d": 512, "share": 0.61}],
        "million": [{"n": 2**20, "d": 512, "seconds": 11.9, "extra_mib": 12 * 1024.0}],
    }
    found = met(result)
    assert found["65536 x 512: at most 700 MiB beyond the inputs", "65536 x 512"] is False
    goal = "NT-Xent: at most 0.6 of the time without symmetry"
    assert (found[goal, "16384 rows x 512"], found[goal, "32768 rows x 512"]) == (True, False)
    assert found["a million rows: under 12 s", "1048576 x 512"] is True
    assert found["a million rows: under 12 GiB", "1048576 x 512"] is False
    assert goals({}) == []
