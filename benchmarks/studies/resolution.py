"""Does the resolution of the log-odds link matter? Accuracy for many ways to treat cosines near 1.

    python -m benchmarks.studies.resolution --data FOLDER --jobs 3 # all runs; what is there is not run again
    python -m benchmarks.studies.resolution --table # the tables of docs/studies/resolution.md

A variant is a treatment (smooth with a resolution, or clamped at a distance) in an arithmetic. Every variant
of a seed starts from the same weights and sees the same views. A run has collapsed if its features are not at
least a point better than those of the same network before training. Writes one line of JSON per run.
"""

from __future__ import annotations

import datetime
import multiprocessing
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from rich.progress import track
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree import Link, LogOdds, nt_xent
from taufree.experiments.digits import Digits, DigitsSettings
from taufree.experiments.evaluation.pair_statistics import observe_views
from taufree.experiments.graphs.citeseer import CiteSeer, CiteSeerSettings
from taufree.experiments.report.statistics import Spread, interval_of_mean
from taufree.experiments.training.run import Run
from taufree.experiments.training.trainer import Training
from taufree.util.json_lines import append_json
from taufree.util.machine import hardware, versions

RESULTS_FILE = RESULTS / "resolution.jsonl"
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Variant:
    """How cosines near 1 are treated.

    "smooth" is 2 atanh(c / (1 + number)), "clamp" cuts c off at 1 - number. The arithmetics:

    - float32: the library, its fused kernels on a GPU, blockwise elsewhere; a clamp is written densely and,
      in float64, so is what is finer than the kernels take.
    - bfloat16: the same on projections rounded to bfloat16.
    - TF32: written densely, cosines from a TF32 product; with "exact positive" but the positives'.
    - float64: written densely, network and loss in float64 (projections pass in float32): the truth, which
      shares no code with the library.
    """

    treatment: str
    number: float
    arithmetic: str = "float32"

    def loss(self, a: Tensor, b: Tensor) -> Tensor:
        if self.arithmetic.startswith("TF32") and not a.is_cuda:
            raise ValueError("TF32 needs a GPU.")
        if self.arithmetic == "bfloat16":
            a, b = a.bfloat16(), b.bfloat16()
        if self.finest is None or self.treatment == "clamp":
            return dense(a, b, self)
        if a.is_cuda and self.number < self.finest:
            return dense(a.double(), b.double(), self)
        return nt_xent(a, b, link=LogOdds(resolution=self.number), backend="triton" if a.is_cuda else "auto")

    @property
    def finest(self) -> float | None:
        """The finest resolution that the kernels take, where the arithmetic is theirs."""
        return {"float32": 1e-7, "bfloat16": 1e-5}.get(self.arithmetic)


def sums(cosine: Tensor, own: Tensor, top: Tensor, limit: Tensor) -> Tensor:
    """The rows' sums of weights; an anchor with itself leaves before the link."""
    cosine = cosine.masked_fill(own, 0).clamp(-limit, limit)
    return (2 * top / (top - cosine) - 1).masked_fill(own, 0).sum(1)


compiled_sums = torch.compile(sums, dynamic=False)


def dense(a: Tensor, b: Tensor, variant: Variant) -> Tensor:
    """NT-Xent on the whole matrix of cosines: exp(2 atanh(c / s)) = (s + c) / (s - c) = 2 s / (s - c) - 1."""
    dtype = torch.float64 if variant.arithmetic == "float64" else a.dtype
    rows = normalize(torch.cat([a, b]).to(dtype), dim=-1)
    own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    pair = torch.arange(len(rows), device=rows.device).roll(len(a))
    torch.set_float32_matmul_precision("high" if variant.arithmetic.startswith("TF32") else "highest")
    cosine = rows @ rows.T
    torch.set_float32_matmul_precision("highest")
    numbers = (1 + variant.number, 1.0) if variant.treatment == "smooth" else (1.0, 1 - variant.number)
    top, limit = (torch.full_like(cosine[0, 0], number) for number in numbers)
    total = (compiled_sums if a.is_cuda else sums)(cosine, own, top, limit)
    of_pair = 2 * top / (top - cosine.gather(1, pair[:, None])[:, 0].clamp(-limit, limit)) - 1
    if variant.arithmetic != "TF32, exact positive":
        return (total.log() - of_pair.log()).mean()
    u, v = rows.double(), rows.double()[pair]
    gap, rise = (u - v).square().sum(-1) / 2, (u + v).square().sum(-1) / 2
    positive = (rise + variant.number) / (gap + variant.number)
    return ((total - of_pair) / positive).log1p().mean().to(rows.dtype)


VARIANTS = [
    *(Variant("smooth", delta) for delta in (0.0, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)),
    *(Variant("clamp", distance) for distance in (1e-7, 1e-4, 1e-3)),
    *(Variant("smooth", delta, "float64") for delta in (0.0, 1e-6, 1e-4)),
    *(
        Variant("smooth", delta, arithmetic)
        for arithmetic in ("bfloat16", "TF32", "TF32, exact positive")
        for delta in (1e-6, 1e-4, 1e-2)
    ),
]
DEFAULT = Variant("smooth", 1e-4)
SIZES = [Variant("smooth", delta) for delta in (1e-6, 1e-4, 1e-2)]
"""For other numbers of candidates, as (N - 1) resolution / 2 is the gradient scale at the optimum."""
TASKS = {"citeseer": VARIANTS, "digits": VARIANTS, "digits-64": SIZES, "digits-1024": SIZES}
METRICS = {"citeseer": "micro", "digits": "linear"}
KEY = ("task", "treatment", "number", "arithmetic", "seed")


class Studied:
    """A recipe whose loss is the variant's."""

    variant: Variant
    views: tuple[Tensor, Tensor]

    def loss(self, view_a: Tensor, view_b: Tensor, link: Link) -> Tensor:
        self.views = (view_a.detach(), view_b.detach())
        return self.variant.loss(view_a, view_b)


class StudiedCiteSeer(Studied, CiteSeer):
    pass


class StudiedDigits(Studied, Digits):
    pass


@dataclass(frozen=True)
class Trial:
    """One run of the study."""

    task: str
    variant: Variant
    seed: int
    device: str
    data: Path | None
    epochs: int | None

    @property
    def key(self) -> dict[str, object]:
        return {"task": self.task, **asdict(self.variant), "seed": self.seed}

    def recipe(self) -> StudiedCiteSeer | StudiedDigits:
        name, _, batch = self.task.partition("-")
        changes = {"epochs": self.epochs} if self.epochs else {}
        if name == "citeseer":
            return StudiedCiteSeer(CiteSeerSettings(**changes))
        return StudiedDigits(DigitsSettings(**changes, batch_size=int(batch or 256)))


def train(trial: Trial) -> dict[str, object]:
    """The trial's line of the results."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    started = time.monotonic()
    recipe = trial.recipe()
    recipe.variant = trial.variant
    recipe.load(trial.data)
    precision = "64-true" if trial.variant.arithmetic == "float64" else "32-true"
    run = Run(recipe.name, "free", trial.seed, recipe.settings, precision, trial.device)
    training = Training(run, recipe)
    machine = hardware(training.fabric.device)
    line = {**trial.key, "epochs": run.settings.epochs, "date": datetime.date.today().isoformat()}
    line |= {"versions": versions(), "hardware": machine}
    untrained = training.evaluate()
    try:
        while training.epoch < run.settings.epochs:
            loss = training.train_epoch()
    except ValueError as error:
        return {**line, "outcome": "refused", "reason": str(error)}
    except FloatingPointError as error:
        return {**line, "outcome": "not finite", "reason": str(error)}
    metrics, metric = training.evaluate(), METRICS[recipe.name]
    seen = observe_views(*recipe.views, LogOdds(), anchors=1024)
    at = torch.tensor(QUANTILES, dtype=torch.float64, device=seen.positive.device)
    positive, negative = (x.flatten().double().quantile(at).tolist() for x in (seen.positive, seen.negative))
    return {
        **line,
        "outcome": "collapsed" if metrics[metric] < untrained[metric] + 1 else "done",
        "loss": loss,
        "metrics": metrics,
        "untrained": untrained,
        "candidates": seen.candidates,
        "quantiles": QUANTILES,
        "positive_cosines": positive,
        "negative_cosines": negative,
        "seconds": round(time.monotonic() - started, 2),
    }


def table(lines: list[dict], task: str) -> None:
    """Markdown: accuracy, the paired difference to the default, and where the cosines ended."""
    metric = METRICS[task.partition("-")[0]]
    mine = [line for line in lines if line["task"] == task]
    print(f"\n### {task}: {metric}, %\n")
    head("treatment", "arithmetic", "mean ± std", "minus the default", "seeds", "collapsed",
         "cosines of negatives", "of positives")  # fmt: skip
    values = pd.Series(
        {(Variant(*(line[name] for name in KEY[1:4])), line["seed"]): line["metrics"][metric]
         for line in mine if "metrics" in line},
        dtype=float,
    )  # fmt: skip
    for variant in TASKS[task]:
        of = [line for line in mine if [line[name] for name in KEY[1:4]] == list(asdict(variant).values())]
        ended = [line for line in of if "metrics" in line]
        cells = [f"{variant.treatment} {variant.number:g}", variant.arithmetic]
        if not ended:
            why = {f"{line['outcome']}: {line['reason']}" for line in of}
            row(*cells, " ".join(sorted(why)) or "not run", *[""] * 5)
            continue
        found = values[variant]
        gaps = found - values[DEFAULT] if variant != DEFAULT and DEFAULT in values else pd.Series(dtype=float)
        lost = len(of) - len(ended)
        spread = Spread(found.mean(), found.std() if len(found) > 1 else None, len(found))
        cells += [str(spread), interval(gaps.dropna())]
        cells += [f"{len(ended)}" + (f", and {lost} not finite" if lost else "")]
        cells += [str(sum(line["outcome"] == "collapsed" for line in ended))]
        for kind in ("negative", "positive"):
            mean = pd.DataFrame([line[f"{kind}_cosines"] for line in ended], columns=QUANTILES).mean()
            cells += [" / ".join(f"{mean[q]:.3f}" for q in (0.01, 0.5, 0.99))]
        row(*cells)
    truth = replace(DEFAULT, arithmetic="float64")
    for arithmetic in ("float32", "bfloat16"):
        kernels = replace(DEFAULT, arithmetic=arithmetic)
        if kernels in values and truth in values:
            gaps = (values[kernels] - values[truth]).dropna()
            print(f"\nAt the default, {arithmetic} minus float64: {interval(gaps)}", end="")
    print()


def interval(gaps: pd.Series) -> str:
    """Mean and 95 % interval of Student's t."""
    ends = interval_of_mean(gaps.tolist())
    if ends is None:
        return ""
    low, high = ends
    return f"{gaps.mean():+.2f} ({low:+.2f} to {high:+.2f})" + (", within noise" if low <= 0 <= high else "")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds planetoid/CiteSeer/raw")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--arithmetics", default="", help="only those that begin so, comma-separated")
    parser.add_argument("--epochs", type=int, help="fewer, for a look at the time it takes")
    parser.add_argument("--out", type=Path, default=RESULTS_FILE)
    parser.add_argument("--table", action="store_true", help="only print the tables")
    chosen = parser.parse_args()
    tasks = chosen.tasks.split(",")
    if not chosen.table:
        there = [{name: line[name] for name in KEY} for line in read(chosen.out)]
        trials = [
            Trial(task, variant, seed, chosen.device, chosen.data, chosen.epochs)
            for task in tasks
            for seed in range(chosen.seeds)
            for variant in TASKS[task]
            if variant.arithmetic.startswith(tuple(chosen.arithmetics.split(",")))
        ]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(chosen.jobs, context) as pool:
            futures = [pool.submit(train, trial) for trial in trials if trial.key not in there]
            for future in track(as_completed(futures), "runs", total=len(futures)):
                append_json(chosen.out, future.result())
    for task in tasks:
        table(read(chosen.out), task)


if __name__ == "__main__":
    main()
