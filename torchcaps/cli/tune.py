"""`torchcaps tune`: try hyperparameters of a row on held-out data; tuning.csv gets one line per metric."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from torchcaps.cli.options import Device, Results, Root, console, seeds_of
from torchcaps.cli.options import table as make_table
from torchcaps.cli.sweep import Failed, Failure, Job, Workers, named, say, sweep
from torchcaps.cli.threads import fast_threads
from torchcaps.data import info, spec
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Recipe, find
from torchcaps.results.statistics import spread
from torchcaps.results.store import make_result, read_result, write_result
from torchcaps.results.tuning import Line, add_tuning, run_sha256, tuning_path
from torchcaps.train import Options
from torchcaps.train.plain import to_plain, unlike
from torchcaps.train.recipe import Run
from torchcaps.train.state import run_folder
from torchcaps.train.vary import parsed, vary

# options instead of `--vary`, by field
HELD_BY = {"hold_out": "--hold-out", "views": "--views", "tests": "--hold-out or --on", "data": "--on"}
TO_CHOOSE_BY = ("toys", "folds", "dev")  # splits that hold out training data, so that no official test set is seen


def tune(
    row: Annotated[str, typer.Argument(help="the row to vary, such as sabour2017/mnist-r3-recon")],
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary", help="a field and its values, such as learning_rate=1e-3,2e-3; repeated: all combinations"
        ),
    ],
    seeds: Annotated[str, typer.Option(help="seeds, separated by commas")] = "0,1",
    hold_out: Annotated[int, typer.Option(help="number of training images held out for validation")] = 0,
    on: Annotated[
        str | None, typer.Option(help="validate on this data set instead: smallnorb-folds, sst5-mpnet-dev")
    ] = None,
    views: Annotated[
        str | None, typer.Option(help="show the held-out images otherwise: warped or placed, for digits of mnist-40")
    ] = None,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
    workers: Workers = 1,
    keep: Annotated[bool, typer.Option("--table/--no-table", help="print the table and append to tuning.csv")] = True,
) -> None:
    """Try hyperparameters of a row on held-out data, never on its test set.

    Finished runs are kept, unfinished ones resume.
    """
    recipe = find(row, RECIPES)
    base = _without_test(recipe, hold_out, on, views)
    settings = [dict(chosen) for chosen in product(*map(_values, vary))]
    pairs = [(setting, seed) for setting in settings for seed in seeds_of(seeds)]
    runs = {
        _name(recipe, setting, base): _varied(base, setting) for setting in settings
    }  # reject misspelt fields before any training
    failures = _apart(recipe, base, pairs, workers, device, _words(hold_out, on, views, data)) if workers != 1 else []
    if failures:
        raise Failed(f"{len(failures)} of {len(pairs)} runs failed, the others are done: {named(failures)}")
    with fast_threads(device) if workers == 1 else nullcontext():
        for setting, seed in pairs:
            name = _name(recipe, setting, base)
            _train(name, runs[name], seed, Options(out=_folder(recipe, name, seed), device=device, root=data))
    if not keep:
        return
    path = tuning_path(results, recipe.name.split("/")[0])
    lines = [line for setting in settings for line in _lines(recipe, setting, base, seeds_of(seeds))]
    add_tuning(path, lines)
    _tell(lines)
    console.print(f"wrote {path}", soft_wrap=True)


def _without_test(recipe: Recipe, hold_out: int, on: str | None, views: str | None = None) -> Run:
    """Build the row's run on held-out data; it never sees the test set, whatever is varied."""
    run = recipe.make()
    if not run.trains:
        raise ValueError(f"{recipe.name} trains no network; tune one of the rows that it reads: {', '.join(run.needs)}")
    if bool(hold_out) == bool(on):
        raise ValueError(
            "say what to choose by: --hold-out N training images, or --on a data set such as smallnorb-folds; one of "
            "them"
        )
    if on and spec(on).split not in TO_CHOOSE_BY:
        raise ValueError(
            f"{on} has an official test part; choose by a set that has none: its name ends in {', '.join(TO_CHOOSE_BY)}"
        )
    if on and info(on).shape[0] != info(run.data).shape[0]:
        raise ValueError(
            f"{on} has {info(on).shape[0]} channels and {recipe.name} takes {info(run.data).shape[0]}; give another set"
        )
    stages = tuple(replace(stage, watch=None) for stage in run.stages)
    shown = tuple(views.split(",")) if views else ()
    return replace(run, data=on or run.data, hold_out=hold_out, views=shown, tests=(), stages=stages)


def _values(text: str) -> list[tuple[str, Any]]:
    """Parse `learning_rate=1e-3,2e-3` into pairs; commas inside brackets belong to a value."""
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise ValueError(f"--vary takes FIELD=VALUE,VALUE; got {text!r}")
    parts, depth = [""], 0
    for letter in values:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [(name, part.strip()) for part in parts]


def _varied(base: Run, setting: Mapping[str, str]) -> Run:
    changed = vary(base, {name: parsed(value) for name, value in setting.items()})
    for name in HELD_BY:
        if getattr(changed, name) != getattr(base, name):
            raise ValueError(f"--vary cannot change {name}: no test set may be seen; give {HELD_BY[name]}")
    return changed


def _name(recipe: Recipe, setting: Mapping[str, str], base: Run) -> str:
    """Name a setting as tuning.csv and the pages' marks do: `mnist-r3-recon,learning_rate=0.002,hold_out=5000`."""
    words = [f"{name}={value}".replace(" ", "").replace("(", ".").replace(")", "") for name, value in setting.items()]
    return ",".join([recipe.name.split("/")[1], *words, *_held(base)])


def _held(base: Run) -> list[str]:
    """List the fields that say which data the choice is made on: a data set, or held-out images and their views."""
    if not base.hold_out:
        return [f"data={base.data}"]
    return [f"hold_out={base.hold_out}", *([f"views={'.'.join(base.views)}"] if base.views else [])]


def _folder(recipe: Recipe, name: str, seed: int) -> Path:
    return run_folder(f"tune/{recipe.name.split('/')[0]}/{name}", seed)


def _train(name: str, run: Run, seed: int, options: Options) -> None:
    """Train one setting with one seed, unless its result exists."""
    path = options.out / "result.json"
    if path.exists() and not unlike(read_result(path)["run"], run):
        return
    write_result(path, make_result(name, seed, run, run.execute(name, seed, options)))


def _words(hold_out: int, on: str | None, views: str | None, data: Path | None) -> list[str]:
    """List the options that a worker's command repeats."""
    words = ["--on", on] if on else ["--hold-out", str(hold_out)]
    words += ["--views", views] if views else []
    return [*words, "--data", str(data)] if data else words


def _apart(
    recipe: Recipe, base: Run, pairs: list[tuple[dict[str, str], int]], n: int, device: str, words: list[str]
) -> list[Failure]:
    """Run every setting and seed in its own process, `n` at a time."""
    if n < 1:
        raise ValueError(f"--workers takes 1 or more; got {n}")
    jobs = []
    for setting, seed in pairs:
        fields = [word for name, value in setting.items() for word in ("--vary", f"{name}={value}")]
        jobs.append(
            Job(
                f"{_name(recipe, setting, base)} seed {seed}",
                ["tune", recipe.name, *fields, "--seeds", str(seed), *words, "--no-table"],
            )
        )
    return sweep(jobs, n, device, say)


def _lines(recipe: Recipe, setting: Mapping[str, str], base: Run, seeds: list[int]) -> list[Line]:
    """Make one line per metric of the held-out data, over the seeds."""
    name = _name(recipe, setting, base)
    found = {seed: read_result(_folder(recipe, name, seed) / "result.json") for seed in seeds}
    commits = dict.fromkeys(str(result["commit"])[:12] for result in found.values())
    return [
        Line(
            run=name,
            row=recipe.name.split("/")[1],
            changes=" ".join(
                [
                    *(f"{field}={value}".replace(" ", "") for field, value in setting.items()),
                    *_held(base),
                ]
            ),
            metric=f"{part}.{metric}",
            by_seed={seed: result["metrics"][part][metric] for seed, result in found.items()},
            commit=" ".join(commits),
            run_sha256=run_sha256(to_plain(_varied(base, setting))),
        )
        for part, numbers in found[seeds[0]]["metrics"].items()
        for metric in numbers
    ]


def _tell(lines: list[Line]) -> None:
    """Print a table per metric; settings come last, since they may be longer than a line."""
    for metric in dict.fromkeys(line.metric for line in lines):
        shown = make_table("mean ± sd", "n", "setting", title=metric)
        for line in lines:
            if line.metric == metric:
                shown.add_row(spread(list(line.by_seed.values())), str(len(line.by_seed)), line.changes)
        console.print(shown)
