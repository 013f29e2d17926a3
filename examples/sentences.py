"""Sentence embeddings without a temperature: two wordings of one sentence must find each other.

    python examples/sentences.py                             # a tiny BERT with random weights
    python examples/sentences.py --model FOLDER_OR_NAME      # a model of your own
    python examples/sentences.py --scale 20                  # the library's temperature, to compare

Needs sentence-transformers: pip install "sentence-transformers[train]".
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from transformers import BertConfig, BertModel, BertTokenizer

from taufree.integrations.sentence_transformers import MultipleNegativesRankingLoss

# Every part of a sentence in two wordings: the first ones make the anchor, the second ones its positive.
WHO = ["a man|some guy", "a woman|some lady", "a child|some kid", "a dog|some puppy", "a nurse|some medic"]
WHO += ["a cook|some chef", "a pupil|some student", "a singer|some vocalist"]
DOES = ["is carrying|brings", "is watching|looks at", "is cleaning|washes", "is buying|pays for"]
DOES += ["is hiding|conceals", "is drawing|sketches"]
WHAT = ["a car|the automobile", "a picture|the image", "a house|the home", "a coat|the jacket"]
WHAT += ["a cup|the mug", "a stone|the rock", "a present|the gift", "a boat|the ship"]


def sentences() -> list[tuple[str, str]]:
    """All pairs (anchor, positive), shuffled."""
    parts = [[part.split("|") for part in parts] for parts in (WHO, DOES, WHAT)]
    pairs = [
        tuple(" ".join(words) for words in zip(*three, strict=True)) for three in itertools.product(*parts)
    ]
    random.Random(0).shuffle(pairs)
    return pairs


def tiny_model(folder: Path, words: list[str]) -> SentenceTransformer:
    """A BERT of two small layers that knows these words and nothing about them."""
    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(words))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    return SentenceTransformer(str(folder), device="cpu")


def found(model: SentenceTransformer, pairs: list[tuple[str, str]]) -> float:
    """The share of the anchors whose nearest positive is their own."""
    anchors, positives = (
        model.encode(list(side), convert_to_tensor=True) for side in zip(*pairs, strict=True)
    )
    nearest = model.similarity(anchors, positives).argmax(1).cpu()
    return (nearest == torch.arange(len(pairs))).float().mean().item()


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a SentenceTransformer's name or folder")
    parser.add_argument("--scale", type=float, help="a scale for the cosines instead of a fitted one")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", help="a folder for the trained model")
    chosen = parser.parse_args(arguments)

    pairs = sentences()
    train, test = pairs[100:], pairs[:100]
    with tempfile.TemporaryDirectory() as folder:
        if chosen.model:
            model = SentenceTransformer(chosen.model)
        else:
            model = tiny_model(Path(folder), " ".join(map(" ".join, pairs)).split())
        before = found(model, test)
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=chosen.epochs,
                per_device_train_batch_size=32,
                learning_rate=2e-5 if chosen.model else 1e-3,
                use_cpu=model.device.type == "cpu",
                logging_strategy="epoch",
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=Dataset.from_list([{"anchor": one, "positive": two} for one, two in train]),
            loss=MultipleNegativesRankingLoss(model, scale=chosen.scale),
        )
        trainer.train()
    if chosen.save:
        model.save_pretrained(chosen.save)
    after = found(model, test)
    print(f"of {len(test)} new sentences find their other wording: {before:.0%} before, {after:.0%} after")
    return before, after


if __name__ == "__main__":
    main()
