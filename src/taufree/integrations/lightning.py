"""Lightning: what the temperature does to the pairs, logged while training, and a SimCLR that shows how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taufree import Link, LogOdds, Temperature
from taufree.diagnostics.anchors import TAUS
from taufree.losses import NTXent
from taufree.util.optional import needs

with needs("taufree[lightning]", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

    from taufree.diagnostics.metric import ContrastiveDiagnostics


class LogDiagnostics(Callback):
    """Logs ``taufree.diagnostics.metric.ContrastiveDiagnostics`` of the training batches.

    Whenever the trainer logs a step (its ``log_every_n_steps``) the pairs of that batch are measured: one
    more matrix of cosines, in blocks. The mean over an epoch's measured batches is logged as ``NAME_epoch``.
    So are the gain, the dimension and the temperature of every link in the module that measures or learns
    them, under its name there: ``contrastive/loss.link/gain``.

    Args:
        key: where ``training_step`` puts the pairs in the dict that it returns: {"loss": ..., key: (a, b)}.
        taus: the temperatures to compare with free.
        prefix: stands before every name.

    Shape:
        a, b: [N, D]; row i of b is the positive of row i of a.
    """

    def __init__(
        self, key: str = "views", taus: Sequence[float] = TAUS, prefix: str = "contrastive/"
    ) -> None:
        self.key = key
        self.prefix = prefix
        # Every batch is measured by itself, on the process that has it; Lightning takes the means.
        self.metric = ContrastiveDiagnostics(taus, sync_on_compute=False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.measured = trainer.global_step  # the step that was measured last

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every, step = trainer.log_every_n_steps, trainer.global_step
        if not every or step % every or step == self.measured:  # the step stays while gradients accumulate
            return
        if not outputs and pl_module.automatic_optimization:
            return  # training_step returned None, by which Lightning skips a batch
        self.measured = step
        if not isinstance(outputs, dict) or self.key not in outputs:
            got = (", ".join(outputs) or "nothing") if isinstance(outputs, dict) else type(outputs).__name__
            raise ValueError(f"training_step must return a dict with the key {self.key!r}, got {got}.")
        if len(outputs[self.key]) != 2:
            got = f"{len(outputs[self.key])} of them"
            raise ValueError(f"training_step must return a pair (a, b) as {self.key!r}, got {got}.")
        first, second = outputs[self.key]
        if len(first) < 2:
            return  # there are no negatives to measure
        values = self.metric.to(first.device)(first, second)
        self.metric.reset()
        pl_module.log_dict(
            {f"{self.prefix}{name}": value for name, value in (values | _link_values(pl_module)).items()},
            on_step=True,
            on_epoch=True,
            batch_size=len(first),
        )


def _link_values(module: nn.Module) -> dict[str, float]:
    """What the links of a module have measured or learned; those with fixed numbers are left out."""
    links = {
        name: link
        for name, link in module.named_modules()
        if isinstance(link, Link) and not isinstance(link, LogOdds | Temperature)
    }
    return {
        f"{name}/{value}": float(getattr(link, value))
        for name, link in links.items()
        for value in ("gain", "dimension", "tau")
        if hasattr(link, value)
    }


class SimCLR(LightningModule):
    """SimCLR in a page: two views of a batch, an encoder, a projection head, NT-Xent without temperature.

    Args:
        encoder: maps a view to features [N, features].
        features: the width of the encoder's output.
        projection: the width of the projections that are contrasted.
        loss: maps the projections of both views to a scalar; None is ``taufree.NTXent``, over all ranks.
        learning_rate: of Adam.

    Shape:
        A batch is a pair of views, or begins with one (then come labels, which are not used).
    """

    def __init__(
        self,
        encoder: nn.Module,
        features: int,
        projection: int = 128,
        loss: nn.Module | None = None,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(inplace=True), nn.Linear(features, projection)
        )
        self.loss = NTXent(gather_distributed=True) if loss is None else loss
        self.learning_rate = learning_rate

    def forward(self, x: Tensor) -> Tensor:
        """The features, for everything that comes after the training."""
        features: Tensor = self.encoder(x)
        return features

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        views = batch[0] if isinstance(batch[0], tuple | list) else batch
        shapes = [list(getattr(view, "shape", ())) for view in views[:2]]
        if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]):
            raise ValueError(f"batch must be a pair of views, or begin with one, got shapes {shapes}.")
        first, second = (self.head(self(view)) for view in views[:2])
        loss = self.loss(first, second)
        self.log("loss", loss, prog_bar=True, batch_size=len(first))
        return {"loss": loss, "views": (first.detach(), second.detach())}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
