"""Which part of the free link's gradient does harm in a long training? Each part left out, by task.

    PYTHONPATH=benchmarks/studies python -m benchmarks.studies.long_training       # digits, on a CPU
    ... --tasks digits-long                                                         # eight times as long
    ... --tasks citeseer --data FOLDER --jobs 8                                     # for a GPU
    ... --tasks imagenette --data FOLDER                                            # 800 epochs, for a GPU
    python -m benchmarks.studies.long_training --table                              # only the tables

The losses are those of alternatives.py: without the positive in the denominator (Decoupled), with few
negatives (FewCandidates), with a coarse resolution (Coarse, Coarser), and with even odds for the positive
against all negatives (WithPrior), which has nothing to choose. They are compared with the lines of earlier
studies of the same recipe, settings and seeds. Writes benchmarks/results/long-training.jsonl, the raw lines
with every twentieth epoch of their curves.
"""

from __future__ import annotations

from benchmarks.studies.representation import Task, study

LINKS = tuple(
    f"alternatives:{name}" for name in ("WithPrior", "Decoupled", "FewCandidates", "Coarse", "Coarser")
)
BESIDE = ("free", "0.1", "0.25", "0.5", "1", "fitted")
TASKS = {
    "digits": Task(
        "digits", {"epochs": 60}, ("knn", "linear"), LINKS, 20, "temperature-schemes.jsonl", BESIDE
    ),
    "digits-long": Task(
        "digits", {"epochs": 480}, ("knn", "linear"), ("free", "0.25", "0.5", "fitted", *LINKS[:4]), 10
    ),
    "citeseer": Task(
        "citeseer", {"mask": "nt-xent"}, ("micro", "macro"), LINKS, 14, "representation.jsonl", BESIDE
    ),
    "imagenette": Task(
        "imagenette",
        {"epochs": 800, "batch_size": 256, "projection": 128},
        ("knn", "linear"),
        LINKS,
        2,
        "imagenette.jsonl",
        (*BESIDE, "calibrated"),
    ),
}

if __name__ == "__main__":
    study(__doc__, "long-training", TASKS, "digits")
