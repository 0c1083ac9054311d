"""The playground's commands."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps.checkpoint import load_model
from torchcaps.cli.options import Root, say
from torchcaps.models import EMSentenceNet
from torchcaps.play.networks import Network, bundled_networks, network_of
from torchcaps.play.sentences import SentenceReader
from torchcaps.play.server import Answers, serve
from torchcaps.play.web import export_web as write_web

Checkpoints = Annotated[list[Path] | None, typer.Argument(help="networks of your own beside those that come along; any number")]


def play(
    checkpoints: Checkpoints = None,
    host: Annotated[str, typer.Option(help="127.0.0.1: this machine alone; 0.0.0.0: the network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free")] = 8017,
    data: Root = None,
) -> None:
    """Draw digits in a browser and watch capsules read them, with networks that come along or your own."""
    networks, sentences = load_all(checkpoints or [], data)
    serve(Answers(networks, sentences), host, port, lambda line: print(line, flush=True))


def export_web(
    folder: Annotated[Path, typer.Argument(help="where the files go")],
    checkpoints: Checkpoints = None,
    runtime: Annotated[Path | None, typer.Option(help="onnxruntime-web: the folder of its npm package, or the .tgz of `npm pack`")] = None,
) -> None:
    """Write the playground as plain files that compute in the browser, for any server of plain files."""
    networks, sentences = load_all(checkpoints or [], None)
    if sentences:
        raise ValueError(f"{sentences.name} needs a transformer, which does not run in the page; leave it out, or use `torchcaps play`")
    written = write_web(folder, networks, runtime)
    size = sum(path.stat().st_size for path in written) / 2**20
    print(f"{len(written)} files, {size:.1f} MiB in {folder}; look at them with `python3 -m http.server --bind 127.0.0.1 -d {folder}`")


def load_all(checkpoints: list[Path], root: Path | None) -> tuple[list[Network], SentenceReader | None]:
    """The user's own networks first, then those that come along."""
    networks, sentences = [], None
    for path in checkpoints:
        model, run, about = load_model(path, torch.device("cpu"))
        if isinstance(model, EMSentenceNet):
            say(f"loading the transformer of {about['name']}")
            sentences = SentenceReader(model, run, f"{about['name']} seed {about['seed']}", root)
        else:
            found = network_of(model, run, about)
            taken = {network.name for network in networks}
            networks.append(found if found.name not in taken else network_of(model, run, about, str(path)))
    return networks + bundled_networks(), sentences
