"""Does training with the fused kernels end where training with the reference ends?

    python -m benchmarks.studies.train_fused            # under a minute on an H200

A small encoder learns from pairs of noisy views of 512 prototypes, until positives nearly coincide: the
regime where 1 - c is small and low precision could go wrong. Every backend starts from the same weights and
sees the same batches (paired seeds). Accuracy: nearest class mean of held-out views, in %. Writes one line
per run to benchmarks/results/train-fused.jsonl.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

import taufree
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree.bench.measure import about
from taufree.util.json_lines import append_json

CLASSES, WIDTH, BATCH, STEPS = 512, 64, 1024, 400
NOISE = 0.7  # of a view, beside prototypes of about unit variance in each column
OUT = RESULTS / "train-fused.jsonl"
VARIANTS = {
    "reference, float32": ("reference", torch.float32),
    "fused, float32": ("triton", torch.float32),
    "fused, bfloat16": ("triton", torch.bfloat16),
}


class Task:
    """Prototypes, their noisy views, and an encoder; all drawn from the seed."""

    def __init__(self, seed: int, d: int, device: str) -> None:
        self.random = torch.Generator(device).manual_seed(seed)
        self.prototypes = torch.randn(CLASSES, WIDTH, device=device, generator=self.random)
        torch.manual_seed(seed)
        layers = nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, d)
        self.encoder = nn.Sequential(*layers).to(device)

    def views(self, classes: Tensor) -> Tensor:
        center = self.prototypes[classes]
        return center + NOISE * torch.randn(center.shape, device=center.device, generator=self.random)

    def batch(self, n: int) -> tuple[Tensor, Tensor]:
        classes = torch.randint(CLASSES, (n,), device=self.prototypes.device, generator=self.random)
        return self.encoder(self.views(classes)), self.encoder(self.views(classes))

    def train(self, backend: str, dtype: torch.dtype, steps: int = STEPS) -> list[float]:
        """The loss of every step."""
        optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=1e-3, weight_decay=1e-4)
        losses = []
        for _ in range(steps):
            a, b = (rows.to(dtype) for rows in self.batch(BATCH))
            loss = taufree.info_nce(a, b, symmetric=True, backend=backend)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    @torch.no_grad()
    def accuracy(self) -> float:
        every = torch.arange(CLASSES, device=self.prototypes.device)
        unit = nn.functional.normalize
        means = unit(torch.stack([unit(self.encoder(self.views(every))) for _ in range(8)]).mean(0))
        right = [(unit(self.encoder(self.views(every))) @ means.T).argmax(1) == every for _ in range(8)]
        return 100 * torch.cat(right).float().mean().item()

    @torch.no_grad()
    def positive_cosine(self) -> float:
        return nn.functional.cosine_similarity(*self.batch(4096)).mean().item()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/studies/train_fused.py needs a CUDA device.")
    where = about("cuda")
    accuracy: dict[str, list[float]] = {name: [] for name in VARIANTS}
    options.out.unlink(missing_ok=True)
    for seed in range(options.seeds):
        for name, (backend, dtype) in VARIANTS.items():
            task = Task(seed, 128, "cuda")
            losses = task.train(backend, dtype, options.steps)
            accuracy[name].append(task.accuracy())
            line = {
                "variant": name, "seed": seed, "steps": options.steps, "first_loss": losses[0],
                "last_loss": statistics.mean(losses[-20:]), "accuracy": accuracy[name][-1],
                "positive_cosine": task.positive_cosine(), **where,
            }  # fmt: skip
            append_json(options.out, line)
            print(
                f"seed {seed} {name:20} loss {line['last_loss']:.4f}, accuracy {line['accuracy']:.2f}, "
                f"positive cosine {line['positive_cosine']:.4f}",
                flush=True,
            )
    print(f"\n{'':20} accuracy mean (std)   minus reference: mean (std)")
    truth = accuracy["reference, float32"]
    for name, found in accuracy.items():
        gap = [one - other for one, other in zip(found, truth, strict=True)]
        print(f"{name:20} {spread(found):21} {spread(gap)}")
    print(f"wrote {options.out}")


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ({statistics.stdev(values) if len(values) > 1 else 0:.2f})"


if __name__ == "__main__":
    main()
