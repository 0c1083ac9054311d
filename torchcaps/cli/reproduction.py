"""The command that makes a paper's table: its rows are trained or carried out, those that are done are kept."""

from pathlib import Path
from typing import Annotated

import typer

from torchcaps import data as datasets
from torchcaps.cli.options import Deterministic, Device, Results, Root, console, seeds_of
from torchcaps.cli.order import in_order
from torchcaps.cli.probes import Jobs, derive_one, is_derived, with_networks
from torchcaps.cli.recipes import recipes_of_paper, tell_table
from torchcaps.cli.sweep import Failed, Workers, named, reproduce_apart
from torchcaps.cli.training import train_recipe
from torchcaps.data import DataError
from torchcaps.figures import save_figures
from torchcaps.papers import FIGURES, PAPERS, RECIPES
from torchcaps.probes.features import Missing
from torchcaps.results.store import DEFAULT_SEEDS, markdown, read_result, result_path, table, write_result
from torchcaps.runtime.environment import make_folder, pick_device
from torchcaps.train.recipe import Recipe, find, unlike


def reproduce(
    name: Annotated[str, typer.Argument(help="a paper, sabour2017, or one recipe, sabour2017/mnist-r3-recon")],
    row: Annotated[list[str] | None, typer.Option(help="only these rows of the paper")] = None,
    seeds: Annotated[str, typer.Option(help="which seeds")] = DEFAULT_SEEDS,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
    deterministic: Deterministic = False,
    smoke: Annotated[bool, typer.Option("--quick", help="a few steps on generated images; writes no result files")] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="train nothing: evaluate half-done runs where they stand")] = False,
    jobs: Jobs = None,
    workers: Workers = 1,
    with_table: Annotated[bool, typer.Option("--table/--no-table", help="print the table and write figures at the end")] = True,
) -> None:
    """Run rows of a paper and print its table beside ours. Finished runs are kept, half-done ones go on."""
    wanted = with_networks(_wanted(name, row)) if smoke else _wanted(name, row)
    left: list[str] = []
    if not smoke:
        make_folder(results)  # before hours of training, not after
        wanted, left = _at_hand(wanted, data)
    apart = [(recipe, seed) for recipe in wanted for seed in seeds_of(seeds) if workers != 1 and not is_derived(recipe)]
    apart = [pair for pair in apart if smoke or not _kept(*pair, results)]
    options = {"--data": data, "--results": results, "--deterministic": deterministic, "--quick": smoke, "--as-is": as_is}
    failures = reproduce_apart(apart, workers, device, options)
    for recipe in wanted:
        for seed in seeds_of(seeds):
            kept = result_path(results, recipe.name, seed)
            if not smoke and _kept(recipe, seed, results):
                console.print(f"{recipe.name} seed {seed}: done, {kept}", soft_wrap=True)
                continue
            if (recipe, seed) in apart:
                continue  # failed, or there was nothing to do
            if as_is and not is_derived(recipe) and not (Path("runs") / recipe.name / str(seed) / "checkpoint.safetensors").exists():
                console.print(f"{recipe.name} seed {seed}: not begun")
                continue
            try:
                one = derive_one(recipe, seed, device, data, smoke, jobs) if is_derived(recipe) else None
            except Missing as error:  # the other rows can be made all the same
                left.append(str(error))
                console.print(f"{recipe.name} seed {seed}: left out", soft_wrap=True)
                continue
            path = one or train_recipe(recipe, seed, None, device, data, None, deterministic, smoke, as_is)
            if not smoke:
                write_result(kept, read_result(path))
    if not smoke and with_table:
        paper = wanted[0].name.split("/")[0]
        tell_table(paper, results)
        _write(paper, results, device, data)
    if failures:
        raise Failed(f"{len(failures)} of {len(apart)} runs failed, the others are done: {named(failures)}")
    if left:
        raise ValueError(f"{len(left)} rows were left out: {left[0]}")


def _at_hand(wanted: list[Recipe], data: Path | None) -> tuple[list[Recipe], list[str]]:
    """Fetch what is missing. Rows whose data cannot be had are left out, and why; if no row is left, that is the error."""
    sets = {recipe.name: {name.split("/")[0] for run in (recipe.make(),) for name in (run.data, *run.tests)} for recipe in wanted}
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
    for error in refused.values():  # all of them now; at the end the first is told again
        console.print(str(error), soft_wrap=True)
    for name in left:
        console.print(f"{name}: left out, its data cannot be had", soft_wrap=True)
    return [recipe for recipe in wanted if recipe.name not in left], [str(error) for error in left.values()]


def _kept(recipe: Recipe, seed: int, results: Path) -> bool:
    """Whether there is a result of today's recipe, and not of a run that was cut short."""
    path = result_path(results, recipe.name, seed)
    if not path.exists():
        return False
    result = read_result(path)
    whole = result["steps"] >= result.get("planned_steps", 0) or result.get("stopping_rule_met", False)
    return whole and not unlike(result["run"], recipe.make())


def _write(paper: str, results: Path, device: str, data: Path | None) -> None:
    """Table and figures of the paper, as far as results and checkpoints are there."""
    folder = Path("figures") / paper
    make_folder(folder)
    (folder / "table.md").write_text(markdown(table(recipes_of_paper(paper), results)))
    made = FIGURES[paper](results, Path("runs"), data, pick_device(device)) if paper in FIGURES else {}
    for path in (folder / "table.md", *save_figures(made, folder)):
        console.print(f"wrote {path}", soft_wrap=True)


def _wanted(name: str, rows: list[str] | None) -> list[Recipe]:
    """What is to be trained: for an ensemble its members."""
    if name not in PAPERS:
        asked = [find(name, RECIPES)]
    elif rows:
        asked = [find(f"{name}/{row}", RECIPES) for row in rows]
    else:
        asked = [recipe for recipe in RECIPES.values() if recipe.name.startswith(name + "/") and (recipe.claim or name == "smoke")]
    members = {recipe.name: recipe.claim.members if recipe.claim else "" for recipe in asked}
    names = [f"{whole.split('/')[0]}/{part}" if part else whole for whole, part in members.items()]
    return in_order([RECIPES[each] for each in dict.fromkeys(names)])
