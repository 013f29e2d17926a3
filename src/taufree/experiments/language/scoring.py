"""The log-probabilities that a masked language model gives to tokens, each masked alone, in batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taufree.experiments.language.tokens import PADDING_MULTIPLE, logits_at
from taufree.util.files import write_text

QUESTIONS_PER_BATCH = 128
Row = dict[str, Any]
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Question:
    """How likely is ``target`` at ``position`` of ``ids``, where the mask token stands?"""

    ids: list[int]
    position: int
    target: int


@torch.no_grad()
def log_probabilities(
    model: nn.Module, tokenizer: Any, questions: Sequence[Question], watch: Watch = lambda done, total: None
) -> Tensor:
    """The log-probability of each question's target, [N] in float64 on the CPU.

    The model stays on its device and in its precision; it is in eval mode meanwhile.

    Args:
        model: a masked language model of transformers.
        watch: called with how many questions are answered, of how many.
    """
    device = next(model.parameters()).device
    most = getattr(model.config, "max_position_embeddings", None)
    order = sorted(range(len(questions)), key=lambda number: len(questions[number].ids))
    if order and most is not None and len(questions[order[-1]].ids) > most:
        longest = len(questions[order[-1]].ids)
        raise ValueError(f"model must take sentences of {longest} tokens, but it takes {most}.")
    found = torch.zeros(len(questions), dtype=torch.float64)
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(order), QUESTIONS_PER_BATCH):
            numbers = order[start : start + QUESTIONS_PER_BATCH]
            asked = [questions[number] for number in numbers]
            longest = min(-len(asked[-1].ids) // PADDING_MULTIPLE * -PADDING_MULTIPLE, most or 10**9)
            ids = torch.tensor(
                [one.ids + [tokenizer.pad_token_id] * (longest - len(one.ids)) for one in asked]
            )
            attention = torch.tensor([[1] * len(one.ids) + [0] * (longest - len(one.ids)) for one in asked])
            positions = torch.tensor([row * longest + one.position for row, one in enumerate(asked)])
            logits = logits_at(model, *(part.to(device) for part in (ids, attention, positions)))
            targets = torch.tensor([[one.target] for one in asked], device=device)
            found[numbers] = logits.float().log_softmax(-1).gather(1, targets)[:, 0].double().cpu()
            watch(min(start + QUESTIONS_PER_BATCH, len(order)), len(order))
    finally:
        model.train(was_training)
    return found


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """The answers of one evaluation, one JSON object a line."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
