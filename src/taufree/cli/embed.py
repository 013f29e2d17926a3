"""``taufree embed``: vectors of new data by a network that was trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taufree.cli.messages import bar, imports, path, refusing, writable, writing

SUFFIXES = (".npz", ".npy", ".csv")


def embed(
    model: Annotated[
        Path,
        typer.Argument(parser=path, metavar="MODEL", help="A file of OUT/models that --save-model wrote."),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            parser=path, metavar="DATA", help="A folder of images; of sentences a text file, one a line."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            parser=path, help="The file: .npz (names, vectors), .npy (vectors) or .csv (name, x0, x1, ...)."
        ),
    ] = Path("embeddings.npz"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Embed new data by a network of taufree run.

    The vectors are those that the recipe judges: features behind the head of images, the vectors themselves
    of clip and sentences.

    \b
    Examples:
      taufree run images --data FOLDER --save-model
      taufree embed runs/images/models/images-free-seed0-*.safetensors NEW --out new.npz
      taufree diagnose new.npz --columns vectors --labels labels.npy
    """
    from taufree.util.machine import check_device, choose_device

    with refusing():  # before the imports below, which take seconds
        check_device(device, "32-true")
        if out.suffix not in SUFFIXES:
            raise ValueError(f"--out must end with one of {', '.join(SUFFIXES)}, got {out}.")
    with imports():
        from taufree.experiments.evaluation.vector_files import save_vectors
        from taufree.experiments.training.saved_model import read_model

    sys.path.append(str(Path.cwd()))  # for recipes of one's own, as taufree run does
    with refusing(OSError):
        found = read_model(model, choose_device(device, "32-true"))
        writable(out, out.parent)
        with bar("embedding") as watch:
            names, vectors = found.recipe.embed_new(found.model, data, watch)
    for note in found.recipe.notes:
        print(note, file=sys.stderr)
    with writing(out):
        save_vectors(out, names, vectors)
    typer.echo(f"{len(names)} vectors of {vectors.shape[1]} numbers: {out}")
