"""Losses beyond plain InfoNCE beside their originals: time and memory of a step.

    python -m benchmarks.speed.drop_ins                  # 2,048 x 128 on a CPU
    python -m benchmarks.speed.drop_ins --device cuda --rows 8192

Decoupled losses, a memory bank, reference sets, several rows a label, the sigmoid loss and hardness, each by
the original and by the drop-in at the same temperature, float32. Adds a line to
benchmarks/results/drop-ins.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.support.markdown import head, row
from benchmarks.support.options import parser_of
from benchmarks.support.paths import RESULTS
from taufree import LearnableTemperature, SigmoidNCE
from taufree.bench.measure import about, extra_mib, milliseconds, pairs
from taufree.util.json_lines import append_json

TAU = 0.1
MOST_NUMBERS = 2**31  # of an original's largest tensor: 8 GiB
Case = tuple[str, Callable[[], Tensor], Callable[[], Tensor], int]  # name, theirs, ours, theirs in numbers


def cases(a: Tensor, b: Tensor) -> Iterator[Case]:
    from lightly import loss as lightly
    from open_clip.loss import SigLipLoss
    from pytorch_metric_learning import losses as metric
    from sentence_transformers.sentence_transformer import losses as sentences

    from taufree.integrations import lightly as our_lightly
    from taufree.integrations import pytorch_metric_learning as our_metric
    from taufree.integrations import sentence_transformers as our_sentences

    n, d = a.shape
    square = n * n
    for name in ("DCLLoss", "DCLWLoss"):
        theirs, ours = getattr(lightly, name)(TAU), getattr(our_lightly, name)(TAU)
        yield f"lightly {name}", lambda f=theirs: f(a, b), lambda f=ours: f(a, b), 4 * square
    banks = [kind(TAU, (8 * n, d)).to(a.device) for kind in (lightly.NTXentLoss, our_lightly.NTXentLoss)]
    yield f"lightly NTXentLoss, bank of {8 * n:,}", *[lambda f=f: f(a, b) for f in banks], 8 * square

    two, four = torch.arange(n, device=a.device) // 2, torch.arange(n, device=a.device) // 4
    for name in ("SupConLoss", "NTXentLoss"):
        both = getattr(metric, name)(TAU), getattr(our_metric, name)(TAU)
        size = square if name == "SupConLoss" else 3 * n * square  # three positives each
        title = f"pytorch-metric-learning {name}"
        yield f"{title}, four rows a label", *[lambda f=f: f(a, four) for f in both], size
        size = square if name == "SupConLoss" else 2 * n * square
        yield f"{title}, ref_emb", *[lambda f=f: f(a, two, ref_emb=b, ref_labels=two) for f in both], size

    scale, bias = (torch.tensor(x, device=a.device, requires_grad=True) for x in (10.0, -10.0))
    unit, theirs = [nn.functional.normalize(x.detach(), dim=1).requires_grad_() for x in (a, b)], SigLipLoss()
    ours = SigmoidNCE(link=LearnableTemperature(TAU), bias=nn.Parameter(bias.detach())).to(a.device)
    yield "open_clip SigLipLoss, SigmoidNCE", lambda: theirs(*unit, scale, bias), lambda: ours(*unit), square

    hard = {"hardness_mode": "all_negatives", "hardness_strength": 2.0}
    kinds = sentences.MultipleNegativesRankingLoss, our_sentences.MultipleNegativesRankingLoss
    both = [kind(nn.Identity(), 1 / TAU, **hard) for kind in kinds]
    of = [lambda f=f: f.compute_loss_from_embeddings([a, b], None) for f in both]
    yield "sentence-transformers, hardness", *of, square


def measured(loss: Callable[[], Tensor], a: Tensor, b: Tensor, device: str) -> tuple[float, float]:
    """Milliseconds and MiB of forward and backward."""

    def step() -> None:
        a.grad = b.grad = None
        loss().backward()

    return milliseconds(step, device), extra_mib(step, a, b)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=128)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    a, b = pairs(chosen.rows, chosen.columns, chosen.device, torch.float32)
    found = []
    head("loss", "original", "taufree", "original, MiB", "taufree, MiB")
    for name, theirs, ours, numbers in cases(a, b):
        fits = numbers <= MOST_NUMBERS
        before = measured(theirs, a, b, chosen.device) if fits else None
        after = measured(ours, a, b, chosen.device)
        found.append({"loss": name, "original": before, "taufree": after})
        shown = ["-", "-"] if before is None else [f"{before[0]:.1f} ms", f"{before[1]:,.0f}"]
        row(name, shown[0], f"{after[0]:.1f} ms", shown[1], f"{after[1]:,.0f}")
    packages = ("lightly", "pytorch-metric-learning", "open-clip-torch", "sentence-transformers")
    size = {"rows": chosen.rows, "columns": chosen.columns, "device": chosen.device}
    threads = {"threads": torch.get_num_threads()}
    line = {**size, **threads, "found": found, **about(chosen.device, packages)}
    append_json(RESULTS / "drop-ins.jsonl", line)


if __name__ == "__main__":
    main()
