"""`torchcaps reproduce`: train or compute rows of papers' tables, keeping finished results."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from torchcaps import data as datasets
from torchcaps.analysis.classifiers import processes
from torchcaps.cli.listing import recipes_of_paper, tell_table
from torchcaps.cli.options import Deterministic, Device, Results, Root, console, seeds_of
from torchcaps.cli.order import in_order
from torchcaps.cli.sweep import Failed, Workers, named, reproduce_apart
from torchcaps.cli.threads import fast_threads
from torchcaps.cli.training import train_recipe
from torchcaps.data import DataError
from torchcaps.figures import save_figures
from torchcaps.papers import FIGURES, PAPERS, RECIPES
from torchcaps.probes.features import Missing
from torchcaps.results.claims import Recipe, find
from torchcaps.results.store import DEFAULT_SEEDS, predicted, read_result, result_path, write_result
from torchcaps.results.tables import markdown, table
from torchcaps.runtime.environment import make_folder, pick_device
from torchcaps.train import Options
from torchcaps.train.plain import unlike
from torchcaps.train.state import Predicted, run_folder

Jobs = Annotated[
    int | None,
    typer.Option(help="processes that fit SVMs; default: one per core, if memory allows"),
]


def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="papers (sabour2017) or recipes (sabour2017/mnist-r3-recon)")
    ],
    row: Annotated[list[str] | None, typer.Option(help="run only this row of the paper; may be repeated")] = None,
    seeds: Annotated[str, typer.Option(help="seeds, separated by commas")] = DEFAULT_SEEDS,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
    deterministic: Deterministic = False,
    smoke: Annotated[
        bool, typer.Option("--quick", help="train a few steps on generated images; writes no result files")
    ] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="train nothing: evaluate unfinished runs as they are")] = False,
    jobs: Jobs = None,
    workers: Workers = 1,
    with_table: Annotated[
        bool, typer.Option("--table/--no-table", help="print the table and write figures at the end")
    ] = True,
) -> None:
    """Reproduce rows of papers and print their numbers beside ours.

    Finished runs are kept, unfinished ones resume.
    """
    wanted, left = _wanted(names, row, with_needed=smoke), []
    if not smoke:
        make_folder(results)  # fail before hours of training, not after
        wanted, left = at_hand(wanted, data)
    pairs = [(recipe, seed) for recipe in wanted for seed in seeds_of(seeds)]
    apart = [pair for pair in pairs if workers != 1 and pair[0].make().trains and (smoke or not kept(*pair, results))]
    words = {"--data": data, "--results": results, "--deterministic": deterministic, "--quick": smoke, "--as-is": as_is}
    failures = reproduce_apart(apart, workers, device, words)
    how = {
        "device": device,
        "root": data,
        "deterministic": deterministic,
        "as_is": as_is,
        "max_steps": 0 if as_is else None,
    }
    for recipe, seed in pairs:
        if not smoke and kept(recipe, seed, results):
            console.print(f"{recipe.name} seed {seed}: done, {result_path(results, recipe.name, seed)}", soft_wrap=True)
        elif (recipe, seed) not in apart:  # pairs in `apart` were run by workers
            left += _make(recipe, seed, results, smoke, jobs or processes(), how)
    if with_table and not smoke:
        for paper in dict.fromkeys(recipe.name.split("/")[0] for recipe in wanted):
            tell_table(paper, results)
            _write(paper, results, device, data)
    if failures:
        raise Failed(f"{len(failures)} of {len(apart)} runs failed, the others are done: {named(failures)}")
    if left:
        raise ValueError(f"{len(left)} rows were left out: {left[0]}")


def _make(recipe: Recipe, seed: int, results: Path, smoke: bool, jobs: int, how: dict[str, Any]) -> list[str]:
    """Run one row with one seed and store its result; return the reason if it must be left out."""

    def rows(name: str, number: int) -> Path:
        return run_folder(f"{name}-quick" if smoke else name, number)

    def found(name: str, number: int) -> Predicted | None:
        return predicted(rows(name, number) / "result.json" if smoke else result_path(results, name, number))

    options = Options(out=rows(recipe.name, seed), rows=rows, predicted=found, jobs=jobs, **how)
    if options.as_is and recipe.make().trains and not (options.out / "checkpoint.safetensors").exists():
        console.print(f"{recipe.name} seed {seed}: not begun")
        return []
    try:
        with fast_threads(options.device) if recipe.make().trains else nullcontext():
            path = train_recipe(recipe, seed, options, smoke=smoke)
    except Missing as error:  # the other rows go on
        console.print(f"{recipe.name} seed {seed}: left out", soft_wrap=True)
        return [str(error)]
    if not smoke:
        write_result(result_path(results, recipe.name, seed), read_result(path))
    return []


def at_hand(wanted: list[Recipe], data: Path | None) -> tuple[list[Recipe], list[str]]:
    """Download missing data sets. Returns the rows with data and the errors of the others; raises if no row is left."""
    sets = {recipe.name: recipe.make().sets() for recipe in wanted}
    refused: dict[str, DataError] = {}
    for needed in sorted(set().union(*sets.values())):
        if datasets.status(needed, data).startswith("missing"):
            try:
                datasets.get(needed, data)
            except DataError as error:
                refused[needed] = error
    left = {recipe.name: refused[name] for recipe in wanted for name in sorted(sets[recipe.name]) if name in refused}
    if len(left) == len(wanted):
        raise next(iter(left.values()))
    for error in refused.values():  # all errors now; the first is repeated at the end
        console.print(str(error), soft_wrap=True)
    for name in left:
        console.print(f"{name}: left out, its data cannot be had", soft_wrap=True)
    return [recipe for recipe in wanted if recipe.name not in left], [str(error) for error in left.values()]


def kept(recipe: Recipe, seed: int, results: Path) -> bool:
    """Check for a finished result of the current version of the recipe."""
    path = result_path(results, recipe.name, seed)
    if not path.exists():
        return False
    result = read_result(path)
    whole = result["steps"] >= result.get("planned_steps", 0) or result.get("stopping_rule_met", False)
    return whole and not unlike(result["run"], recipe.make())


def _write(paper: str, results: Path, device: str, data: Path | None) -> None:
    """Write the paper's table and the figures that available results and checkpoints allow."""
    folder = Path("figures") / paper
    make_folder(folder)
    (folder / "table.md").write_text(markdown(table(recipes_of_paper(paper), results)))
    made = FIGURES[paper](results, Path("runs"), data, pick_device(device)) if paper in FIGURES else {}
    for path in (folder / "table.md", *save_figures(made, folder)):
        console.print(f"wrote {path}", soft_wrap=True)


def _wanted(names: list[str], rows: list[str] | None, with_needed: bool) -> list[Recipe]:
    """List the recipes to run: an ensemble stands for its members; `with_needed` adds the rows that probes read."""
    for name in names:
        if name not in PAPERS:
            find(name, RECIPES)  # a misspelt name is told first
    if rows and (len(names) > 1 or names[0] not in PAPERS):
        raise ValueError(f"--row takes rows of one paper; got {' '.join(names)}; write {names[0].split('/')[0]}/ROW")
    found = []
    for recipe in (recipe for name in names for recipe in _asked(name, rows)):
        run = recipe.make()
        together = run.together
        found += [*(run.needs if together or with_needed else ()), *(() if together else (recipe.name,))]
    return in_order([RECIPES[each] for each in dict.fromkeys(found)])


def _asked(name: str, rows: list[str] | None) -> list[Recipe]:
    """List the rows that a name stands for: itself, some rows of a paper, or all that its table has."""
    if name not in PAPERS:
        return [find(name, RECIPES)]
    if rows:
        return [find(f"{name}/{row}", RECIPES) for row in rows]
    below = [recipe for recipe in RECIPES.values() if recipe.name.startswith(name + "/")]
    return [recipe for recipe in below if recipe.claim or name == "smoke"]
