"""What the fused kernels are meant to reach, and whether measured rows (see fused.py) reach it."""

from __future__ import annotations

OURS = "taufree triton, free"
DENSE = ("dense eager", "torch.compile dense")


def goals(result: dict) -> list[dict]:
    """One entry for each goal and size that was measured: the goal, where, the number, and if it is met."""
    found: list[dict] = []

    def add(goal: str, at: str, measured: float, met: bool) -> None:
        found.append({"goal": goal, "at": at, "measured": measured, "met": met})

    steps = [row for row in result.get("steps", []) if row["loss"] == "symmetric" and "problem" not in row]
    for row in (row for row in steps if row["method"] == OURS):
        n, d, at, ms = row["n"], row["d"], f"{row['n']} x {row['d']}", row["ms"]
        beside = [x for x in steps if (x["n"], x["d"]) == (n, d) and not x["method"].startswith("taufree")]
        if n >= 16384 and d >= 512:
            share = row["share_of_floor"]
            add("N >= 16384, D >= 512: at least 80 % of the floor's rate", at, share, share >= 0.8)
        if n >= 16384 and d in (128, 256):
            share = row["share_of_floor"]
            add("N >= 16384, D = 128 or 256: at least 60 % of the floor's rate", at, share, share >= 0.6)
        if n <= 4096:
            _dense_goals("N <= 4096: time at most that of the faster dense code", at, ms, beside, add)
        if (n, d) == (65536, 512):
            extra = row["extra_mib"]
            add("65536 x 512: at most 700 MiB beyond the inputs", at, extra, extra <= 700)
        if n >= 4096:
            for peer in beside:
                ratio = peer["ms"] / ms
                add(f"N >= 4096: faster than {peer['method']}, times", at, ratio, ratio > 1)
    graphs = result.get("graphs", [])
    for row in (row for row in graphs if row["method"] == OURS):
        beside = [x for x in graphs if (x["n"], x["d"]) == (row["n"], row["d"])]
        goal = "CUDA graph, N <= 4096: time at most that of the faster dense code"
        _dense_goals(goal, f"{row['n']} x {row['d']}", row["ms"], beside, add)
    for row in result.get("symmetry", []):
        goal = "NT-Xent: at most 0.6 of the time without symmetry"
        add(goal, f"{row['rows']} rows x {row['d']}", row["share"], row["share"] <= 0.6)
    for row in result.get("million", []):
        at, gib = f"{row['n']} x {row['d']}", row["extra_mib"] / 1024
        add("a million rows: under 12 s", at, row["seconds"], row["seconds"] < 12)
        add("a million rows: under 12 GiB", at, gib, gib < 12)
    return found


def _dense_goals(goal: str, at: str, ms: float, rows: list[dict], add) -> None:
    """Against dense code of the same loss, and against any, since a temperature costs dense code less."""
    for which, links in (("free", ("free",)), ("free or tau", ("free", "tau"))):
        names = {f"{how}, {link}" for how in DENSE for link in links}
        times = [row["ms"] for row in rows if row["method"] in names]
        if times:
            ratio = ms / min(times)
            add(f"{goal} ({which})", at, ratio, ratio <= 1)
