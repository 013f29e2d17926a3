"""The command ``taufree``: train with each link, draw the paper's figures, diagnose embeddings.

Everything heavy is imported inside the commands, so that ``taufree --help`` answers at once.
Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError:  # main() says what to install
    typer = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from taufree.experiments.results import Line

_INSTALL = 'the command taufree needs {} as well: pip install "taufree[cli]"'


def run(
    recipe: Annotated[
        str, typer.Argument(help="What to train: digits, citeseer, imagenette, cifar10 or images.")
    ] = "digits",
    links: Annotated[
        str, typer.Option(help="Comma-separated: free, calibrated, learnable, gain=2, or a temperature.")
    ] = "free,0.1,0.25,0.5,1,learnable",
    preset: Annotated[str, typer.Option(help="full, or quick for a look in a minute.")] = "full",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each link.  [default: the preset's]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [default: the preset's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs in a batch.  [default: the recipe's]")] = None,
    mask: Annotated[
        str | None,
        typer.Option(help="citeseer: nt-xent, or pygcl, which counts an anchor among its own candidates."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(
            help="32-true, bf16-mixed, 16-mixed, 64-true, ...  [default: 32-true; for images on CUDA "
            "bf16-mixed]"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="TAUFREE_DATA",
            help="Folder of the recipe's data: planetoid/CiteSeer/raw, imagenette2-160 or cifar10.npz in it, "
            "downloaded if not given. For images the folder itself: train/CLASS and val/CLASS, or CLASS.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results and report.  [default: runs/RECIPE]")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share the cores.")] = 1,
) -> None:
    """Train with each link side by side, and compare.

    Seeds are paired: every link of a seed starts from the same weights and sees the same batches. Each
    finished run is one line in OUT/results.jsonl and is not run again; an interrupted command, given again,
    goes on where it stopped. At the end: a table, free minus the best temperature, and OUT/report.html.

    \b
    Examples:
      taufree run                                    all links on digits, about two minutes
      taufree run digits --links free,0.07,0.2 --seeds 5
      taufree run digits --epochs 200 --jobs 2 --out runs/long
      taufree run citeseer --preset quick            a graph; without the preset as in the paper
      taufree run imagenette --preset quick          images; on a GPU without the preset
      taufree run images --data FOLDER --links free,0.5

    Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
    """
    _need("lightning")  # only the workers import it, and this is the place to say that it is missing
    from taufree.experiments.environment import choose_device
    from taufree.experiments.link_names import parse_links
    from taufree.experiments.recipe import choose_settings, find_recipe
    from taufree.experiments.report import write_report
    from taufree.experiments.run import BadInputError, Run
    from taufree.experiments.summary import free_against_best
    from taufree.experiments.sweep import sweep

    out = out or Path("runs") / recipe
    console = Console(stderr=True)
    try:
        names = parse_links(links)
        given = {"epochs": epochs, "batch_size": batch_size, "mask": mask}
        chosen = find_recipe(recipe)
        settings, usual = choose_settings(chosen, preset, given)
        device = choose_device(device, precision or "32-true")
        precision = precision or (chosen.gpu_precision if device == "cuda" else "32-true")
    except ValueError as error:
        _refuse(error)
    runs = [
        Run(recipe, link, seed, settings, precision, device, data)
        for seed in range(seeds or usual)
        for link in names
    ]
    try:
        outcome = sweep(runs, out, jobs=jobs, console=console)
    except BadInputError as error:
        _refuse(error)
    if outcome.lines:
        report = write_report(outcome.lines, out / "report.html")
        show = Console(soft_wrap=True)
        show.print(_result_table(outcome.lines))
        for gap in free_against_best(outcome.lines):
            show.print(str(gap), highlight=False)
        show.print(f"Report: {report}", highlight=False)
    if outcome.interrupted:
        console.print(
            f"Stopped. {outcome.done} of {len(runs)} runs are in {out / 'results.jsonl'}; "
            "give the same command again to go on.",
            soft_wrap=True,
        )
        raise typer.Exit(130)
    if outcome.failed:
        console.print(f"{len(outcome.failed)} of {len(runs)} runs failed, see above.", style="red")
        raise typer.Exit(1)


def figures(
    out: Annotated[Path, typer.Option(help="Folder to draw into; made if it is not there.")] = Path(
        "figures"
    ),
) -> None:
    """Draw the paper's figures from the closed forms.

    \b
    Example:
      taufree figures --out figures
    """
    from taufree.diagnostics.figures import draw_figures

    try:
        with _bar("drawing") as watch:
            paths = draw_figures(out, watch=watch)
    except ValueError as error:
        _refuse(error)
    except OSError as error:
        _refuse(f"--out {out} cannot be written to: {error.strerror}.")
    for path in paths:
        typer.echo(path)


def diagnose(
    file: Annotated[Path, typer.Argument(help="Embeddings: .npy, .npz, .safetensors or .parquet.")],
    second: Annotated[Path | None, typer.Argument(help="Their positives, row by row.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Integer labels; rows that share one are positives.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("diagnosis"),
) -> None:
    """Say whether a temperature hurts given embeddings.

    Shows what each temperature, and none, would do with them.

    FILE may hold two arrays (the two views), or one with SECOND or --labels beside it.

    \b
    Examples:
      taufree diagnose image.npy text.npy
      taufree diagnose embeddings.npy --labels labels.npy --out diagnosis
    """
    from taufree.diagnostics import diagnosis_page, embeddings, files

    try:
        first, pairs, groups = files.load_embeddings(file, second, labels)
        with _bar("anchors looked at") as watch:
            found = embeddings.diagnose(first, pairs, labels=groups, watch=watch)
    except (ValueError, TypeError, OSError) as error:
        _refuse(error)
    try:
        page = diagnosis_page.write_diagnosis(found, out)
    except ValueError as error:
        _refuse(error)
    except OSError as error:
        _refuse(f"--out {out} cannot be written to: {error.strerror}.")
    for line in found.summary():
        typer.echo(line)
    typer.echo(f"Page: {page}")


def bench(
    n: Annotated[
        str | None,
        typer.Option(help="Pairs in a batch, comma-separated.  [default: 4096,16384; 1024,4096 on a CPU]"),
    ] = None,
    d: Annotated[
        str | None, typer.Option(help="Columns, comma-separated.  [default: 512; 128 on a CPU]")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16 or float32.  [default: bfloat16; float32 on a CPU]"),
    ] = None,
    loss: Annotated[str, typer.Option(help="symmetric (CLIP) or nt-xent (SimCLR).")] = "symmetric",
    out: Annotated[Path, typer.Option(help="Where the JSON goes.")] = Path("bench.json"),
) -> None:
    """Time the losses on this machine, beside dense code and other libraries.

    A step is a forward and a backward. The floor is the time of the operations that no exact way can do
    without, at the rate of a large matrix product measured in the same run. Libraries that are installed
    are measured too, with a temperature; what fails or runs out of memory is a line that says so.

    \b
    Examples:
      taufree bench                                  a minute or two
      taufree bench --n 4096,65536 --d 128,512 --out mine.json
      taufree bench --loss nt-xent --dtype float32
    """
    import torch

    from taufree.bench.measure import save
    from taufree.bench.run import DEFAULTS, check, numbers, remarks, table_row
    from taufree.bench.run import bench as measure

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = [given or default for given, default in zip((n, d, dtype), DEFAULTS[device], strict=True)]
    try:
        if out.is_dir():
            raise ValueError(f"--out must be a file, got the folder {out}.")
        ns, ds = numbers("n", given[0]), numbers("d", given[1])
        check(given[2], loss)
    except ValueError as error:
        _refuse(error)
    with _bar("measuring") as watch:
        result = measure(ns, ds, given[2], loss, device, watch)
    rows = [table_row(row) for row in result["rows"]]
    table = Table(title=f"{loss}, {given[2]}: a forward and a backward")
    for name in rows[0]:
        table.add_column(name, justify="right" if name in ("ms", "of floor", "MiB") else "left")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    show = Console(soft_wrap=True)
    show.print(table)
    for line in remarks(result):
        show.print(line, highlight=False, markup=False)
    try:
        save(result, out)
    except OSError as error:
        _refuse(f"--out {out} cannot be written to: {error.strerror}.")
    show.print(f"Results: {out}", highlight=False, markup=False)


def build() -> typer.Typer:
    """The command with its subcommands."""
    app = typer.Typer(
        name="taufree",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help is filled to the width of the terminal and can be piped
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for command in (run, figures, diagnose, bench):
        app.command()(command)
    return app


def main() -> None:
    """The console entry."""
    if typer is None:
        sys.exit(_complain(_INSTALL.format("typer and rich")))
    try:
        build()(prog_name="taufree")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("taufree"):
            raise
        sys.exit(_complain(_INSTALL.format(error.name)))


def _show_version(asked: bool) -> None:
    if asked:
        from taufree import __version__

        typer.echo(f"taufree {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Contrastive learning without a temperature: compare, draw, diagnose.

    Start with: taufree run
    """


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise ModuleNotFoundError(name=package)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, gone when done; gives what to call with how much is done, of how much."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _refuse(reason: object) -> NoReturn:
    raise typer.Exit(_complain(" ".join(str(reason).split())))


def _complain(sentence: str) -> int:
    print(f"taufree: {sentence}", file=sys.stderr)
    return 2


def _result_table(lines: list[Line]) -> Table:
    from taufree.experiments.report import stressed_rows, table_rows

    rows = table_rows(lines)
    table = Table(title=f"{lines[0]['recipe']}: mean ± std over seeds, higher is better")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("link", "note") else "right")
    for number, row in enumerate(rows):
        table.add_row(*row.values(), style="bold" if number in stressed_rows(rows) else None)
    return table
