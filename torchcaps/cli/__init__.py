"""Command line of torchcaps. It takes names, seeds and paths; all hyperparameters are in recipes."""

import os
import sys
from typing import Annotated

import typer

from torchcaps import __version__
from torchcaps.cli import bench, checkpoints, data, listing, probes, recipes, reproduction, training
from torchcaps.cli.explain import explain
from torchcaps.cli.export import export
from torchcaps.cli.image_folder import predict
from torchcaps.cli.imports import import_published
from torchcaps.cli.options import console
from torchcaps.cli.play import play
from torchcaps.cli.pretrained import pretrained, release
from torchcaps.cli.sweep import Failed
from torchcaps.cli.tune import tune
from torchcaps.data.sources.files import cache_folder
from torchcaps.runtime.compiled import keep_compiled
from torchcaps.runtime.distributed import Lost, started
from torchcaps.runtime.files import clear_cache
from torchcaps.train import Diverged, Interrupted

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        print(f"torchcaps {__version__}")
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Capsule networks in PyTorch."""


def main() -> None:
    """Run the command line. User errors print one line and exit with code 2; TORCHCAPS_DEBUG=1 shows the traceback."""
    rank, size = started()
    if size > 1 and sys.argv[1:2] != ["train"]:
        _leave(
            f"{size} processes were started together, which is for `torchcaps train` alone; "
            "give this command by itself",
            2,
        )
    console.quiet = rank > 0  # only the first process prints
    keep_compiled(cache_folder(), lambda line: None if rank else print(f"torchcaps: {line}", file=sys.stderr))
    clear_cache(cache_folder())
    try:
        app()
    except Interrupted as stop:
        _leave(str(stop), 128 + stop.signum)
    except (Diverged, Lost, Failed) as error:
        _leave(str(error), 1)
    except (ValueError, OSError) as error:
        if os.environ.get("TORCHCAPS_DEBUG"):
            raise
        # str(OSError) begins with an errno, which does not help users
        _leave(
            f"{error.strerror} ({error.filename})" if isinstance(error, OSError) and error.filename else str(error), 2
        )


def _leave(message: str, code: int) -> None:
    rank, size = started()
    print(f"torchcaps{f' (process {rank + 1} of {size})' if size > 1 else ''}: {message}", file=sys.stderr)
    sys.exit(code)


# --help lists groups and commands in this order: what a newcomer wants comes first
START, MODELS, PAPERS, WORK = "Start here", "Trained models", "Papers", "Data and speed"
app.command(rich_help_panel=START)(training.demo)
app.command(rich_help_panel=START)(play)
app.command("train", rich_help_panel=START)(training.train_one)
app.command(rich_help_panel=START)(predict)
app.command(rich_help_panel=MODELS)(pretrained)
app.command("eval", rich_help_panel=MODELS)(checkpoints.evaluate)
app.command(rich_help_panel=MODELS)(checkpoints.figures)
app.command(rich_help_panel=MODELS)(explain)
app.command(rich_help_panel=MODELS)(checkpoints.equivariance)
app.command(rich_help_panel=MODELS)(export)
app.command("release", rich_help_panel=MODELS)(release)
app.command("import", rich_help_panel=MODELS)(import_published)
app.command("ls", rich_help_panel=PAPERS)(listing.list_recipes)
app.command(rich_help_panel=PAPERS)(recipes.show)
app.command("table", rich_help_panel=PAPERS)(listing.print_table)
app.command(rich_help_panel=PAPERS)(reproduction.reproduce)
app.command("verify", rich_help_panel=PAPERS)(recipes.verify_result)
app.command("compare", rich_help_panel=PAPERS)(recipes.compare_results)
app.command(rich_help_panel=PAPERS)(tune)
app.command(rich_help_panel=PAPERS)(probes.features)
app.add_typer(data.app, name="data", rich_help_panel=WORK)
app.add_typer(bench.app, name="bench", rich_help_panel=WORK)
