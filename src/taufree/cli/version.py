"""``taufree --version``, and what ``taufree --help`` says first."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Annotated

import typer

from taufree.cli.messages import imports


def _show_version(asked: bool) -> None:
    if asked:
        from taufree import __version__

        typer.echo(f"taufree {__version__}")
        for line in _machine_lines():
            typer.echo(line)
        raise typer.Exit


def _machine_lines() -> Iterator[str]:
    """What a report of a problem needs: versions, devices, and which backends can run."""
    try:
        with imports():
            import torch

            from taufree.backends import unavailable
    except (ImportError, OSError) as error:  # OSError: libraries of CUDA that do not fit
        yield f"Python {platform.python_version()}; PyTorch cannot be imported: {error}"
        return
    try:
        import triton

        kernels = f"Triton {triton.__version__}"
    except ImportError:
        kernels = "no Triton"
    yield f"Python {platform.python_version()}, PyTorch {torch.__version__}, {kernels}"
    yield _gpu_line()
    for name, reason in unavailable().items():
        yield f"backend {name}: {'can run here' if reason is None else f'cannot run here: {reason}'}"


def _gpu_line() -> str:
    import torch

    if torch.version.hip:
        made_for = f"ROCm {torch.version.hip}"
    elif torch.version.cuda:
        made_for = f"CUDA {torch.version.cuda}"
    else:
        return "CUDA: this PyTorch is built without it"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(i) for i in range(count)))
    return f"{made_for}: {f'{count} x {names}' if count else 'PyTorch finds no device'}"


def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions, the devices and which backends can run here, and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Contrastive learning without a temperature: compare, draw, diagnose.

    Start with: taufree run
    """
