"""``taufree score``: how anomalous new images are, by a network that was trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, imports, path, refusing, writable, writing


def score(
    model: Annotated[
        Path,
        typer.Argument(parser=path, metavar="MODEL", help="A file of OUT/models that --save-model wrote."),
    ],
    data: Annotated[Path, typer.Argument(parser=path, metavar="FOLDER", help="Images, at any depth.")],
    out: Annotated[Path, typer.Option(parser=path, help="The CSV file.")] = Path("scores.csv"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Score new data by a network of taufree run msc.

    The score of an image is its distance from the nearest normal images of the training, which the model
    file has. The most anomalous stand first; where to draw the line is yours to say.

    \b
    Example:
      taufree run msc --data FOLDER --set normal=good --links free --save-model
      taufree score runs/msc/models/msc-free-seed0-*.safetensors NEW --out new.csv
    """
    from taufree.util.machine import check_device, choose_device

    with refusing():  # before the imports below, which take seconds
        check_device(device, "32-true")
    with imports():
        import pandas as pd

        from taufree.experiments.training.saved_model import read_model
        from taufree.util.files import write_text

    sys.path.append(str(Path.cwd()))  # for recipes of one's own, as taufree run does
    with refusing(OSError):
        found = read_model(model, choose_device(device, "32-true"))
        writable(out, out.parent)
        with bar("scoring") as watch:
            rows = found.recipe.score_new(found.model, found.saved, data, watch)
    for note in found.recipe.notes:
        print(note, file=sys.stderr)
    with writing(out):
        write_text(out, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    typer.echo(f"{len(rows)} scores: {out}")
