"""The comparison of routings: its rows differ in the routing alone, and its table and figure come from result files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import refuses
from commands import run as command

from torchcaps.layers import ROUTINGS
from torchcaps.papers import RECIPES
from torchcaps.papers.against_cnn import PAIRS
from torchcaps.papers.pages import filled
from torchcaps.papers.routings import figures
from torchcaps.papers.routings.costs import Cost, bench_routings, read_costs, write_costs
from torchcaps.papers.routings.measured import measured
from torchcaps.papers.routings.rows import COMPARED, LEFT_OUT, METRICS, NAMES, SETS, WITHOUT_CAPSULES
from torchcaps.papers.routings.table import NOTE, SHORT, beside_control
from torchcaps.results.statistics import UNCHECKED, todays
from torchcaps.results.store import result_path, write_result
from torchcaps.results.tuning import read_tuning, tuning_path
from torchcaps.train.plain import to_plain
from torchcaps.train.tasks.classify import Classify


def write(folder: Path, which: str, name: str, error: float, ms: float, seed: int = 0) -> None:
    """Write a result of a row, and that its step takes so long."""
    cost = Cost(f"{which}-{name}", ms, 2**30, 64, "a GPU", "0123456789ab")
    write_costs(folder, read_costs(folder) | {cost.row: cost})
    part, metric = METRICS[which].split(".")
    recipe = f"routings/{which}-{name}"
    result = {"recipe": recipe, "seed": seed, "run": to_plain(RECIPES[recipe].make()), "curve": []}
    result |= {
        "metrics": {part: {metric: error}},
        "predictions": {},
        "data": {},
        "steps": 1000,
        "seconds": 60.0,
    }
    write_result(result_path(folder, recipe, seed), result)


@pytest.mark.parametrize("which", METRICS)
def test_rows_differ_in_routing_loss_and_learning_rate_alone(which):
    assert set(ROUTINGS) == {*LEFT_OUT} | {name for name in COMPARED if name in ROUTINGS}
    runs = {name: RECIPES[f"routings/{which}-{name}"].make() for name in NAMES[which]}
    alike = {
        repr(
            replace(
                run,
                model="",
                model_args={},
                stages=tuple(replace(stage, task=Classify(), learning_rate=1.0) for stage in run.stages),
            )
        )
        for run in runs.values()
    }
    assert len(alike) == 1
    nets = [run.model_args for run in runs.values() if run.model == "routing-net"]
    assert all("routing" in args and args | {"routing": ""} == nets[0] | {"routing": ""} for args in nets)


def test_a_table_has_errors_and_costs_and_says_what_was_not_run(tmp_path):
    marked = "<!-- routings smallnorb -->\n<!-- end -->"
    head, _, *rows = filled(marked, tmp_path).splitlines()[1:-1]
    assert (
        UNCHECKED not in head
        and len(rows) == len(NAMES["smallnorb"])
        and all("not run yet" in row.replace("\N{NO-BREAK SPACE}", " ") for row in rows)
    )
    write(tmp_path, "smallnorb", "em", 2.0, 7.0)
    write(tmp_path, "smallnorb", "em", 3.0, 8.0, seed=1)
    write(tmp_path, "smallnorb", "cnn", 1.5, 4.0)
    _, head, _, *rows = [row.replace("\N{NO-BREAK SPACE}", " ") for row in filled(marked, tmp_path).splitlines()]
    assert head.endswith("| ms per step† | MiB† |") and NOTE in rows
    first, second, *_ = rows
    assert first.startswith("| no capsules: CNN | 1.50 (1) | - | 271,545 | 4.00 | 1,024 |")
    assert second.startswith("| em | 2.50 ± 0.71 (2) | - | 228,440 | 8.00 | 1,024 |")
    assert not any("other code" in row for row in rows)
    costs = read_costs(tmp_path)
    write_costs(
        tmp_path, costs | {"smallnorb-lazy": costs["smallnorb-em"]._replace(row="smallnorb-lazy", commit="f" * 12)}
    )
    assert "Timed with other code than the rest: `lazy`." in filled(marked, tmp_path)
    with pytest.raises(
        ValueError,
        match="no set 'cifar10' of routings; there are smallnorb, like, fashion, cifar, digits, all, between",
    ):
        filled(marked.replace("smallnorb", "cifar10"), tmp_path)


def test_costs_are_measured_row_by_row_and_read_again(tmp_path):
    names = ("digits-uniform", "digits-pooled")
    recipes = [RECIPES[f"routings/{name}"] for name in names]
    rows = [replace(recipe, make=recipe.make().quick) for recipe in recipes]
    write_costs(tmp_path, {"like-em": Cost("like-em", 7.0, 2**30, 128, "a GPU", "0123456789ab")})
    said = []
    bench_routings(rows, torch.device("cpu"), 10, tmp_path, said.append)
    found = read_costs(tmp_path)
    assert list(found) == ["like-em", *names] and found["like-em"].ms == 7.0
    assert all(found[name].ms > 0 and found[name].memory_bytes > 2**20 and found[name].batch == 16 for name in names)
    assert [line.split(":")[0] for line in said] == list(names)


def test_an_unknown_name_is_refused_beside_a_known_one(capsys, monkeypatch):
    answer = command(capsys, monkeypatch, "bench", "routings", "digits-uniform", "smalnorb", "--device", "cpu")
    refuses(
        answer,
        "no row of routings is called smalnorb; give smallnorb, like, fashion, cifar, digits, or a row: smallnorb-em",
    )


RESULTS = Path(__file__).parents[2] / "results"


def run_rows(which: str) -> list[str]:
    """List the rows of a set that have results."""
    return [name for name in NAMES[which] if todays(RECIPES[f"routings/{which}-{name}"], RESULTS)[0]]


HELD_OUT = {
    "smallnorb": "epochs=8,data=smallnorb-folds",
    "like": "epochs=4,hold_out=5000,views=warped",
    "fashion": "epochs=4,hold_out=5000",
    "cifar": "epochs=4,hold_out=5000",
    "digits": "hold_out=300",
}


@pytest.mark.parametrize("which", SETS)
def test_rows_have_the_learning_rate_that_held_out_images_prefer(which):
    """On 300 held-out digits three rows are ties, where either rate is right."""
    path = tuning_path(RESULTS, "routings")
    errors = {line.run: line.by_seed[0] for line in read_tuning(path)}
    ties = []
    for name in run_rows(which):
        row = f"{which}-{name}"
        of = {rate: errors[f"{row},learning_rate={rate},{HELD_OUT[which]}"] for rate in ("1e-3", "3e-3")}
        best = {float(rate) for rate, error in of.items() if error == min(of.values())}
        assert RECIPES[f"routings/{row}"].make().stages[0].learning_rate in best, row
        ties += [name] * (len(best) > 1)
    assert ties == (["max-min", "em-full", "pooled"] if which == "digits" else [])


def test_all_sets_lie_beside_each_other_with_what_is_significantly_below_or_above_the_control():
    """From the committed results: dynamic routing leads on photographs and trails on affine digits."""
    lines = filled("<!-- routings all -->\n<!-- end -->", RESULTS).splitlines()
    assert lines[1] == "| routing | CIFAR-10 | Fashion-MNIST | smallNORB | affine digits | small digits |"
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines[3:-3]}
    assert (
        {*SHORT} == {*SETS} and len(cells) == len(COMPARED) + len(WITHOUT_CAPSULES) and next(iter(cells)) == "uniform"
    )
    photos, _, toys, affine, _ = cells["dynamic"]
    assert photos.startswith("**") and photos.endswith("**")
    assert affine.startswith("(") and affine.endswith(")")
    assert not toys.startswith(("**", "("))
    n = sum(len(run_rows(which)) - 1 for which in SETS)
    assert lines[-3:-1] == [
        "",
        f"3 seeds per row; {n} comparisons with `uniform`, of which about 3 would be marked by chance.",
    ]
    assert cells["em,\N{NO-BREAK SPACE}16x16\N{NO-BREAK SPACE}transforms"][:2] == ["-", "-"]


def test_rows_on_photographs_lie_beside_others_than_the_control():
    """From the committed results: the CNN leads every routing, and dynamic routing leads mean pooling."""
    lines = filled("<!-- routings between -->\n<!-- end -->", RESULTS).splitlines()
    assert lines[1] == "| row | minus | CIFAR-10 | Fashion-MNIST |"
    cells = [line.replace("\N{NO-BREAK SPACE}", " ").strip("| ").split(" | ") for line in lines[3:-1]]
    assert len(cells) == len({(row, other) for row, other, *_ in cells}) == len(PAIRS["routings_between"]) / 2
    beside_cnn = [found for _, other, *found in cells if other == "CNN"]
    assert len(beside_cnn) == len(NAMES["cifar"]) - len(WITHOUT_CAPSULES) - 1  # the control's are in other tables
    assert all(cell.startswith("**+") for found in beside_cnn for cell in found)
    assert cells[0][:2] == ["dynamic", "mean pooling"]
    assert all(cell.startswith("**-") and cell.endswith(")**") for cell in cells[0][2:])


def test_rows_that_were_not_run_are_called_so(tmp_path):
    *_, last, _ = filled("<!-- routings between -->\n<!-- end -->", tmp_path).splitlines()
    assert last.replace("\N{NO-BREAK SPACE}", " ").endswith("| CNN | not run yet | not run yet |")
    assert "comparisons" not in filled("<!-- routings all -->\n<!-- end -->", tmp_path)


@pytest.mark.parametrize(
    ("leader", "cell"),
    [
        ("capsules", "**1.50**"),
        ("capsules *", r"**1.50\***"),
        ("baseline", "(1.50)"),
        ("baseline *", r"(1.50\*)"),
        ("open", "1.50"),
        ("-", "1.50 stale"),
    ],
)
def test_an_error_is_marked_by_who_leads(leader, cell):
    assert beside_control("1.50", leader) == cell


@pytest.mark.slow
def test_no_label_of_the_figure_covers_another(tmp_path):
    """Many routings have nearly the same error."""
    assert figures(tmp_path, tmp_path, None, torch.device("cpu")) == {}
    for n, row in enumerate(measured("digits", tmp_path)):
        write(tmp_path, "digits", row.name, 10 + 0.01 * n + 5 * (n == 3), 2 + n % 4)
    ((name, (figure, _)),) = figures(tmp_path, tmp_path, None, torch.device("cpu")).items()
    assert name == "digits-error-against-time"
    figure.canvas.draw()
    from matplotlib.text import Text

    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without the lines to the points
    assert len(boxes) == len(NAMES["digits"])
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
