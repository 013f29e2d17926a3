"""The paper's language table: MABEL with each link by StereoSet and CrowS-Pairs; and STS-B; paired seeds.

    python -m benchmarks.paper.mabel half ENCODER runs/minilm # a copy of a model's folder, weights in float16
    python -m benchmarks.paper.mabel run --data FOLDER --encoder runs/minilm --seconds 540 --jobs 5
    python -m benchmarks.paper.mabel table # the tables of docs/results/language.md, from the results

The paper's BERT-base needs a download of 440 MB; ``--model bert-base-uncased`` takes it, or any other masked
language model. Without it, ``run`` makes one of a small encoder by `taufree pretrain-mlm` (runs/adapted, its
weights rounded to float16, so that a copy of it is the same model). Runs that are not in the results are done
until ``--seconds`` are over; the same command again goes on. Writes benchmarks/results/mabel.jsonl: lines of
kind "base" are of the model before MABEL, those of kind "run" are lines of `taufree run`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from benchmarks.support.lines import read
from benchmarks.support.markdown import head, row
from benchmarks.support.options import add_precision_option, add_training_options, parser_of
from benchmarks.support.paths import RESULTS, ROOT
from benchmarks.support.training import complete, device_and_precision, stopping
from taufree.experiments.language.mabel import TERMS, Mabel, MabelSettings
from taufree.experiments.language.pretrain import RECORD_FILE, PretrainSettings, pretrain
from taufree.experiments.language.sentences import SentenceEncoder, Sentences, SentencesSettings
from taufree.experiments.link_names import describe
from taufree.experiments.report.statistics import difference, interval_of_mean
from taufree.experiments.settings import Settings
from taufree.experiments.training.run import Run
from taufree.util.files import atomic_write
from taufree.util.json_lines import append_json
from taufree.util.machine import hardware, versions

ADAPTED = Path("runs") / "adapted"
FIGURES = ("lm", "ss", "icat", "crows")
LINKS = ("free", "0.05", "0.1", "0.5", "1")
# Kim and Kim, arXiv 2501.17683: BERT-base, mean and standard deviation of ten runs.
PAPER = {
    "paper, BERT-base, tau 0.05": ("80.6 (0.5)", "55.8 (0.9)", "71.3 (1.3)", "52.5 (1.9)"),
    "paper, BERT-base, free": ("81.0 (0.6)", "55.7 (1.1)", "71.7 (1.7)", "52.3 (1.4)"),
}


def half(source: Path, target: Path) -> None:
    """Copy a model's folder with its weights in float16."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".txt"):
            shutil.copy(file, target)
    weights = load_file(source / "model.safetensors")
    halves = {name: x.half() if x.is_floating_point() else x for name, x in weights.items()}
    with atomic_write(target / "model.safetensors") as draft:
        save_file(halves, draft, metadata={"format": "pt"})


def adapt(chosen: argparse.Namespace, device: str, precision: str) -> str:
    """The masked language model to start from; made of the encoder if it is not there."""
    if chosen.model:
        return chosen.model
    if not (ADAPTED / "model.safetensors").is_file():
        if chosen.encoder is None:
            raise SystemExit("--encoder FOLDER or --model is needed, for there is no runs/adapted.")
        settings = PretrainSettings(epochs=chosen.pretrain_epochs)
        whole = ADAPTED.with_name("adapted-whole")
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("masked language modelling", total=None)
            pretrain(
                os.path.relpath(chosen.encoder),
                chosen.data,
                whole,
                settings,
                device=device,
                precision=precision,
                watch=lambda done, total: progress.update(task, completed=done, total=total),
                note=print,
            )
        half(whole, ADAPTED)
    return str(ADAPTED)


def fingerprint(model: str) -> str:
    """Tells one folder's weights from another's; a name on the hub stands for itself."""
    weights = Path(model) / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()[:16] if weights.is_file() else model


@torch.no_grad()
def base_line(chosen: argparse.Namespace, model: str, device: str) -> dict:
    """The figures of the model before anything is done to it."""
    started = time.monotonic()
    mabel = Mabel(MabelSettings(model=model, subset=chosen.subset))
    mabel.load(chosen.data)
    found = mabel.evaluate(mabel.model().to(device).eval())
    sentences = Sentences(SentencesSettings(model=model, batch_size=2, subset=chosen.subset))
    sentences.load(chosen.data)
    encoder = SentenceEncoder(sentences.language_model().base_model).to(device).eval()
    encoder.register_forward_pre_hook(lambda _, inputs: tuple(x.to(device) for x in inputs))
    record = Path(model) / RECORD_FILE
    return {
        "kind": "base",
        "model": model,
        "subset": chosen.subset,
        "weights": fingerprint(model),
        "metrics": found,
        "stsb": sentences.evaluate(encoder),
        "pretraining": json.loads(record.read_text()) if record.is_file() else None,
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
        "hardware": hardware(torch.device(device)),
    }


def subset_of(base: dict) -> int:
    """The examples at most that a model was judged by; 0 is all."""
    return base.get("subset", 0)


def plan(chosen: argparse.Namespace, model: str) -> list[tuple[str, Settings, tuple[str, ...], int]]:
    """Recipe, settings, links and seeds, the most wanted first."""
    some = {"model": model, "subset": chosen.subset}
    same, own = MabelSettings(**some), MabelSettings(**some, alignment="0.05")
    return [
        ("mabel", same, LINKS[:2], chosen.seeds),
        ("mabel", own, LINKS[:1], chosen.seeds),
        ("sentences", SentencesSettings(**some), LINKS[:2], (chosen.seeds + 1) // 2),
        ("mabel", same, LINKS[2:], chosen.seeds),
    ]


def marked(line: dict) -> dict:
    return {"kind": "run", **line}


def run(chosen: argparse.Namespace) -> None:
    """Do the runs that are not in the results."""
    device, precision = device_and_precision(chosen, Mabel)
    model = adapt(chosen, device, precision)
    bases = [line for line in read(chosen.results) if line["kind"] == "base" and line["model"] == model]
    if any(line["weights"] != fingerprint(model) for line in bases):
        raise SystemExit(
            f"{chosen.results} has results of another {model}: bring that back, or name another file."
        )
    if chosen.subset not in map(subset_of, bases):
        append_json(chosen.results, base_line(chosen, model, device))
    runs = [
        Run(recipe, link, seed, settings, precision, device, chosen.data)
        for recipe, settings, links, seeds in plan(chosen, model)
        for seed in range(seeds)
        for link in links
    ]
    complete(runs, chosen.results, chosen.runs, jobs=chosen.jobs, small=marked)


def spread(values: list[float]) -> str:
    """The mean and the half-width of its 95 % interval (Student's t over seeds)."""
    interval = interval_of_mean(values)
    return f"{mean(values):.2f}" + (f" ± {interval[1] - mean(values):.2f}" if interval else "")


def mabel_table(base: dict, lines: list[dict]) -> None:
    """LM, SS, ICAT and CrowS-Pairs of each link beside the paper's; the terms; the paired differences."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for line in lines:
        groups.setdefault((line["settings"]["alignment"], line["link"]), []).append(line)
    order = sorted(groups, key=lambda key: (key[0] != "same", [*LINKS, "learnable"].index(key[1])))
    everywhere = ("LM, all", "SS, all", "ICAT, all")
    head("link", "alignment's link", "LM", "SS", "ICAT", "CrowS", *everywhere, "seeds", "seconds")
    names = [*FIGURES, *(f"{name}_all" for name in FIGURES[:3])]
    row("none: the model before", "", *(f"{base['metrics'][name]:.2f}" for name in names), "", "")
    for aligned, link in order:
        part = groups[aligned, link]
        cells = [spread([line["curves"][name][-1] for line in part]) for name in names]
        other = "the same" if aligned == "same" else describe(aligned)
        row(describe(link), other, *cells, str(len(part)), f"{mean(line['seconds'] for line in part):.0f}")
    for name, figures in PAPER.items():
        row(name, "not said", *figures, "", "", "", "10", "")
    print()
    where = ("positive_cosine", "negative_cosine")
    shown = [(term, epoch) for term in TERMS for epoch in (1, 2)] + [(name, 2) for name in where]
    titles = (f"{name.replace('_', ' ')}, epoch {epoch}" for name, epoch in shown)
    head("link", "alignment's link", *titles)
    for aligned, link in order:
        part = groups[aligned, link]
        cells = [f"{mean(line['curves'][name][epoch - 1] for line in part):.3f}" for name, epoch in shown]
        row(describe(link), "the same" if aligned == "same" else describe(aligned), *cells)
    print()
    published = [
        {**line, "metrics": {name: line["curves"][name][-1] for name in names}}
        for line in lines
        if line["settings"]["alignment"] == "same"
    ]
    for name in names:
        title = name.upper().replace("_ALL", ", all")
        for other in LINKS[1:]:
            if gap := difference(published, name, "free", other):
                within = "one seed"
                if gap.interval:
                    low, high = gap.interval
                    within = f"95 % interval {low:+.2f} to {high:+.2f}, {len(gap.per_seed)} seeds"
                print(f"- {title}: free minus {describe(other)} is {gap.mean:+.2f} ({within})")


def table(chosen: argparse.Namespace) -> None:
    """Markdown, from the results; one part for each model."""
    lines = read(chosen.results)
    if not lines:
        print(f"{chosen.results} holds nothing yet.")
    for base in (line for line in lines if line["kind"] == "base"):
        same = {"model": base["model"], "subset": subset_of(base)}
        of_model = [
            line for line in lines if line["kind"] == "run" and same.items() <= line["settings"].items()
        ]
        print(f"\n### {base['model']}" + f", subset {same['subset']}" * (same["subset"] > 0) + "\n")
        if base["pretraining"]:
            made = base["pretraining"]
            print(
                f"Perplexity of masked tokens in {made['held_out']:,} held-out sentences: "
                f"{made['before']:,.1f} before, {made['after']:.1f} after {made['settings']['epochs']} "
                f"epochs over {made['sentences']:,} sentences in {made['seconds']:.0f} s.\n"
            )
        if part := [line for line in of_model if line["recipe"] == "mabel"]:
            mabel_table(base, part)
        if part := [line for line in of_model if line["recipe"] == "sentences"]:
            print()
            head("link", "STS-B test", "STS-B dev", "seeds")
            row("none: the model before", *(f"{base['stsb'][name]:.2f}" for name in ("test", "dev")), "")
            for link in LINKS:
                if own := [line["metrics"] for line in part if line["link"] == link]:
                    cells = [spread([found[name] for found in own]) for name in ("test", "dev")]
                    row(describe(link), *cells, str(len(own)))
            print()
            for name in ("test", "dev"):
                print(f"- {difference(part, name, 'free', '0.05')}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "mabel.jsonl")
    commands = parser.add_subparsers(dest="command", required=True)
    copy = commands.add_parser("half", help="a copy of a model's folder in float16")
    copy.add_argument("source", type=Path)
    copy.add_argument("target", type=Path)
    train = commands.add_parser("run", help="do the runs that are not in the results")
    train.add_argument("--data", type=Path, required=True, help="folder with snli, bias, stsb and text")
    train.add_argument("--encoder", type=Path, help="folder of the encoder to adapt")
    train.add_argument("--model", help="a masked language model to take as it is")
    train.add_argument("--pretrain-epochs", type=int, default=20)
    train.add_argument("--seeds", type=int, default=10)
    train.add_argument("--subset", type=int, default=0, help="pairs and examples at most, for a look")
    add_training_options(train, "mabel")
    add_precision_option(train)
    commands.add_parser("table", help="only print the tables")
    chosen = parser.parse_args()
    for name in ("data", "encoder", "results", "runs", "source", "target"):
        if getattr(chosen, name, None) is not None:
            setattr(chosen, name, getattr(chosen, name).resolve())
    os.chdir(ROOT)  # the model's folder is named in the results, relative to this one
    if chosen.command == "half":
        half(chosen.source, chosen.target)
    elif chosen.command == "run":
        try:
            with stopping(chosen.seconds):
                run(chosen)
        except KeyboardInterrupt:
            print("Stopped; the same command goes on.")
    else:
        table(chosen)


if __name__ == "__main__":
    main()
