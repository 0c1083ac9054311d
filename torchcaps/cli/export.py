"""A checkpoint as a file that needs no torchcaps."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps import data as datasets
from torchcaps.checkpoint import load_model
from torchcaps.cli.options import console
from torchcaps.cli.own import class_names
from torchcaps.export import TOLERANCE, Exported, export_onnx, export_program


def export(
    checkpoint: Path,
    onnx: Annotated[Path | None, typer.Option(help="write an ONNX file here, as net.onnx")] = None,
    program: Annotated[Path | None, typer.Option(help="write PyTorch's exported program here, as net.pt2")] = None,
) -> None:
    """A trained network as ONNX or as a program of torch.export: any number of images at once, compared with the network first."""
    if onnx is None and program is None:
        raise ValueError("say what to write: --onnx net.onnx, --program net.pt2, or both")
    model, run, _ = load_model(checkpoint, torch.device("cpu"))
    names = class_names(run) if datasets.info(run.data).kind == "images" else ()
    if program is not None:
        _tell(export_program(model, run, program))
    if onnx is not None:
        _tell(export_onnx(model, run, onnx, names))


def _tell(made: Exported) -> None:
    ties = f"; on {made.n_ties} more, capsules of equal rank changed places by rounding" if made.n_ties else ""
    same = f"on {made.n_pictures - made.n_ties} inputs within {made.largest:.1e} of the network, allowed {TOLERANCE:g}{ties}"
    console.print(f"wrote {made.path}: {same}", soft_wrap=True, highlight=False)
