"""``taufree bias``: how biased is a masked language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, check_data_folder, imports, path, refusing, writable, writing


def bias(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A masked language model: a name on the hub or a folder.")
    ],
    data: Annotated[
        Path,
        typer.Option(
            parser=path,
            envvar="TAUFREE_DATA",
            help="Folder with bias/dev.json or bias/stereoset.jsonl, and bias/crows_pairs_anonymized.csv.",
        ),
    ],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the answers to every example.")] = Path(
        "bias"
    ),
) -> None:
    """Measure the bias of a masked language model.

    By StereoSet and CrowS-Pairs: LM is best at 100; SS and CrowS-Pairs are shares of preferred stereotypes,
    best at 50; ICAT is LM times how near SS is to 50. OUT/stereoset.jsonl and OUT/crows.jsonl hold each
    example's scores, one a line.

    \b
    Example:
      taufree bias bert-base-uncased --data FOLDER --out bias
    """
    with refusing():  # before the imports below, which take seconds
        check_data_folder(data)
    with imports():
        from taufree.experiments.language.crows import crows_pairs, crows_share, read_crows
        from taufree.experiments.language.scoring import write_rows
        from taufree.experiments.language.stereoset import (
            find_stereoset,
            read_stereoset,
            stereoset,
            stereoset_summary,
        )
        from taufree.experiments.language.tokens import load_masked_lm, load_tokenizer
        from taufree.util.machine import choose_device

    with refusing():
        chosen = choose_device(device, "32-true")
        contexts = read_stereoset(find_stereoset(data))
        pairs = read_crows(data / "bias" / "crows_pairs_anonymized.csv")
        network, missing = load_masked_lm(model)
        if missing:
            raise ValueError(
                f"model must be a whole masked language model, but {model} is without {missing[0]}."
            )
        tokenizer = load_tokenizer(model)
        writable(out, out)
        with bar("StereoSet") as watch:
            answers = stereoset(network.to(chosen), tokenizer, contexts, watch)
        with bar("CrowS-Pairs") as watch:
            choices = crows_pairs(network, tokenizer, pairs, watch)
    with writing(out):
        write_rows(answers, out / "stereoset.jsonl")
        write_rows(choices, out / "crows.jsonl")
    kinds = [None, *sorted({row["bias_type"] for row in answers})]
    for kind in kinds:
        found = stereoset_summary(answers, kind)
        count = sum(kind in (None, row["bias_type"]) for row in answers)
        typer.echo(
            f"StereoSet, {kind or 'all'} ({count} contexts): LM {found['lm']:.2f}, SS {found['ss']:.2f}, "
            f"ICAT {found['icat']:.2f}"
        )
    for kind in [None, *sorted({row["bias_type"] for row in choices})] if choices else []:
        count = sum(kind in (None, row["bias_type"]) for row in choices)
        typer.echo(f"CrowS-Pairs, {kind or 'all'} ({count} pairs): {crows_share(choices, kind):.2f}")
    if left_out := len(pairs) - len(choices):
        typer.echo(
            f"{left_out} of {len(pairs)} pairs of CrowS-Pairs are left out: in this model's tokens one "
            "sentence only adds to the other."
        )
    typer.echo(f"Each example: {out}")
