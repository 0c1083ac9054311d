"""A trained network as files that need no torchcaps: ONNX, a program of torch.export, the playground as a page."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps.cli.options import console
from torchcaps.cli.play import load_all
from torchcaps.data import class_names
from torchcaps.integrations.export import TOLERANCE, Exported, export_onnx, export_program
from torchcaps.play.web import export_web
from torchcaps.pretrained import open_model

Networks = Annotated[
    list[Path] | None, typer.Argument(metavar="[CHECKPOINT]...", help="a checkpoint or a name of `torchcaps pretrained`; --web: any number")
]


def export(
    checkpoints: Networks = None,
    onnx: Annotated[Path | None, typer.Option(help="write an ONNX file here, as net.onnx")] = None,
    program: Annotated[Path | None, typer.Option(help="write PyTorch's exported program here, as net.pt2")] = None,
    web: Annotated[
        Path | None, typer.Option(help="write the playground into this folder, as plain files that compute in the browser")
    ] = None,
    runtime: Annotated[
        Path | None, typer.Option(help="of --web, onnxruntime-web: folder of its npm package, or .tgz of `npm pack`")
    ] = None,
) -> None:
    """A trained network as ONNX or as a program of torch.export: any number of images at once, compared with the network first.

    Or the playground as plain files, with your networks beside those that come along.
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
            raise ValueError(f"{option} writes into a folder, and {folder} is a file; name another folder, or move the file away")
    if onnx or program:
        model, run, _ = open_model(given[0], torch.device("cpu"))
        if program is not None:
            _tell(export_program(model, run, program))
        if onnx is not None:
            _tell(export_onnx(model, run, onnx, class_names(run.data)))
    if web is not None:
        _page(web, given, runtime)


def _page(folder: Path, checkpoints: list[Path], runtime: Path | None) -> None:
    networks, sentences = load_all(checkpoints, None)
    if sentences:
        raise ValueError(f"{sentences.name} needs a transformer, which does not run in the page; leave it out, or use `torchcaps play`")
    written = export_web(folder, networks, runtime)
    size = sum(path.stat().st_size for path in written) / 2**20
    print(f"{len(written)} files, {size:.1f} MiB in {folder}; look at them with `python3 -m http.server --bind 127.0.0.1 -d {folder}`")


def _tell(made: Exported) -> None:
    ties = f"; on {made.n_ties} more, capsules of equal rank changed places by rounding" if made.n_ties else ""
    same = f"on {made.n_pictures - made.n_ties} inputs within {made.largest:.1e} of the network, allowed {TOLERANCE:g}{ties}"
    console.print(f"wrote {made.path}: {same}", soft_wrap=True, highlight=False)
