"""``taufree pretrain-mlm``: train a masked language model on plain sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, check_data_folder, imports, path, refusing, writing
from taufree.util.optional import require


def pretrain_mlm(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An encoder or masked language model: a name or a folder.")
    ],
    data: Annotated[
        Path,
        typer.Option(
            parser=path,
            envvar="TAUFREE_DATA",
            help="Folder with text/*.txt or *.txt.gz, a sentence a line, and, if there, snli and mnli.",
        ),
    ],
    out: Annotated[Path, typer.Option(parser=path, help="Folder of the trained model.")],
    epochs: Annotated[int, typer.Option(help="Passes over the sentences.")] = 10,
    tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 16384,
    learning_rate: Annotated[float, typer.Option(help="The highest one.")] = 3e-4,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="32-true, bf16-mixed, ...  [default: 32-true; on CUDA bf16-mixed]")
    ] = None,
) -> None:
    """Train a masked language model on plain sentences.

    An encoder without the head that predicts words gets one. An interrupted command, given again, goes on
    where it stopped. At the end: the perplexity of masked tokens of held-out sentences, before and after.

    \b
    Example:
      taufree pretrain-mlm FOLDER/encoder --data FOLDER --out models/adapted
    """
    require("lightning", "taufree[cli]")
    with refusing():  # before the imports below, which take seconds
        check_data_folder(data)
    with imports():
        from taufree.experiments.language.pretrain import PretrainSettings, pretrain
        from taufree.util.machine import choose_device

    try:
        with refusing(), writing(out), bar("training") as watch:
            chosen = choose_device(device, "32-true" if precision is None else precision)
            settings = PretrainSettings(epochs=epochs, tokens=tokens, learning_rate=learning_rate)
            found = pretrain(
                model,
                data,
                out,
                settings,
                device=chosen,
                precision=precision or ("bf16-mixed" if chosen == "cuda" else "32-true"),
                watch=watch,
                note=lambda sentence: typer.echo(sentence, err=True),
            )
    except KeyboardInterrupt:
        typer.echo(f"Stopped; give the same command again to go on from {out}.", err=True)
        raise typer.Exit(130) from None
    typer.echo(
        f"Perplexity on {found['held_out']} held-out sentences: {found['before']:.1f} before, "
        f"{found['after']:.1f} after {epochs} epoch{'s' * (epochs > 1)} over {found['sentences']} sentences."
    )
    typer.echo(f"Model: {out}")
