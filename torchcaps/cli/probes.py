"""`torchcaps features`: compute the features that later classifiers read."""

from typing import Annotated

import typer

from torchcaps.cli.options import Device, Root, console, seeds_of
from torchcaps.papers import RECIPES
from torchcaps.probes.features import Missing, look
from torchcaps.probes.kinds import FrozenClassifier
from torchcaps.results.store import DEFAULT_SEEDS
from torchcaps.runtime.environment import pick_device
from torchcaps.train.state import run_folder


def features(
    name: Annotated[str, typer.Argument(help="a paper (rawlinson2018) or one trained row (rawlinson2018/like-sparse)")],
    seeds: Annotated[str, typer.Option(help="seeds, separated by commas")] = DEFAULT_SEEDS,
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Compute features of trained networks, so that `reproduce` can fit classifiers without a GPU.

    Writes to runs/ROW/SEED/features.
    """
    probes = [probe for probe in (recipe.make() for recipe in RECIPES.values()) if isinstance(probe, FrozenClassifier)]
    probes = [probe for probe in probes if probe.features != "pixels"]
    wanted = {(probe.of, pool): probe for probe in probes if _asked(probe.of, name) for pool in probe.pools()}
    if not wanted:
        raise ValueError(
            f"nothing reads {name!r}; rows that are read: {', '.join(sorted({probe.of for probe in probes}))}"
        )
    for seed in seeds_of(seeds):
        for (of, pool), probe in wanted.items():
            folder = run_folder(of, seed)
            try:
                seen = look(probe, pool, folder, pick_device(device), data, seed)
            except Missing:  # not trained, or not finished; the other rows go on
                console.print(f"{of} seed {seed}: not trained here", soft_wrap=True)
                continue
            console.print(f"{of} seed {seed}: {len(seen.poses):,} of {pool} in {folder / 'features'}", soft_wrap=True)


def _asked(of: str, name: str) -> bool:
    return of == name or of.startswith(name + "/")
