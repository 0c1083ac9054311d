"""`torchcaps play`: the playground in a browser."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchcaps.cli.options import Root, say
from torchcaps.models import EMSentenceNet
from torchcaps.play.networks import TITLES, Network, bundled_networks, network_of
from torchcaps.play.sentences import SentenceReader
from torchcaps.play.server import Answers, serve
from torchcaps.pretrained import at_hand, entries, open_model

Checkpoints = Annotated[list[Path] | None, typer.Argument(help="your own models, shown beside the bundled ones")]


def play(
    checkpoints: Checkpoints = None,
    host: Annotated[
        str, typer.Option(help="127.0.0.1 for this machine only, 0.0.0.0 for the whole network")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free port")] = 8017,
    data: Root = None,
) -> None:
    """Start the playground: draw digits in a browser and watch the routing of bundled or your own models."""
    networks, sentences = load_all(checkpoints or [], data)
    for name in TITLES:
        if not at_hand(name):
            say(f"{name} is not in the package; `torchcaps play {name}` fetches it")
    serve(Answers(networks, sentences), host, port, lambda line: print(line, flush=True))


def load_all(
    checkpoints: list[Path], root: Path | None, most_bytes: int | None = None
) -> tuple[list[Network], SentenceReader | None]:
    """Load the user's own networks first, then the bundled ones of at most `most_bytes`."""
    networks, sentences = [], None
    for path in checkpoints:
        model, run, about = open_model(path, torch.device("cpu"))
        if isinstance(model, EMSentenceNet):
            say(f"loading the transformer of {about['name']}")
            sentences = SentenceReader(model, run, f"{about['name']} seed {about['seed']}", root)
        else:
            # pretrained models keep the name that was typed; two checkpoints of one run are told apart by path
            found = network_of(model, run, about, str(path) if str(path) in entries() else "")
            taken = {network.name for network in networks}
            networks.append(found if found.name not in taken else network_of(model, run, about, str(path)))
    taken = {network.name for network in networks}
    return networks + [network for network in bundled_networks(most_bytes) if network.name not in taken], sentences
