"""Masked language modelling: make a masked language model of an encoder, or adapt one to some text.

BERT's task on plain sentences: 15 % of the tokens are to be predicted. Interrupted, it goes on from its last
checkpoint. The perplexity exp(mean cross-entropy) of the same masked tokens of held-out sentences is taken
before and after.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from taufree.experiments.language.nli_pairs import CORPORA, read_pairs
from taufree.experiments.language.scoring import Watch
from taufree.experiments.language.tokens import (
    PADDING_MULTIPLE,
    Tokens,
    load_masked_lm,
    load_tokenizer,
    logits_at,
    mask,
    quiet,
    tokenise,
)
from taufree.experiments.training.checkpoint import Checkpoint
from taufree.util.files import write_text
from taufree.util.machine import hardware, silence_lightning, versions

HELD_OUT_SENTENCES = 2000
CHECKPOINT_SECONDS = 30.0
"""Seconds between two checkpoints at least."""
RECORD_FILE = "pretraining.json"


@dataclass(frozen=True)
class PretrainSettings:
    """How long and how fast.

    Attributes:
        tokens: in a batch, padding included.
        warm_up: the share of the steps in which the learning rate rises; then it falls to 0.
        length: sentences are cut off after so many tokens.
    """

    epochs: int = 10
    tokens: int = 16384
    learning_rate: float = 3e-4
    warm_up: float = 0.06
    length: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}.")
        if self.tokens < self.length:
            raise ValueError(f"tokens must be at least {self.length}, a longest sentence, got {self.tokens}.")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}.")


def read_sentences(data: Path) -> list[str]:
    """All lines of ``data/text/*.txt`` and ``*.txt.gz``, and all sentences of SNLI and MNLI, each once."""
    found: dict[str, None] = {}
    for path in sorted((data / "text").glob("*.txt*")):
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(path, "rt", encoding="utf-8") as lines:
                found.update(dict.fromkeys(line.strip() for line in lines))
        except (OSError, EOFError, UnicodeError, zlib.error) as error:
            raise ValueError(f"{path} must be text in UTF-8, but cannot be read: {error}.") from error
    if any((data / name).is_dir() for name in CORPORA):
        for first, second, _ in read_pairs(data):
            found.update({first: None, second: None})
    found.pop("", None)
    if not found:
        raise ValueError(f"{data} must hold sentences in text/*.txt, text/*.txt.gz, snli or mnli.")
    return list(found)


def pretrain(
    model: str,
    data: Path,
    out: Path,
    settings: PretrainSettings,
    *,
    device: str = "cpu",
    precision: str = "32-true",
    watch: Watch = lambda done, total: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """Train ``model`` (a folder, or a name on the hub) and save it and its tokenizer in ``out``.

    Returns what ``out/pretraining.json`` holds: perplexities before and after, settings, seconds, versions
    and hardware. If it is there already, from the same model and settings, nothing is done.
    """
    asked = {"model": model, "settings": {**asdict(settings), "precision": precision}}
    record = out / RECORD_FILE
    if record.is_file():
        there: dict[str, Any] = _unless_damaged(
            record, lambda: json.loads(record.read_text(encoding="utf-8"))
        )
        _check_same(asked, there, out)
        note(f"{out} holds this model already; it is not trained again, even if the data have changed.")
        return there
    if Path(model).resolve() == out.resolve():
        raise ValueError(f"out must be another folder than the model's, which it would replace, got {out}.")
    started = time.monotonic()
    tokenizer = load_tokenizer(model)
    torch.manual_seed(settings.seed)  # for the weights that are missing in the files
    weights, missing = load_masked_lm(model)
    if missing:
        note(f"{len(missing)} weights, {missing[0]} among them, are missing in {model} and start at random.")
    sentences = read_sentences(data)
    out.mkdir(parents=True, exist_ok=True)  # fails before the training rather than after it
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0)).tolist()
    held_out = min(HELD_OUT_SENTENCES, len(sentences) // 10)
    text = [sentences[number] for number in order]
    tokens, test = (
        tokenise(tokenizer, part, settings.length) for part in (text[held_out:], text[:held_out] or text)
    )

    silence_lightning()
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    fabric.launch()
    tokens, test = tokens.to(fabric.device), test.to(fabric.device)
    optimizer = torch.optim.AdamW(weights.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    wrapped, wrapped_optimizer = fabric.setup(weights, optimizer)
    total = settings.epochs * sum(1 for _ in batches(tokens, settings.tokens, torch.Generator()))
    schedule = LambdaLR(optimizer, lambda step: _rate(step / total, settings.warm_up))
    parts = {"optimizer": wrapped_optimizer, "schedule": schedule, "precision": fabric.strategy.precision}
    checkpoint = Checkpoint(out / "checkpoint")
    state = _unless_damaged(checkpoint.path, lambda: checkpoint.load(weights))
    if state is None:
        state = {
            **asked,
            "epoch": 0,
            "seconds": 0.0,
            "before": perplexity(wrapped, tokenizer, test, settings.tokens),
        }
    else:
        _check_same(asked, state, out)
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
    started -= state["seconds"]
    saved = time.monotonic()
    for epoch in range(state["epoch"], settings.epochs):
        drawn = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
        draws = torch.Generator(fabric.device).manual_seed(settings.seed * 1_000_003 + epoch)
        torch.manual_seed(settings.seed * 1_000_003 + epoch)  # dropout
        wrapped.train()
        for number, rows in enumerate(batches(tokens, settings.tokens, drawn)):
            loss = _loss(wrapped, tokens.take(rows), tokenizer, draws)
            optimizer.zero_grad()
            fabric.backward(loss)
            # No error where float16 overflows: its scale shrinks, and the step is left out.
            fabric.clip_gradients(wrapped, wrapped_optimizer, max_norm=1.0, error_if_nonfinite=False)
            wrapped_optimizer.step()
            schedule.step()
            watch(epoch * (total // settings.epochs) + number + 1, total)
        if not loss.isfinite():
            raise ValueError(
                f"the loss became {loss.item()} in epoch {epoch + 1}; a lower learning rate may help."
            )
        last = epoch + 1 == settings.epochs
        if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
            state |= {"epoch": epoch + 1, "seconds": time.monotonic() - started}
            checkpoint.save(
                epoch + 1,
                weights,
                {**state, "parts": {name: part.state_dict() for name, part in parts.items()}},
            )
            saved = time.monotonic()
    found = {
        **asked,
        "before": state["before"],
        "after": perplexity(wrapped, tokenizer, test, settings.tokens),
        "sentences": len(tokens),
        "held_out": len(test),
        "steps": total,
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
        "hardware": hardware(fabric.device),
    }
    save(weights, tokenizer, out)
    write_text(record, json.dumps(found, indent=1) + "\n")
    shutil.rmtree(out / "checkpoint")
    return found


def _unless_damaged(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{path} is damaged ({type(error).__name__}), remove it to start again.") from error


def _check_same(asked: dict[str, Any], there: dict[str, Any], out: Path) -> None:
    if any(there.get(name) != value for name, value in asked.items()):
        raise ValueError(f"out must be a folder of its own, but {out} holds a model trained otherwise.")


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """A folder that transformers, and every ``--model`` here, can load."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def batches(tokens: Tokens, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The numbers of sentences of like length, as many as ``size`` tokens hold, every sentence once."""
    order = torch.randperm(len(tokens), generator=generator)
    lengths = -(-tokens.lengths[order] // PADDING_MULTIPLE) * PADDING_MULTIPLE
    groups = [
        group
        for length in sorted(set(lengths.tolist()))
        for group in torch.split(order[lengths == length], max(1, size // length))
    ]
    for number in torch.randperm(len(groups), generator=generator).tolist():
        yield groups[number]


@torch.no_grad()
def perplexity(model: nn.Module, tokenizer: Any, tokens: Tokens, size: int) -> float:
    """exp of the mean cross-entropy of masked tokens, the same ones in every call on one device."""
    model.eval()
    draws = torch.Generator(tokens.ids.device).manual_seed(0)
    total, count = 0.0, 0
    for rows in batches(tokens, size, torch.Generator().manual_seed(0)):
        taken = tokens.take(rows)
        words = max(1, int(taken.counts.sum()))
        total, count = total + words * _loss(model, taken, tokenizer, draws).item(), count + words
    return math.exp(total / count)


def _loss(model: nn.Module, tokens: Tokens, tokenizer: Any, draws: torch.Generator) -> Tensor:
    masked, positions, targets = mask(tokens, tokenizer, draws)
    return cross_entropy(logits_at(model, masked, tokens.attention, positions).float(), targets)


def _rate(done: float, warm_up: float) -> float:
    return min(done / warm_up, 1.0) * max(0.0, 1 - done) if warm_up else max(0.0, 1 - done)
