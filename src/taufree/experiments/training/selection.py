"""Which epoch of a run is evaluated: the last one, or the one that a followed figure chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn


class BestEpoch:
    """The weights of the epoch with the highest value of a figure, the first one of equals.

    Args:
        figure: the curve that chooses; None chooses the last epoch, and nothing is kept.
        patience: training ends when so many values in a row are no better; None: it goes on to its end.
    """

    def __init__(self, figure: str | None, patience: int | None) -> None:
        if figure is None and patience is not None:
            raise ValueError("patience must be None without a figure to select by.")
        self.figure, self.patience = figure, patience
        self._weights: dict[str, Tensor] = {}

    def update(self, curves: Mapping[str, Sequence[float]], model: nn.Module) -> None:
        """Keep the weights if the newest value is the highest one."""
        values = self._values(curves)
        if values and values[-1] > max(values[:-1], default=-float("inf")):
            self._weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def ends(self, curves: Mapping[str, Sequence[float]]) -> bool:
        """Whether ``patience`` values in a row were no better than the highest one."""
        values = self._values(curves)
        if self.patience is None or not values:
            return False
        return len(values) - 1 - values.index(max(values)) >= self.patience

    def metrics(self, curves: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """The figure of the chosen epoch, if one was chosen."""
        values = self._values(curves)
        return {self.figure: max(values)} if self.figure and values else {}

    def put_back(self, model: nn.Module) -> None:
        """Give the model the chosen weights."""
        if self._weights:
            model.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What :meth:`state_dict` gave."""
        self._weights = dict(state["weights"])

    def _values(self, curves: Mapping[str, Sequence[float]]) -> Sequence[float]:
        return [] if self.figure is None else curves.get(self.figure, [])
