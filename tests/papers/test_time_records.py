"""Time to accuracy: the test over seeds, what counts as a record, and the table from result files."""

from math import atan, pi, sqrt
from pathlib import Path

import pytest

from torchcaps.papers import RECIPES
from torchcaps.papers.pages import filled
from torchcaps.papers.records.rows import BARS
from torchcaps.papers.records.table import CORRECTED, RULE, record_of
from torchcaps.results.statistics import NOTE, p_below, recomputable
from torchcaps.results.store import result_path, write_result
from torchcaps.results.verify import unchecked
from torchcaps.train.plain import to_plain

MARKED = "<!-- records digits -->\n<!-- end -->"


def write(folder: Path, row: str, seed: int, error: float, seconds: float, **changed) -> dict:
    """Write a result of a row of records."""
    recipe = RECIPES[f"records/{row}"]
    part, metric = recipe.claim.metric.split(".")
    result = {
        "recipe": recipe.name, "seed": seed, "run": to_plain(recipe.make()), "curve": [], "predictions": {}, "data": {},
        "metrics": {part: {metric: error}}, "steps": 10, "seconds": 500.0, "device": "a GPU", "commit": "0" * 40,
        "phases": {"training": seconds, "compiling": 30.0}, "date": "2026-11-18", "dirty": False, "begun_by": [],
    } | changed  # fmt: skip
    write_result(result_path(folder, recipe.name, seed), result)
    return result


def rows(folder: Path) -> dict[str, list[str]]:
    """Read the cells behind the name of each row."""
    lines = [line for line in filled(MARKED, folder).splitlines() if line.startswith("| `digits")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {line[0].strip("`"): line[2:] for line in cells}


def test_the_p_value_by_hand():
    """With one and two degrees of freedom, Student's distribution has a closed form."""
    # mean 0.3, sd 0.1 sqrt 2, so t = -0.7 / 0.1
    assert p_below([0.2, 0.4], 1.0) == pytest.approx(0.5 + atan(-7) / pi) == pytest.approx(0.0452, abs=1e-4)
    # mean 0.2, sd 0.1, so t = -0.1 / (0.1 / sqrt 3)
    t = -sqrt(3)
    assert p_below([0.1, 0.2, 0.3], 0.3) == pytest.approx(0.5 + t / (2 * sqrt(2 + t**2)))
    assert p_below([0.1, 0.2, 0.3], 0.2) == pytest.approx(0.5)
    assert p_below([0.1, 0.2, 0.3], 0.1) == pytest.approx(1 - p_below([0.1, 0.2, 0.3], 0.3))


def test_the_p_value_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats", reason="pip install 'torchcaps[experiments]'")
    errors = [0.34, 0.34, 0.31, 0.31, 0.29]
    assert p_below(errors, 0.35) == pytest.approx(stats.ttest_1samp(errors, 0.35, alternative="less").pvalue)


def test_seeds_that_share_their_images_prove_less():
    """Nadeau and Bengio: the variance of the mean of n seeds is (1 / n + test / train) times that of one."""
    # mean 0.2, sd 0.1, so t = -0.1 / (0.1 sqrt(1 / 3 + 1 / 4))
    t = -1 / sqrt(1 / 3 + 1 / 4)
    assert p_below([0.1, 0.2, 0.3], 0.3, overlap=1 / 4) == pytest.approx(0.5 + t / (2 * sqrt(2 + t**2)))
    assert p_below([0.1, 0.2, 0.3], 0.3, overlap=1 / 4) > p_below([0.1, 0.2, 0.3], 0.3)


def test_equal_errors_do_not_tell_their_spread_and_one_has_none():
    assert p_below([0.2, 0.2], 0.3) == p_below([0.3, 0.3], 0.3) == p_below([0.4, 0.4], 0.3) == 1
    with pytest.raises(ValueError, match="a t-test needs at least two seeds, got 1"):
        p_below([0.2], 0.3)


def test_every_row_has_a_bar_and_the_first_of_a_set_is_the_entry_to_beat():
    found = {name: recipe for name, recipe in RECIPES.items() if name.startswith("records/")}
    assert {recipe.claim.table for recipe in found.values()} == {*BARS}
    assert found["records/mnist"].make() == RECIPES["sabour2017/mnist-r3-recon-64-torch-init"].make()
    assert found["records/digits"].make() == RECIPES["digits/stratified"].make()
    for recipe in found.values():
        run = recipe.make()
        assert run.data == found[f"records/{recipe.claim.table}"].make().data
        # nothing in training looks at a test set
        assert not run.hold_out and not any(stage.watch or stage.stop for stage in run.stages)
        assert ("_ema" in recipe.claim.metric) <= bool(run.stages[-1].ema)


def test_the_table_has_training_seconds_alone_and_says_what_was_not_run(tmp_path):
    assert rows(tmp_path) == {name: ["not run yet", *"-----"] for name in ("digits", "digits-fast")}
    assert NOTE not in filled(MARKED, tmp_path) and RULE in filled(MARKED, tmp_path)
    write(tmp_path, "digits", 0, 0.2, 20.0)
    assert rows(tmp_path)["digits"][:4] == ["20.00", "0.200 (1)", "-", "no: fewer than 3 seeds"]
    write(tmp_path, "digits", 1, 0.4, 22.0, date="2026-11-19")
    assert rows(tmp_path)["digits"][3] == "no: fewer than 3 seeds"
    write(tmp_path, "digits", 2, 0.3, 21.0)
    for seed, error in enumerate((0.2, 0.3, 0.4)):
        write(tmp_path, "digits-fast", seed, error, 9.0 + seed)
    found = rows(tmp_path)
    assert list(found) == ["digits-fast", "digits"]  # the fastest first
    made = ["a GPU", "2026-11-18"]
    # t = -0.7 / (0.1 sqrt(1 / 3 + 360 / 1437)), two degrees of freedom
    assert found["digits-fast"] == ["10.00 ± 1.00", "0.300 ± 0.100 (3)", "0.0059", "yes", *made]
    assert found["digits"][0] == "21.00 ± 1.00" and found["digits"][5] == "2026-11-18 to 2026-11-19"
    text = filled(MARKED, tmp_path)
    assert CORRECTED in text and CORRECTED not in filled(MARKED.replace("digits", "mnist"), tmp_path)
    assert f"## digits: error below {BARS['digits']:g} %" in text
    assert "| seconds† |" in text and "| date† |" in text and NOTE in text
    assert filled(text, tmp_path) == text


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"error": 1.9}, "not surely below the bar"),
        ({"error": 4.0}, "misses the bar"),
        ({"device": "another GPU"}, "several devices"),
        ({"begun_by": [{"device": "another GPU", "commit": "1" * 40}]}, "several devices"),
        ({"dirty": True}, "uncommitted code"),
    ],
)
def test_what_is_no_record_is_told_and_stands_behind_records(tmp_path, changed, reason):
    for seed, error in enumerate((0.2, 0.3, 0.4)):
        write(tmp_path, "digits", seed, error, 20.0)
    write(tmp_path, "digits-fast", 0, 0.2, 9.0)
    write(tmp_path, "digits-fast", 1, 0.3, 9.0)
    write(tmp_path, "digits-fast", 2, **({"error": 0.4, "seconds": 9.0} | changed))
    found = rows(tmp_path)
    assert found["digits-fast"][3] == f"no: {reason}"
    assert list(found) == ["digits", "digits-fast"]


def test_results_of_another_recipe_or_without_times_are_left_out(tmp_path):
    recipe = RECIPES["records/digits"]
    assert record_of(recipe, tmp_path) is None
    old = write(tmp_path, "digits", 0, 0.2, 20.0)
    del old["phases"]
    write_result(result_path(tmp_path, recipe.name, 0), old)
    write(tmp_path, "digits", 1, 0.2, 20.0, run=to_plain(RECIPES["records/digits-fast"].make()))
    assert record_of(recipe, tmp_path) is None
    for seed in (2, 3, 4):
        write(tmp_path, "digits", seed, 0.1 * seed, 20.0)
    assert record_of(recipe, tmp_path).errors == pytest.approx((0.2, 0.3, 0.4))
    assert record_of(recipe, tmp_path, seeds=[2, 4]).errors == pytest.approx((0.2, 0.4))


def test_times_are_marked_as_not_recomputable(tmp_path):
    told = {check.name: check for check in unchecked(write(tmp_path, "digits", 0, 0.2, 20.0))}["told"]
    assert told.passed is None and "phases" in told.text and "date" in told.text
    assert not recomputable(RECIPES["records/digits"], tmp_path, "seconds")


def test_a_set_without_records_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there are no records of cifar10; there are mnist, smallnorb, digits"):
        filled(MARKED.replace("digits", "digits cifar10"), tmp_path)
