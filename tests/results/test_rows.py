"""Rows of tables: mean, sd and number of seeds, and what is left out or marked."""

from dataclasses import replace
from types import ModuleType

import pytest

from torchcaps.papers import RECIPES
from torchcaps.results.claims import Claim, Recipe, recipes_of
from torchcaps.results.store import make_result, read_result, result_path, write_result
from torchcaps.results.tables import markdown, table
from torchcaps.results.verify import (
    check_place,
    course_of,
)
from torchcaps.train import Options, train

NAME = "smoke/capsnet-plain"


def recipes_with_claim() -> dict[str, Recipe]:
    return {
        NAME: replace(
            RECIPES[NAME],
            claim=Claim(table="1", row="a row", metric="test.error_percent", printed=0.25, printed_sd=0.005),
        )
    }


def test_a_row_that_nobody_ran_says_so(tmp_path):
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "not run yet"
    assert row.printed() == "0.25 ± 0.005"
    told = replace(row.recipe, claim=replace(row.recipe.claim, selected="mean of 3"))
    assert replace(row, recipe=told).printed() == "0.25 ± 0.005, mean of 3"


def test_a_row_gives_mean_sd_and_n_and_leaves_stale_results_out(result, tmp_path):
    clean = result | {"dirty": False}
    for seed, error in enumerate([0.2, 0.3, 0.4]):
        write_result(
            result_path(tmp_path, NAME, seed), clean | {"seed": seed, "metrics": {"test": {"error_percent": error}}}
        )
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.300 ± 0.100 (n=3)"
    write_result(result_path(tmp_path, NAME, 2), result | {"run": result["run"] | {"data": "mnist"}})
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.250 ± 0.071 (n=2, 1 stale left out)"
    result_path(tmp_path, NAME, 1).unlink()
    result_path(tmp_path, NAME, 2).unlink()
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.200 (n=1)"
    assert (
        f"| 1 | a row | test.error_percent | 0.25 ± 0.005 | 0.200 (n=1) | `torchcaps reproduce {NAME} --seeds 0` |"
        in markdown([row])
    )
    write_result(
        result_path(tmp_path, NAME, 0), clean | {"dirty": True, "metrics": {"test_ema": {"error_percent": 0.1}}}
    )
    (row,) = table(recipes_with_claim(), tmp_path, "_ema")
    assert "| test_ema.error_percent | 0.25 ± 0.005 | 0.100 (n=1, 1 of uncommitted code) |" in markdown([row])


def test_a_copy_is_no_further_seed(result, tmp_path):
    """Nothing in a file tells its seed but the seed itself, so a renamed copy once made n=2 of one run."""
    first, second = (result_path(tmp_path, NAME, seed) for seed in (0, 1))
    assert check_place(result, first, tmp_path, first).passed
    moved = check_place(result, second, tmp_path, second)
    assert not moved.passed and f"those of {first}" in moved.text
    copied = check_place(result | {"seed": 1}, second, tmp_path, first)
    assert not copied.passed and f"repeats {first}" in copied.text


def test_seeds_of_a_vote_that_agree_on_every_image_are_no_copies(result):
    """A vote has no curve: the weights of its members tell it from another one."""
    vote, curve = result | {"curve": []}, result["curve"]
    other = vote | {"seed": 1, "weights_sha256": "0" * 64}
    assert course_of(vote) == course_of(vote | {"seed": 1}) != course_of(other)
    assert course_of(vote | {"curve": curve}) == course_of(other | {"curve": curve}), (
        "another hash of the weights hides no copy"
    )


def test_what_stands_beside_a_number_says_of_which_part_it_is(result, tmp_path):
    """A row of averaged weights has the last step's beside it: without its part's name that would be taken for the
    row's own metric.
    """
    beside = "test.error_percent", "test.loss", "other.loss", "gone.x"
    recipe = Recipe(NAME, RECIPES[NAME].make, Claim(table="1", row="x", metric="test_ema.error_percent", beside=beside))
    metrics = {"test": {"error_percent": 2.0, "loss": 0.2}, "test_ema": {"error_percent": 1.5}, "other": {"loss": 0.1}}
    write_result(result_path(tmp_path, NAME, 0), result | {"metrics": metrics})
    (row,) = table({NAME: recipe}, tmp_path)
    assert row.ours().startswith("1.500 (n=1") and row.ours().endswith(
        "); test error_percent 2.000; loss 0.200; other loss 0.100"
    )


def test_a_row_says_which_runs_were_not_finished_or_never_met_their_rule(tmp_path):
    run = RECIPES["smoke/capsnet"].make()
    recipes = {"smoke/x": Recipe("smoke/x", lambda: run, Claim(table="-", row="-", metric="test.error_percent"))}
    for seed, extra in enumerate([{}, {"max_steps": 5, "as_is": True}]):
        options = Options(out=tmp_path / str(seed), progress=False, **extra)
        write_result(
            result_path(tmp_path, "smoke/x", seed),
            make_result("smoke/x", seed, run, train(run, name="x", seed=seed, options=options)),
        )
    assert ", one at 5 of 20 steps" in table(recipes, tmp_path)[0].ours()
    path = result_path(tmp_path, "smoke/x", 0)
    write_result(path, read_result(path) | {"stopping_rule_met": False})
    assert ", 1 that never met the rule" in table(recipes, tmp_path)[0].ours()


def test_a_public_function_that_wants_arguments_is_no_recipe():
    module = ModuleType("torchcaps.papers.some.rows")

    def names_of(which):
        return which

    names_of.__module__ = module.__name__
    module.names_of = names_of
    with pytest.raises(TypeError, match=r"rows.names_of is public.* takes which. Begin its name with an underscore"):
        recipes_of("some", module)
