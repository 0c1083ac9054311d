"""Commands about rows that train no network: features for later, and the rows themselves."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps.analysis.classifiers import processes
from torchcaps.cli.options import Device, Root, console, seeds_of
from torchcaps.papers import RECIPES
from torchcaps.probes.carry_out import Place, derive
from torchcaps.probes.features import Missing, look
from torchcaps.probes.kinds import Attack, Reading
from torchcaps.results.store import DEFAULT_SEEDS, make_result, write_result
from torchcaps.runtime.environment import make_folder, pick_device
from torchcaps.train.recipe import Recipe, quick

Jobs = Annotated[int | None, typer.Option(help="processes that fit support vector machines; default: one for each core, if memory allows")]


def is_derived(recipe: Recipe) -> bool:
    return isinstance(recipe.make(), Reading)


def with_networks(recipes: list[Recipe]) -> list[Recipe]:
    """These, and before them the rows that they read."""
    runs = [recipe.make() for recipe in recipes]
    read = [run.of for run in runs if isinstance(run, Reading)] + [run.source.of for run in runs if isinstance(run, Attack) and run.source]
    return list(dict.fromkeys([*(RECIPES[name] for name in read if name), *recipes]))


def derive_one(recipe: Recipe, seed: int, device: str, data: Path | None, smoke: bool, jobs: int | None, runs: Path = Path("runs")) -> Path:
    """Carry out the row; its result lies where a trained row's would."""
    run = quick(recipe.make()) if smoke else recipe.make()
    kind = "-quick" * smoke
    own = runs / (recipe.name + kind) / str(seed)
    make_folder(own)
    place = Place(
        folder_of=lambda name: runs / (name + kind) / str(seed),
        own=own,
        device=pick_device(device),
        seed=seed,
        root=data,
        jobs=jobs or processes(),
    )
    path = own / "result.json"
    write_result(path, make_result(recipe.name + kind, seed, run, derive(run, place)))
    return path


def features(
    name: Annotated[str, typer.Argument(help="a paper, rawlinson2018, or one trained row, rawlinson2018/like-sparse")],
    seeds: Annotated[str, typer.Option(help="which seeds")] = DEFAULT_SEEDS,
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Compute what classifiers need of finished networks, into runs/ROW/SEED/features: `reproduce` fits them later, without a GPU."""
    readings = [recipe.make() for recipe in RECIPES.values() if is_derived(recipe)]
    wanted = {(run.of, pool): run for run in readings if run.features != "pixels" and _asked(run.of, name) for pool in run.pools()}
    if not wanted:
        raise ValueError(f"nothing reads {name!r}; rows that are read: {', '.join(sorted({run.of for run in readings if run.of}))}")
    for seed in seeds_of(seeds):
        for (of, pool), run in wanted.items():
            folder = Path("runs") / of / str(seed)
            try:
                seen = look(run, pool, folder, pick_device(device), data, seed)
            except Missing:  # not begun, or not to its end; the other rows have theirs all the same
                console.print(f"{of} seed {seed}: not trained here", soft_wrap=True)
                continue
            console.print(f"{of} seed {seed}: {len(seen.poses):,} of {pool} in {folder / 'features'}", soft_wrap=True)


def _asked(of: str, name: str) -> bool:
    return of == name or of.startswith(name + "/")
