"""`torchcaps export`: write ONNX, a torch.export program, or the playground as static files."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps.cli.columns import tell_text
from torchcaps.cli.play import load_all
from torchcaps.data import class_names
from torchcaps.integrations.export import TOLERANCE, Exported, export_onnx, export_program
from torchcaps.play.web import export_web
from torchcaps.pretrained import open_model

SMALL = 3_000_000  # bytes of a bundled network in the page as files: each visitor fetches it, in twice the bytes
Networks = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[CHECKPOINT]...", help="a checkpoint or a name from `torchcaps pretrained`; --web takes several"
    ),
]


def export(
    checkpoints: Networks = None,
    onnx: Annotated[Path | None, typer.Option(help="path of the ONNX file to write, such as net.onnx")] = None,
    program: Annotated[
        Path | None, typer.Option(help="path of the torch.export program to write, such as net.pt2")
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(help="folder for the playground as static files that run in the browser"),
    ] = None,
    runtime: Annotated[
        Path | None, typer.Option(help="--web only: folder or `npm pack` archive of onnxruntime-web")
    ] = None,
) -> None:
    """Export a trained model as ONNX or a torch.export program, or the playground as static files.

    Batch size stays free. Outputs are compared with the PyTorch model before the file is written.
    """
    given = checkpoints or []
    if onnx is None and program is None and web is None:
        raise ValueError("say what to write: --onnx net.onnx, --program net.pt2, --web FOLDER, or several of them")
    if runtime is not None and web is None:
        raise ValueError("--runtime is what a page computes with; give --web FOLDER too, or leave it out")
    if (onnx or program) and len(given) != 1:
        raise ValueError(f"--onnx and --program write one network, got {len(given)} checkpoints; give one")
    for option, folder in (("--onnx", onnx and onnx.parent), ("--program", program and program.parent), ("--web", web)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(
                f"{option} writes into a folder, and {folder} is a file; name another folder, or move the file away"
            )
    if onnx or program:
        model, run, _ = open_model(given[0], torch.device("cpu"))
        if program is not None:
            _tell(export_program(model, run, program))
        if onnx is not None:
            _tell(export_onnx(model, run, onnx, class_names(run.data)))
    if web is not None:
        _page(web, given, runtime)


def _page(folder: Path, checkpoints: list[Path], runtime: Path | None) -> None:
    networks, sentences = load_all(checkpoints, None, SMALL)
    if sentences:
        raise ValueError(
            f"{sentences.name} needs a transformer, which does not run in the page; "
            "leave it out, or use `torchcaps play`"
        )
    written = export_web(folder, networks, runtime)
    size = sum(path.stat().st_size for path in written) / 2**20
    print(
        f"{len(written)} files, {size:.1f} MiB in {folder}; "
        f"view them with `python3 -m http.server --bind 127.0.0.1 -d {folder}`"
    )


def _tell(made: Exported) -> None:
    ties = f"; on {made.n_ties} more, tied capsules changed order by rounding" if made.n_ties else ""
    same = f"{made.n_pictures - made.n_ties} inputs differ by at most {made.largest:.1e}, allowed {TOLERANCE:g}{ties}"
    tell_text(f"wrote {made.path}: {same}")
