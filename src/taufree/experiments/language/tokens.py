"""Sentences as tensors, made once; masked language models, and their logits where they are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taufree.util.files import check_file, digest_of_files
from taufree.util.optional import needs

PADDING_MULTIPLE = 16
"""Batches are padded to a multiple of this, so that there are few different shapes."""
MASKED_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.15, 0.1, 0.1
"""BERT's masking: this share of the tokens is predicted; of these so many are kept, so many are random."""


@dataclass(frozen=True)
class Tokens:
    """Sentences as rows of token numbers.

    Shape:
        ids: [N, L], padded at the end; attention: [N, L], 1 where there is a token; words: [N, L], True where
        a token may be masked, which special tokens may not. Lengths and words are also counted on the CPU,
        ``lengths`` [N] and ``counts`` [N], so that shapes are known without waiting for the device.
    """

    ids: Tensor
    attention: Tensor
    words: Tensor
    lengths: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Tokens:
        """The same with its rows on the device."""
        rows = (self.ids.to(device), self.attention.to(device), self.words.to(device))
        return Tokens(*rows, self.lengths, self.counts)

    def take(self, rows: Tensor) -> Tokens:
        """Some of the sentences (their numbers on the CPU), padded to a multiple of ``PADDING_MULTIPLE``."""
        lengths = self.lengths[rows]
        longest = min(-int(lengths.max()) // PADDING_MULTIPLE * -PADDING_MULTIPLE, self.ids.shape[1])
        there = rows.to(self.ids.device)
        ids, attention, words = (part[there, :longest] for part in (self.ids, self.attention, self.words))
        return Tokens(ids.long(), attention.long(), words, lengths, self.counts[rows])


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, by its name on the hub or its folder."""
    return _load("AutoTokenizer", name)


def model_content(name: str) -> str | None:
    """A text that changes with the files of a model's folder; None for a name on the hub."""
    if not os.path.isdir(name):  # Path's raises where the name is too long
        return None
    return digest_of_files(sorted(path for path in Path(name).rglob("*") if path.is_file()))


def load_masked_lm(name: str) -> tuple[nn.Module, list[str]]:
    """A masked language model in float32, and the names of weights that its files have not; they are random.

    Raises ValueError with one sentence where there is no such model.
    """
    model, report = _load("AutoModelForMaskedLM", name, output_loading_info=True)
    return model.float(), sorted(report["missing_keys"])


def load_encoder(name: str) -> tuple[nn.Module, list[str]]:
    """:func:`load_masked_lm` for an encoder alone, without the pooler that some of them have at their end."""
    model, report = _load("AutoModel", name, "an encoder", output_loading_info=True)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model.float(), sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))


def tokenise(tokenizer: Any, sentences: Sequence[str], length: int) -> Tokens:
    """The sentences, each cut off after ``length`` tokens, special ones included."""
    rows = tokenizer(list(sentences), truncation=True, max_length=length, add_special_tokens=True)[
        "input_ids"
    ]
    longest = -max(map(len, rows)) // PADDING_MULTIPLE * -PADDING_MULTIPLE
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id, dtype=torch.int32)
    attention = torch.arange(longest) < lengths[:, None]
    ids[attention] = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    words = attention & ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids, dtype=torch.int32))
    return Tokens(ids, attention, words, lengths, words.sum(1))


@torch.no_grad()
def text_vectors(
    embed: Callable[[Tensor, Tensor], Tensor],
    tokens: Tokens,
    device: torch.device,
    at_once: int,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """What ``embed`` makes of ids and attention [N, L], ``at_once`` texts at a time: [N, D] on the CPU."""
    found = []
    for rows in torch.split(torch.arange(len(tokens)), at_once):
        some = tokens.take(rows)
        found.append(embed(some.ids.to(device), some.attention.to(device)).float().cpu())
        watch(int(rows[-1]) + 1, len(tokens))
    return torch.cat(found)


def read_texts(path: Path) -> list[str]:
    """The texts of a file, one a line; empty lines are left out."""
    check_file(path, "texts, one a line")
    try:
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must hold texts in UTF-8, one a line ({error.reason}).") from error
    if not texts:
        raise ValueError(f"{path} must hold texts, one a line, but is empty.")
    return texts


def mask(
    tokens: Tokens, tokenizer: Any, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """BERT's masking of a batch: masked ids [N, L], the flat positions [K] to predict, what was there [K].

    K is 15 % of the words, at least 1, drawn among all of the batch; 80 % of them become the mask token, 10 %
    a random one and 10 % stay.

    Args:
        generator: of the tokens' device.
    """
    ids, device = tokens.ids, tokens.ids.device
    draw = torch.rand(ids.shape, generator=generator, device=device).masked_fill(~tokens.words, -1)
    positions = draw.flatten().topk(max(1, round(MASKED_SHARE * int(tokens.counts.sum())))).indices
    targets = ids.flatten()[positions]
    fate = torch.rand(len(positions), generator=generator, device=device)
    anything = torch.randint(len(tokenizer), targets.shape, generator=generator, device=device)
    new = torch.where(fate < KEPT_SHARE, targets, torch.full_like(targets, tokenizer.mask_token_id))
    new = torch.where(fate >= 1 - RANDOM_SHARE, anything, new)
    return ids.flatten().index_copy(0, positions, new).view_as(ids), positions, targets


def logits_at(model: nn.Module, ids: Tensor, attention: Tensor, positions: Tensor) -> Tensor:
    """A masked language model's logits [K, V] at flat positions [K] of ids [N, L], and nowhere else.

    Over all tokens the last layer, from width to vocabulary, would cost as much as the rest of a small model.
    """
    last: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    hook = last.register_forward_pre_hook(lambda _, inputs: (inputs[0].flatten(0, 1)[positions],))
    try:
        logits: Tensor = model(input_ids=ids, attention_mask=attention).logits
    finally:
        hook.remove()
    return logits


@contextmanager
def quiet() -> Iterator[None]:
    """transformers and its hub without bars and warnings; the caller reports what matters."""
    with needs("taufree[language]"):
        from huggingface_hub.utils import logging as hub
        from transformers import logging
    verbosity, bars, of_hub = logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.get_verbosity()
    logging.set_verbosity_error()
    hub.set_verbosity(ERROR)  # without a network it counts its attempts
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub.set_verbosity(of_hub)
        if bars:
            logging.enable_progress_bar()


def _load(kind: str, name: str, what: str = "a masked language model", **options: Any) -> Any:
    with quiet():
        import transformers

        try:
            return getattr(transformers, kind).from_pretrained(name, **options)
        except Exception as error:  # errors of the network, the file system or the files
            why = (str(error).splitlines() or [""])[0].rstrip(" .:")
            raise ValueError(
                f"model must be the folder or the hub's name of {what}, got {name!r}, which cannot be loaded "
                f"({type(error).__name__}: {why})."
            ) from error
