"""The command line. Names, seeds and places go in; what decides a result stands in a recipe."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torchcaps import data as datasets
from torchcaps.cli import checkpoints, derived, recipes, sets, speed
from torchcaps.cli.derived import Jobs, derive_one, is_derived, with_networks
from torchcaps.cli.explain import explain
from torchcaps.cli.export import export
from torchcaps.cli.options import Device, Out, Results, Root, Seed, console, numbers_of, plainly, seeds_of
from torchcaps.cli.order import in_order
from torchcaps.cli.own import predict, train_own
from torchcaps.cli.play import play
from torchcaps.cli.pretrained import pretrained, release
from torchcaps.cli.recipes import recipes_of_paper, tell_table
from torchcaps.cli.sweep import Failed, Workers, named, reproduce_apart
from torchcaps.demo import demo as run_demo
from torchcaps.features import Missing
from torchcaps.figures import save_figures
from torchcaps.machine import make_folder, pick_device
from torchcaps.papers import FIGURES, PAPERS, RECIPES
from torchcaps.processes import Lost, started
from torchcaps.recipe import Recipe, find, quick, unlike
from torchcaps.results import DEFAULT_SEEDS, make_result, markdown, read_result, result_path, table, write_result
from torchcaps.train import Diverged, Interrupted, Options, train

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Capsule networks in PyTorch.")


def main() -> None:
    """One clear line and exit code 2 for what a user can put right; TORCHCAPS_DEBUG=1 shows where it came from."""
    rank, size = started()
    if size > 1 and sys.argv[1:2] != ["train"]:
        _leave(f"{size} processes were started together, which is for `torchcaps train` alone; give this command by itself", 2)
    console.quiet = rank > 0  # the first speaks for all
    try:
        app()
    except Interrupted as stop:
        _leave(str(stop), 128 + stop.signum)
    except (Diverged, Lost, Failed) as error:
        _leave(str(error), 1)
    except (ValueError, OSError) as error:
        if os.environ.get("TORCHCAPS_DEBUG"):
            raise
        # an OSError's own text begins with a number that helps nobody
        _leave(f"{error.strerror} ({error.filename})" if isinstance(error, OSError) and error.filename else str(error), 2)


def _leave(message: str, code: int) -> None:
    rank, size = started()
    print(f"torchcaps{f' (process {rank + 1} of {size})' if size > 1 else ''}: {message}", file=sys.stderr)
    sys.exit(code)


def demo(out: Annotated[Path, typer.Option(help="folder for the report")] = Path("demo"), seed: Seed = 0) -> None:
    """Train a CapsNet on 1,797 handwritten digits in under a minute and show what it learnt."""
    run_demo(out, seed, console)


def train_one(
    recipe: Annotated[str | None, typer.Argument(help="`torchcaps ls` names them; none: on your own pictures in --data FOLDER")] = None,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "auto",
    data: Root = None,
    hold_out: Annotated[int | None, typer.Option(help="training images kept aside to validate on; the test set is then not seen")] = None,
    deterministic: Annotated[bool, typer.Option(help="repeat to the bit on CUDA too; slower")] = False,
    smoke: Annotated[bool, typer.Option("--quick", help="seconds long, on generated images: to see that it runs")] = False,
    size: Annotated[int | None, typer.Option(help="own pictures: the side that they are brought to")] = None,
    model: Annotated[str | None, typer.Option(help="own pictures: capsnet or em-capsnet")] = None,
    epochs: Annotated[int | None, typer.Option(help="own pictures: how often each is shown")] = None,
    balance: Annotated[bool | None, typer.Option(help="own pictures: draw every class as often as the others, or as it is")] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="own pictures: leave out files that cannot be read")] = False,
) -> None:
    """Train one recipe with one seed, or on your own pictures: --data FOLDER with a folder for each class.

    The same command goes on where it was stopped.
    """
    own = {"--size": size, "--model": model, "--epochs": epochs, "--balance": balance, "--skip-unreadable": skip_unreadable or None}
    if recipe is None:
        if data is None or smoke or hold_out is not None:
            raise ValueError(
                "give a recipe (`torchcaps ls` names them), or --data FOLDER alone: your own pictures, a folder for each class"
            )
        path = train_own(data, seed, out, device, size, model or "capsnet", epochs, balance is not False, skip_unreadable, deterministic)
        console.print(f"result: {path}", soft_wrap=True)
        return
    if given := [name for name, value in own.items() if value is not None]:
        raise ValueError(f"{', '.join(given)} is for pictures of your own; a recipe has its own settings: leave out one or the other")
    found = find(recipe, RECIPES)
    path = _train(found, seed, out, device, data, hold_out, deterministic, smoke)
    if started()[0] > 0:
        return  # of several processes the first has written the result
    result = read_result(path)
    for split, metrics in result["metrics"].items():
        console.print(f"{found.name} seed {seed}, {split}: {numbers_of(metrics)}")
    if result["extras"]:
        console.print(f"{found.name} seed {seed}: {plainly(result['extras'])}", highlight=False, soft_wrap=True)
    console.print(f"result: {path}", soft_wrap=True)


def _train(recipe: Recipe, seed: int, out, device, data, hold_out, deterministic, smoke, as_is: bool = False) -> Path:
    if is_derived(recipe):
        raise ValueError(f"{recipe.name} trains no network; `torchcaps reproduce {recipe.name}` reads that of {recipe.make().of}")
    if recipe.claim and recipe.claim.members:
        raise ValueError(f"{recipe.name} is an ensemble; train its members, {recipe.name.split('/')[0]}/{recipe.claim.members}")
    run = quick(recipe.make()) if smoke else recipe.make()
    if hold_out is not None:
        # such a run sees no test set
        run = replace(run, hold_out=hold_out, tests=(), stages=tuple(replace(stage, watch=None) for stage in run.stages))
    kind = "-quick" * smoke + f"-hold-out-{hold_out}" * (hold_out is not None)
    folder = out or Path("runs") / (recipe.name + kind) / str(seed)
    options = Options(out=folder, device=device, root=data, deterministic=deterministic, as_is=as_is, max_steps=0 if as_is else None)
    trained = train(run, name=recipe.name + kind, seed=seed, options=options)
    path = options.out / "result.json"
    if started()[0] == 0:
        write_result(path, make_result(recipe.name + kind, seed, run, trained))
    return path


def reproduce(
    name: Annotated[str, typer.Argument(help="a paper, sabour2017, or one recipe, sabour2017/mnist-r3-recon")],
    row: Annotated[list[str] | None, typer.Option(help="only these rows of the paper")] = None,
    seeds: Annotated[str, typer.Option(help="which seeds")] = DEFAULT_SEEDS,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
    deterministic: bool = False,
    smoke: Annotated[bool, typer.Option("--quick", help="seconds long, on generated images; writes no result files")] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="train nothing: evaluate half-done runs where they stand")] = False,
    jobs: Jobs = None,
    workers: Workers = 1,
    with_table: Annotated[bool, typer.Option("--table/--no-table", help="print the table and write figures at the end")] = True,
) -> None:
    """Run rows of a paper and print its table beside ours. Finished runs are kept, half-done ones go on."""
    wanted = with_networks(_wanted(name, row)) if smoke else _wanted(name, row)
    if not smoke:
        make_folder(results)  # before hours of training, not after
        runs = [recipe.make() for recipe in wanted]
        for needed in sorted({name.split("/")[0] for run in runs for name in (run.data, *run.tests)}):
            if datasets.status(needed, data).startswith("missing"):
                datasets.get(needed, data)
    apart = [(recipe, seed) for recipe in wanted for seed in seeds_of(seeds) if workers != 1 and not is_derived(recipe)]
    apart = [pair for pair in apart if smoke or not _kept(*pair, results)]
    options = {"--data": data, "--results": results, "--deterministic": deterministic, "--quick": smoke, "--as-is": as_is}
    failures = reproduce_apart(apart, workers, device, options)
    left: list[str] = []
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
            path = one or _train(recipe, seed, None, device, data, None, deterministic, smoke, as_is)
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


# every command, in the order of --help
app.command("eval")(checkpoints.evaluate)
app.command()(checkpoints.figures)
app.command()(checkpoints.equivariance)
app.command()(derived.features)
app.command()(explain)
app.command()(predict)
app.command()(export)
app.command()(play)
app.command()(pretrained)
app.command("release")(release)
app.command()(demo)
app.command("ls")(recipes.list_recipes)
app.command()(recipes.show)
app.command("train")(train_one)
app.command()(reproduce)
app.command("table")(recipes.print_table)
app.command("verify")(recipes.verify_result)
app.add_typer(sets.app, name="data")
app.add_typer(speed.app, name="bench")
