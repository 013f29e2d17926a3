"""CLIP without a temperature: pictures of coloured shapes and their captions, with open_clip.

    python examples/clip.py                      # trains a tiny CLIP on drawings, on the CPU
    python examples/clip.py --use-logit-scale    # CLIP's learned temperature, to compare

Pictures and captions are compared with each other, so the gain is fitted (docs/guide/choosing-a-link.md).
Captions such as "a large red circle on a blue background"; a part of the combinations is never trained on.
Needs open_clip: pip install open_clip_torch.
"""

from __future__ import annotations

import argparse
import itertools
import random

import open_clip
import torch
from torch import Tensor

from taufree.integrations.open_clip import ClipLoss

COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.7, 0.2),
    "blue": (0.1, 0.2, 0.9),
    "yellow": (0.9, 0.9, 0.1),
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
}
SIZES = {"small": 5.0, "large": 9.0}
SHAPES = {
    "circle": lambda x, y, r: x**2 + y**2 < r**2,
    "square": lambda x, y, r: (x.abs() < r * 0.8) & (y.abs() < r * 0.8),
    "triangle": lambda x, y, r: (y < r * 0.7) & (y > 2 * x.abs() - r),
    "cross": lambda x, y, r: ((x.abs() < r * 0.3) | (y.abs() < r * 0.3)) & (x.abs() < r) & (y.abs() < r),
}
Thing = tuple[str, str, str, str]  # size, colour, shape, background


def things() -> list[Thing]:
    """All combinations, shuffled."""
    made = [thing for thing in itertools.product(SIZES, COLOURS, SHAPES, COLOURS) if thing[1] != thing[3]]
    random.Random(0).shuffle(made)
    return made


def draw(thing: Thing, generator: torch.Generator) -> Tensor:
    """A picture [3, 32, 32] of it, somewhere near the middle, with a little noise."""
    size, colour, shape, background = thing
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    shift = torch.rand(2, generator=generator) * 12 + 10
    inside = SHAPES[shape](x - shift[0], y - shift[1], SIZES[size])
    picture = torch.where(
        inside, *(torch.tensor(COLOURS[name])[:, None, None] for name in (colour, background))
    )
    return picture + 0.05 * torch.randn(3, 32, 32, generator=generator)


def batch(chosen: list[Thing], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, 32, 32] and captions as tokens [N, T]."""
    captions = [
        f"a {size} {colour} {shape} on a {behind} background" for size, colour, shape, behind in chosen
    ]
    pictures = torch.stack([draw(thing, generator) for thing in chosen])
    return pictures, open_clip.tokenize(captions, context_length=16)


def tiny_clip() -> open_clip.CLIP:
    """Two small transformers; the real ones come from ``open_clip.create_model_and_transforms``."""
    vision = {"layers": 3, "width": 64, "head_width": 32, "patch_size": 8, "image_size": 32}
    text = {"layers": 2, "width": 64, "heads": 2, "context_length": 16, "vocab_size": 49408}
    return open_clip.CLIP(64, vision, text, output_dict=True)


@torch.no_grad()
def found(model: open_clip.CLIP, chosen: list[Thing]) -> float:
    """The share of pictures whose nearest caption is their own."""
    pictures, captions = batch(chosen, torch.Generator().manual_seed(1))
    model.eval()
    images, texts = model.encode_image(pictures, normalize=True), model.encode_text(captions, normalize=True)
    model.train()
    return ((images @ texts.T).argmax(1) == torch.arange(len(chosen))).float().mean().item()


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--use-logit-scale", action="store_true")
    chosen = parser.parse_args(arguments)

    torch.manual_seed(0)
    everything = things()
    test, train = everything[:48], everything[48:]
    generator = torch.Generator().manual_seed(0)
    model = tiny_clip()
    loss = ClipLoss(use_logit_scale=chosen.use_logit_scale)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]  # norms, biases, logit_scale: no weight decay
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": others, "weight_decay": 0.0}], 1e-3, weight_decay=0.1
    )
    before = found(model, test)
    for step in range(1, chosen.steps + 1):
        order = torch.randperm(len(train), generator=generator)[: chosen.batch_size].tolist()
        output = model(*batch([train[i] for i in order], generator))
        value = loss(**output, output_dict=True)["contrastive_loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 50 == 0 or step == chosen.steps:
            scaled = chosen.use_logit_scale
            scale = f"scale {output['logit_scale'].item():.1f}" if scaled else f"gain {loss.link.gain:.1f}"
            print(f"step {step}: loss {value.item():.3f}, {scale}")
    after = found(model, test)
    print(f"of {len(test)} new combinations find their caption: {before:.0%} before, {after:.0%} after")
    return before, after


if __name__ == "__main__":
    main()
