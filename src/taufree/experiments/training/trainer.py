"""Train one run of any recipe, from its beginning or from its last checkpoint, and give its result.

Seeds are paired: the initial weights, the batches and the views depend on the seed alone, never on the link.
All generators are seeded by (seed, epoch) at the beginning of each epoch, so that a run that was interrupted
gives on the CPU, bit for bit, the result of one that was not.
Ranks that torchrun starts train a run together, see :mod:`taufree.experiments.training.ranks`.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from taufree.backends.numerics import float32_products
from taufree.experiments.acceleration import Accelerated, Acceleration
from taufree.experiments.evaluation.pair_statistics import TALLIED, Observation, Tally, temperature_at_zero
from taufree.experiments.evaluation.report_arrays import save_arrays
from taufree.experiments.link_names import make_link, scheme_needs
from taufree.experiments.recipe import Recipe
from taufree.experiments.registry import find_recipe
from taufree.experiments.training import ranks
from taufree.experiments.training.batch_norm import synchronised
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.experiments.training.function import FunctionRun
from taufree.experiments.training.recorded import Replayed
from taufree.experiments.training.run import Run
from taufree.experiments.training.saved_model import model_file, write_model
from taufree.experiments.training.seeds import seed_everything
from taufree.experiments.training.selection import BestEpoch
from taufree.experiments.training.trackers import Trackers
from taufree.util.errors import BadInputError
from taufree.util.files import write_text, writing_to
from taufree.util.machine import silence_lightning

CURVES = (
    "loss",
    "positive_cosine",
    "negative_cosine",
    "gradient_scale",
    "effective_dimension",
    "temperature_at_zero",
)


def train(
    run: Run,
    checkpoints: Path,
    *,
    every: float = 30.0,
    watch: Callable[[int, float | None], None] = lambda epoch, loss: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Train and evaluate one run, and return its line of the results.

    Args:
        run: what to train.
        checkpoints: the folder of the checkpoints; the caller removes the run's own when the result is safe.
            Beside it, in ``embeddings``, goes what the recipe keeps for the report, in ``scores`` what it
            finds out about single examples, in ``models`` the network, where the run saves it, and in
            ``logs`` what trackers write.
        every: seconds between two checkpoints at least; they are written between epochs.
        watch: called after each epoch with the number of epochs done and the epoch's mean loss, which a
            function of the user's own need not give.
        note: called with each sentence that the recipe has for the user.
    """
    if isinstance(run, FunctionRun):
        return _call(run, checkpoints / run.slug, watch)
    started = time.monotonic()
    # The previous run's objects refer to each other in a cycle and hold device memory, which the garbage
    # collector does not count: without this call the memory of many runs would add up.
    gc.collect()
    recipe = find_recipe(run.recipe)(run.settings)
    try:
        recipe.check(run.data)
        recipe.load(run.data)
    except (ValueError, OSError) as error:
        raise BadInputError(str(error)) from error
    for sentence in recipe.notes:
        note(sentence)
    training = Training(run, recipe)
    checkpoint = Checkpoint(checkpoints / run.slug)
    if wrong := training.restore(checkpoint):
        note(f"{checkpoint.path} is damaged or of other data ({wrong}); the run starts again.")
        training = Training(run, recipe)
    started -= training.seconds
    saved = time.monotonic()
    names = run.log if training.fabric.is_global_zero else ()
    trackers = Trackers(run, names, checkpoints.parent / "logs", training.tracker_ids, note)
    with trackers.following([training.values(epoch) for epoch in range(1, training.epoch + 1)]):
        while training.epoch < run.settings.epochs and not training.best.ends(training.curves):
            loss = training.train_epoch()
            training.seconds = time.monotonic() - started
            trackers.log(training.values(training.epoch), training.epoch)
            # The last epoch is always saved: the evaluation that follows may take long.
            if time.monotonic() - saved >= every or training.epoch == run.settings.epochs:
                training.save(checkpoint)
                saved = time.monotonic()
            watch(training.epoch, loss)
        metrics = training.evaluate()
        trackers.log_metrics(metrics, training.epoch)
    out = checkpoints.parent
    with writing_to(out):
        training.keep(out / "embeddings" / f"{run.slug}.npz")
        training.list_scores(out / "scores" / f"{run.slug}.csv")
        if run.save_model:
            training.save_model(model_file(out, run), metrics)
    return run.line(metrics, training.curves, started, training.fabric.device)


def _call(run: FunctionRun, folder: Path, watch: Callable[[int, float | None], None]) -> dict[str, Any]:
    """Train by a user's own function."""
    training = run.train(folder)
    while True:
        try:
            watch(*next(training))
        except StopIteration as end:
            line: dict[str, Any] = end.value
            return line


class Training:
    """Model, link and optimizer of one run, and how far they have come."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        silence_lightning()
        self.run, self.recipe = run, recipe
        self.fabric = ranks.make_fabric(run)
        self.fabric.launch()
        recipe.needed = scheme_needs(run.link) or frozenset()  # which may make a link of the user's own
        seed_everything(run.seed, "weights")
        several = ranks.world() > 1
        self.weights = synchronised(recipe.model(), self.fabric.device) if several else recipe.model()
        self.link: Any = make_link(run.link, pairs=recipe.pairs, samples=recipe.sample_count)
        self.link.to(self.fabric.device)
        optimizer = recipe.optimizer(self.weights)
        if learned := list(self.link.parameters()):
            optimizer.add_param_group({"params": learned, "weight_decay": 0.0})
        self.scheduler = recipe.scheduler(optimizer)
        # Recipes need not know the device: whatever they call the model with is moved to it.
        self.weights.register_forward_pre_hook(self._to_device, with_kwargs=True)
        self.model, self.optimizer = self.fabric.setup(self.weights, optimizer)
        self.epoch, self.seconds = 0, 0.0
        self.curves: dict[str, Any] = {name: [] for name in CURVES}
        self.best = BestEpoch(recipe.select_by, recipe.patience)
        self.tracker_ids: dict[str, str] = {}
        device, acceleration = self.fabric.device, Acceleration()
        if isinstance(recipe, Accelerated):
            acceleration = recipe.accelerate(self.weights, device)
        # A recorded step repeats the same numbers: not float16's changing scale of the loss, nor the sizes
        # that ranks send each other.
        fixed = run.precision != "16-mixed" and not several
        self._replayed = acceleration.recorded_steps and fixed and device.type == "cuda"
        self.tf32 = acceleration.tf32 and device.type == "cuda"
        self._step = Replayed(self._advance) if self._replayed else self._advance
        self._adapt_groups(self.optimizer.param_groups)
        self.model.eval()
        with torch.no_grad():
            recipe.begin(self.model)

    def train_epoch(self) -> float:
        """One pass over the batches; returns the mean loss."""
        generator = torch.Generator().manual_seed(seed_everything(self.run.seed, "epoch", self.epoch))
        self.model.train()
        self.link.step((self.epoch + 1) / self.run.settings.epochs)
        last = self.best.patience is not None or self.epoch + 1 == self.run.settings.epochs
        rows: list[Tensor] = []
        tally = Tally()
        for batch in self.recipe.batches(self.epoch, generator):
            if ranks.world() > 1:
                batch = ranks.own_rows(batch, ranks.rank(), ranks.world())
            with self.products():
                row, seen = self._step(self.fabric.to_device(batch))
            if self.scheduler is not None:
                self.scheduler.step()
            rows.append(row.clone())
            if last:
                tally.add(seen)
        means: list[float] = torch.stack(rows).mean(0).tolist()
        # 0 where all rows are zero, whose cosines are too.
        values = [*means[:-1], 1 / means[-1] if means[-1] else 0.0, temperature_at_zero(self.link)]
        for name, value in zip(CURVES, values, strict=True):
            if not math.isfinite(value):
                what = name.replace("_", " ")
                raise FloatingPointError(f"the {what} became {value} in epoch {self.epoch + 1}.")
            self.curves[name].append(value)
        if last:
            self.curves.update(tally.result())
        self.epoch += 1
        if self.epoch % self.recipe.follow_every == 0:
            for name, value in self._judged(self.recipe.follow).items():
                self.curves.setdefault(name, []).append(value)
            self.best.update(self.curves, self.weights)
        return values[0]

    def values(self, epoch: int) -> dict[str, float]:
        """What is known of an epoch, of which the first is 1: the curves, and the figures followed."""
        found = {name: self.curves[name][epoch - 1] for name in CURVES}
        if found["temperature_at_zero"]:
            found["gain"] = 0.5 / found["temperature_at_zero"]  # link'(0) is 2 gain, but for the resolution
        if epoch % self.recipe.follow_every == 0:
            followed = self.curves.keys() - {*CURVES, *TALLIED}
            found |= {name: self.curves[name][epoch // self.recipe.follow_every - 1] for name in followed}
        return found

    def products(self) -> AbstractContextManager[None]:
        """The precision of float32 matrix products: TF32 where the recipe allows it on a GPU."""
        return float32_products("high") if self.tf32 else nullcontext()

    def _advance(self, batch: Any) -> tuple[Tensor, Observation]:
        """One step of training: loss, mean positive and negative cosine, gradient scale and mean squared
        negative cosine, [5], and all that was observed."""
        step = self.recipe.step(self.model, batch, self.link)
        self.optimizer.zero_grad()
        self.fabric.backward(step.loss)
        if ranks.world() > 1:  # DDP averages the gradients of the model alone
            for parameter in self.link.parameters():
                parameter.grad = self.fabric.all_reduce(parameter.grad)
        self.optimizer.step()
        seen = step.observation
        square = seen.negative.square().mean()
        row = (step.loss, seen.positive.mean(), seen.negative.mean(), seen.gradient_scale, square)
        return torch.stack([value.detach().double() for value in row]), seen

    def evaluate(self) -> dict[str, float]:
        """The recipe's metrics, of the weights of the chosen epoch, which the model has from now on."""
        self.best.put_back(self.weights)
        seed_everything(self.run.seed, "evaluation")
        found = {**self.best.metrics(self.curves), **self._judged(self.recipe.evaluate)}
        best = {f"best_{name}": max([now, *self.curves.get(name, [])]) for name, now in found.items()}
        return {name: {**found, **best}[name] for name in self.recipe.metrics}

    @torch.no_grad()
    def _judged(self, judge: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
        self.model.eval()
        with self.products():
            figures = {name: float(value) for name, value in judge(self.model).items()}
        for name, value in figures.items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} became {value} after {self.epoch} epochs.")
        return figures

    @torch.no_grad()
    def keep(self, path: Path) -> None:
        """Write what the recipe keeps of the trained model, if anything; the report shows the first seed."""
        self.model.eval()
        if self.run.seed == 0 and (arrays := self.recipe.keep(self.model)) and self.fabric.is_global_zero:
            save_arrays(path, arrays)

    @torch.no_grad()
    def list_scores(self, path: Path) -> None:
        """Write a line for each example that the recipe scores, if it scores any."""
        self.model.eval()
        if (rows := self.recipe.scores(self.model)) and self.fabric.is_global_zero:
            write_text(path, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))

    @torch.no_grad()
    def save_model(self, path: Path, metrics: dict[str, float]) -> None:
        """Write the network that was evaluated, to be used on new data."""
        self.model.eval()
        saved = self.recipe.saved_tensors(self.model)
        if self.fabric.is_global_zero:
            run = self.run
            about = {"recipe": run.recipe, "link": run.link, "seed": run.seed}
            settings = {"settings": run.recorded_settings, "metrics": metrics}
            write_model(path, self.weights, saved, {**about, **settings})

    def save(self, checkpoint: Checkpoint) -> None:
        """Write all that :meth:`restore` needs; rank 0 does."""
        if not self.fabric.is_global_zero:
            return
        state = {"epoch": self.epoch, "seconds": self.seconds, "curves": self.curves}
        state["trackers"] = self.tracker_ids
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        checkpoint.save(self.epoch, self.weights, {**state, "parts": parts})

    def restore(self, checkpoint: Checkpoint) -> str:
        """Go on from the newest checkpoint, if there is one; returns what is wrong with it, if anything.

        What is wrong is the same on all ranks, and this object is then of no more use.
        """
        # The folder may be on the machine of rank 0 alone.
        state, wrong = self.fabric.broadcast(self._read(checkpoint))
        if state is None:
            return str(wrong)
        try:
            self.weights.load_state_dict(state["weights"])
            self.epoch, self.seconds, self.curves = state["epoch"], state["seconds"], state["curves"]
            self.tracker_ids = state.get("trackers", {})
            self._adapt_groups(state["parts"]["optimizer"]["param_groups"])
            for name, part in self._parts().items():
                part.load_state_dict(state["parts"][name])
        except Exception as error:  # another version's state can raise anything
            return type(error).__name__
        return ""

    def _read(self, checkpoint: Checkpoint) -> tuple[dict[str, Any] | None, str]:
        """The newest state, with the weights, and what is wrong with it; other ranks than 0 read nothing."""
        try:
            state = checkpoint.load(self.weights) if self.fabric.is_global_zero else None
        except Exception as error:  # a damaged file can raise anything
            return None, type(error).__name__
        if state is not None:
            state["weights"] = {name: value.cpu() for name, value in self.weights.state_dict().items()}
        return state, ""

    def _adapt_groups(self, groups: list[dict[str, Any]]) -> None:
        """Give an optimizer's groups what belongs to the device, and not to the run, which may change it."""
        for group in groups:
            if "capturable" in group:
                group["capturable"] = self._replayed
            if self.scheduler is not None:
                rate = float(group["lr"])
                # A recording reads the learning rate from where it was; a schedule changes it in place there.
                group["lr"] = torch.tensor(rate, device=self.fabric.device) if self._replayed else rate

    def _parts(self) -> dict[str, Any]:
        parts = {"optimizer": self.optimizer, "link": self.link, "precision": self.fabric.strategy.precision}
        parts["best_epoch"] = self.best
        return parts if self.scheduler is None else {**parts, "scheduler": self.scheduler}

    def _to_device(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self.fabric.to_device(args), self.fabric.to_device(kwargs)
