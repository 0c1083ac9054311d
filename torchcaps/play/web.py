"""Playground as static files: the same page, with ONNX models that onnxruntime-web runs in the browser.

onnxruntime-web is not part of torchcaps; it is copied from an npm package.
"""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.integrations.export import to_onnx
from torchcaps.play.networks import Network, Seen
from torchcaps.play.server import PAGE
from torchcaps.runtime.files import write_whole

RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
HOW = "run `npm install onnxruntime-web`, or `npm pack onnxruntime-web` and give the file with --runtime"


def export_web(folder: Path, networks: Sequence[Network], runtime: Path | None = None) -> list[Path]:
    """Write page, models and runtime into a folder that any static file server can serve."""
    wanted = _runtime(runtime)  # first, since nothing works without it
    files = {path.name: path.read_bytes() for path in sorted(PAGE.iterdir()) if path.is_file()}
    for number, network in enumerate(networks):
        files |= {f"network-{number}-{part}.onnx": content for part, content in onnx_parts(network).items()}
    about = [network.about() | {"files": f"network-{number}"} for number, network in enumerate(networks)]
    files["models.json"] = json.dumps({"runtime": "onnx", "networks": about, "sentences": None}).encode()
    return [write_whole(folder / name, content) for name, content in (files | wanted).items()]


def onnx_parts(network: Network) -> dict[str, bytes]:
    """Export `look`, and `draw` if the network has a decoder, as ONNX."""
    side, about = network.data.shape[1], network.about()
    parts = {"look": _onnx(network.look, torch.zeros(1, 1, side, side), list(Seen._fields))}
    if network.draw is not None:
        one = torch.zeros(1, about["n_classes"], about["d_class"])
        parts["draw"] = _onnx(network.draw, one, ["pictures"])
    return parts


def _onnx(module: nn.Module, example: torch.Tensor, outputs: list[str]) -> bytes:
    with torch.no_grad():
        program = torch.export.export(module, (example,))
    return to_onnx(program, ["given"], outputs).SerializeToString()


def _runtime(given: Path | None) -> dict[str, bytes]:
    """Read the two files of onnxruntime-web from its package folder or from an `npm pack` archive."""
    installed = (base / "node_modules/onnxruntime-web" for base in (Path.cwd(), *Path.cwd().parents))
    found = given or next((path for path in installed if path.is_dir()), None)
    if found is None:
        raise ValueError(f"onnxruntime-web is in no node_modules folder from {Path.cwd()} upward; {HOW}")
    if found.is_file():
        return _from_archive(found)
    at = found / "dist" if (found / "dist").is_dir() else found
    if missing := [name for name in RUNTIME if not (at / name).is_file()]:
        raise ValueError(f"{at} has no {' and no '.join(missing)}, so it is not onnxruntime-web; {HOW}")
    return {name: (at / name).read_bytes() for name in RUNTIME}


def _from_archive(path: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            members: dict[str, Any] = {name: archive.extractfile(f"package/dist/{name}") for name in RUNTIME}
            return {name: member.read() for name, member in members.items()}
    except (tarfile.TarError, KeyError, AttributeError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not a whole archive of onnxruntime-web ({error}); {HOW}") from error
