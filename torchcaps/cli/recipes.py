"""Commands that show one recipe, and check and compare results; they train nothing."""

import json
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from torchcaps.cli.checkpoints import show_checkpoint
from torchcaps.cli.columns import AsJson, tell_facts, tell_json
from torchcaps.cli.options import Device, Results, Root, console
from torchcaps.cli.options import table as make_table
from torchcaps.papers import RECIPES
from torchcaps.papers.against_cnn import check_intervals, paired_path
from torchcaps.pretrained import entries, open_model
from torchcaps.results.claims import find
from torchcaps.results.compare import compare
from torchcaps.results.history import History
from torchcaps.results.store import read_result
from torchcaps.results.verify import Check, verify, verify_all
from torchcaps.runtime.environment import pick_device
from torchcaps.train.plain import to_plain
from torchcaps.train.step import ROUTED

SUFFIX = ".safetensors"  # of checkpoints, so that a missing one is not taken for a recipe


def show(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE|CHECKPOINT", help="a recipe, a checkpoint or the --out folder of a run")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print only the run, as JSON")] = False,
    device: Device = "auto",
    data: Root = None,
) -> None:
    """Show a recipe: its claim, hyperparameters, model and the routing backend on this machine.

    For a checkpoint: the settings of its run, its model, and layers that died, if its data are here.
    """
    if recipe not in RECIPES and (recipe in entries() or Path(recipe).suffix == SUFFIX or Path(recipe).exists()):
        if as_json:
            print(json.dumps(to_plain(open_model(recipe, torch.device("cpu"))[1]), indent=1))
        else:
            show_checkpoint(recipe, pick_device(device), data)
        return
    found = find(recipe, RECIPES)
    run = found.make()
    if as_json:
        print(json.dumps(to_plain(run), indent=1))
        return
    console.print(f"[bold]{found.name}[/]: {escape(found.about)}", markup=True)
    if found.claim:
        said = {**asdict(found.claim), "beside": ", ".join(found.claim.beside)}
        tell_facts([(name, str(value)) for name, value in said.items() if value not in (None, "")])
    console.print_json(json.dumps(to_plain(run)))
    network = run if run.trains else run.network
    with torch.device("meta"):
        model = network.build()
    console.print(model, f"{sum(p.numel() for p in model.parameters()):,} parameters", sep="\n")
    for kind in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        routed = [layer for layer in model.modules() if isinstance(layer, ROUTED)]
        taken = {layer.to_empty(device=kind).backend_here(n_images=network.stages[0].batch) for layer in routed}
        console.print(f"routing on {kind}: {', '.join(sorted(taken)) or 'none'}", highlight=False)


def verify_result(
    file: Annotated[Path | None, typer.Argument(help="a result file, or a folder of them below --results")] = None,
    replay: Annotated[bool, typer.Option(help="also train the first steps again")] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="compare the hash of the weights with this file's")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="verify every file and interval of the folder --results")
    ] = False,
    device: Device = "auto",
    data: Root = None,
    results: Results = Path("results"),
) -> None:
    """Verify a result file: recompute its metrics from its predictions and check its recipe and commit.

    Exits with code 1 on any mismatch. A file that passes is consistent; only --replay tests that it was trained.
    """
    if (file is None) != every:
        raise ValueError("give one result file, a folder of them, or --all for every file below --results")
    if file is None or file.is_dir():
        if replay or checkpoint is not None:
            raise ValueError("--replay and --checkpoint are for one result file; give it, or leave them out")
        _verify_all(results, data, file)
        return
    checks = verify(read_result(file), RECIPES, data, replay, device, checkpoint)
    for check in checks:
        mark = {True: "[green]ok [/]", False: "[red]BAD[/]", None: "[dim]-- [/]"}[check.passed]
        console.print(f"{mark} {escape(f'{check.name}: {check.text}')}", highlight=False, markup=True)
    console.print("ok: recomputed or compared; --: stated by the file and not checked", highlight=False)
    if any(check.passed is False for check in checks):
        raise typer.Exit(1)


def _verify_all(results: Path, data: Path | None, only: Path | None) -> None:
    found = verify_all(results, RECIPES, data, History(), only)
    for path, check in found.bad:
        console.print(f"BAD {path} {check.name}: {check.text}", highlight=False, soft_wrap=True, markup=False)
    console.print(found.text(), highlight=False, soft_wrap=True)
    wrong = [] if only is not None else _verify_intervals(results, data)
    if found.bad or wrong:
        raise typer.Exit(1)


def _verify_intervals(results: Path, data: Path | None) -> list[Check]:
    """Tell which stored intervals are wrong; return them."""
    intervals = check_intervals(results, data)
    wrong = [check for check in intervals if check.passed is False]
    for check in wrong:
        console.print(f"BAD {paired_path(results)} {check.name} {check.text}", soft_wrap=True, markup=False)
    known = sum(check.passed is not None for check in intervals)
    console.print(f"{known} of {len(intervals)} paired intervals recomputed, {len(wrong)} bad", highlight=False)
    return wrong


def compare_results(first: Path, second: Path, data: Root = None, as_json: AsJson = False) -> None:
    """Compare two results: paired errors and their standard error."""
    both = [read_result(file) for file in (first, second)]
    found = compare(*both, data)
    if as_json:
        tell_json(
            [
                {**each._asdict(), "difference": each.difference, "sd": None if isnan(each.sd) else each.sd}
                for each in found
            ]
        )
        return
    # one column per data set: names are long, numbers are short
    lines = make_table("part", *(each.part for each in found))
    lines.add_row("n", *(f"{each.n:,}" for each in found))
    lines.add_row("only first wrong", *(f"{each.first_alone:,}" for each in found))
    lines.add_row("only second wrong", *(f"{each.second_alone:,}" for each in found))
    lines.add_row("both wrong", *(f"{each.both:,}" for each in found))
    lines.add_row("first minus second, %", *(f"{each.difference:.3f}" for each in found))
    lines.add_row("sd", *("-" if isnan(each.sd) else f"{each.sd:.3f}" for each in found))
    lines.add_row("over", *(f"{each.n_sources:,} {each.what}" for each in found))
    console.print(lines)
    console.print(
        "sd: clustered by what the test examples show; rough where those are few. "
        "It does not include the spread over seeds."
    )
