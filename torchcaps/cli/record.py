"""`torchcaps bench record`: time to accuracy, the seconds of training of a row over several seeds."""

from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from torchcaps.cli.options import Device, Results, Root, console, seeds_of
from torchcaps.cli.reproduction import at_hand, kept
from torchcaps.cli.threads import fast_threads
from torchcaps.cli.training import train_recipe
from torchcaps.papers import RECIPES
from torchcaps.papers.records.rows import BARS
from torchcaps.papers.records.table import LEAST, LEVEL, record_of
from torchcaps.results.claims import Recipe, find
from torchcaps.results.store import read_result, result_path, write_result
from torchcaps.runtime.environment import make_folder
from torchcaps.train import Options
from torchcaps.train.state import run_folder

SEEDS = ",".join(map(str, range(10)))


def bench_record(
    name: Annotated[
        str, typer.Argument(help=f"{', '.join(BARS)}, or another row of `torchcaps ls records`", metavar="NAME")
    ],
    seeds: Annotated[str, typer.Option(help="seeds, separated by commas")] = SEEDS,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
) -> None:
    """Measure time to accuracy: seconds of training over several seeds, and whether their error beats the bar.

    Seeds run one by one; run nothing else on the device. Finished seeds are kept, unfinished ones resume.
    """
    rows = {row: recipe for row, recipe in RECIPES.items() if row.startswith("records/")}
    recipe, wanted = find(f"records/{name.removeprefix('records/')}", rows), list(dict.fromkeys(seeds_of(seeds)))
    if len(wanted) < LEAST:
        raise ValueError(f"a record takes at least {LEAST} seeds, got --seeds {seeds}; give more, as --seeds 0,1,2")
    if not find_spec("scipy"):  # before any training
        raise ValueError("the t-test needs scipy, which is not installed; run `pip install 'torchcaps[experiments]'`")
    make_folder(results)
    at_hand([recipe], data)
    paths = {seed: result_path(results, recipe.name, seed) for seed in wanted}
    left = [seed for seed in wanted if not kept(recipe, seed, results) or "phases" not in read_result(paths[seed])]
    with fast_threads(device) if left else nullcontext():
        for seed, path in paths.items():
            if seed in left:
                options = Options(out=run_folder(recipe.name, seed), device=device, root=data)
                write_result(path, read_result(train_recipe(recipe, seed, options)))
            _tell_seed(recipe, seed, path)
    _tell(recipe, wanted, results)


def _tell_seed(recipe: Recipe, seed: int, path: Path) -> None:
    result = read_result(path)
    split, metric = recipe.claim.metric.split(".")
    times = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in result["phases"].items())
    console.print(f"{recipe.name} seed {seed}: error {result['metrics'][split][metric]:.3f} %; {times}", soft_wrap=True)


def _tell(recipe: Recipe, seeds: list[int], results: Path) -> None:
    """Print the mean over the seeds and whether it is a record."""
    record = record_of(recipe, results, seeds)
    reason = record.why_not()
    verdict = f"no record: {reason}" if reason else "a record"
    console.print(
        f"{recipe.name}: {record.time()} s of training, error {record.error()} % over {len(record.errors)} seeds, "
        f"bar {record.bar:g} %: p = {record.p:.2g}, {verdict} (it takes p < {LEVEL:g})",
        soft_wrap=True,
    )
