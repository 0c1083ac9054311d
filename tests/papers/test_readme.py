"""Paths on README and the docs exist, and their tables and numbers are those of the result files. Their code:
test_pages.py.
"""

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest

from torchcaps.papers import RECIPES
from torchcaps.papers.pages import NUMBER, _selected, filled, pages
from torchcaps.papers.routings.costs import Cost, write_costs
from torchcaps.probes.kinds import stored
from torchcaps.results import means, statistics
from torchcaps.results.statistics import NOTE
from torchcaps.results.store import read_result, write_result
from torchcaps.results.verify import check_metrics, check_recipe

HOME = Path(__file__).parents[2]
README = (HOME / "README.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def committed_results_are_read_once():
    """The same few hundred files are behind every page."""
    once = cache(read_result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            statistics, "read_result", lambda path: (once if HOME / "results" in path.parents else read_result)(path)
        )
        yield


@pytest.mark.parametrize("page", [*pages(HOME), HOME / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_exists(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} names {link}"


@pytest.mark.parametrize("page", pages(HOME), ids=lambda page: page.name)
def test_every_table_and_marked_number_is_computed_from_the_result_files(page):
    assert filled(page.read_text(), HOME / "results") == page.read_text(), "run `make table`"


def test_the_means_that_the_package_ships_are_those_of_the_result_files():
    assert means.PATH.read_text() == means.means_text(RECIPES, HOME / "results"), "run `make table`"


def test_a_table_of_named_rows_has_those_in_that_order():
    marked = "<!-- table sabour2017 only like-r3-stopped mnist-cnn -->\n<!-- end -->"
    lines = filled(marked, HOME / "results").splitlines()
    assert ["like-r3-stopped" in lines[3], "mnist-cnn" in lines[4], len(lines)] == [True, True, 6]
    with pytest.raises(ValueError, match="no recipe 'sabour2017/mnist-cn'; did you mean sabour2017/mnist-cnn"):
        filled(marked.replace("mnist-cnn", "mnist-cn"), HOME / "results")


def test_what_else_was_measured_stands_in_columns_of_its_own():
    marked = "<!-- measures hauser2019 restricted_n_pure probe_accuracy -->\n<!-- end -->"
    head, _, *rows, empty, note = filled(marked, HOME / "results").splitlines()[1:-1]
    assert head == "| row | n | restricted_n_pure† | probe_accuracy† |"
    assert (empty, note) == ("", NOTE)
    (neurons,) = [row for row in rows if "`mnist-rbm`" in row]
    assert re.search(r"\| 3 \| - \| \d+\.\d+ ± \d\.\d+ \|$", neurons)
    with pytest.raises(
        ValueError, match=r"no row of hauser2019 is measured by probe_acuracy; there are .*probe_accuracy"
    ):
        filled(marked.replace("probe_accuracy", "probe_acuracy"), HOME / "results")
    assert len(filled(marked.replace(" -->\n", " only mnist mnist-rbm -->\n"), HOME / "results").splitlines()) == 8
    bare = "<!-- table hauser2019 bare only mnist -->\n<!-- end -->"
    assert "n_pure" not in filled(bare, HOME / "results") and "n_pure" in filled(
        bare.replace(" bare", ""), HOME / "results"
    )


def test_a_number_that_cannot_be_recomputed_says_so_and_the_page_says_it_once():
    """An extra and a tuned setting get the dagger, a metric loses one; filling twice changes nothing."""
    extra = "1<!-- hauser2019/mnist probe_accuracy -->, 2<!-- hauser2019/mnist restricted_n_pure -->"
    metric = "3<!-- sabour2017/mnist-r3-recon error_percent -->†"
    page = filled(f"{extra}, {metric}.\n", HOME / "results")
    assert re.sub(r"\d+(<!-- \S+ \S+ -->)", r"n", page.splitlines()[0]) == "n†, n†, n."
    assert page.count(NOTE) == 1 and page.endswith(f"<!-- unchecked -->\n{NOTE}\n<!-- end -->\n")
    assert filled(page, HOME / "results") == page
    assert NOTE not in filled(f"<!-- unchecked -->\n{NOTE}\n<!-- end -->\n{metric}", HOME / "results")
    assert NOTE not in filled(metric, HOME / "results")


def test_of_a_number_for_each_capsule_the_table_has_the_mean():
    marked = "<!-- measures hauser2019 restricted_modal_share only mnist-r3 -->\n<!-- end -->"
    shares = read_result(HOME / "results/hauser2019/mnist-r3/0.json")["extras"]["restricted_modal_share"]
    assert len(shares) == 20
    assert filled(marked, HOME / "results").splitlines()[-4].endswith(f"(`mnist-r3`) | 1 | {sum(shares) / 20:.4g} |")


@pytest.mark.parametrize(
    "mark",
    {
        "no such kind": "<!-- choices heinsen2019 error_percent only choose-text -->\n<!-- end -->",
        "words in a wrong order": "<!-- table hauser2019 only mnist bare -->\n<!-- end -->",
        "no end, and another table behind": "<!-- table digits -->\n\n<!-- table hauser2019 -->\n<!-- end -->",
        "an end alone": "| a |\n<!-- end -->",
    }.items(),
    ids=lambda mark: mark[0],
)
def test_a_mark_that_would_fill_nothing_is_refused(mark):
    """The table under it would stay as it is for ever."""
    with pytest.raises(ValueError, match=r"no table|no recipe"):
        filled(mark[1], HOME / "results")


@pytest.mark.parametrize("page", ["README.md", "docs/papers/hauser2019.md", "docs/papers/heinsen2019.md"])
def test_a_typed_number_would_be_noticed(page):
    """Another last digit in any of them, and the page is not what its results make of it."""
    text = (HOME / page).read_text()
    numbers = [found for found in NUMBER.finditer(text) if found["written"] != "not run yet"]
    assert len(numbers) >= 4
    for found in numbers:
        last = found.end("written") - 1
        typed = text[:last] + str((int(text[last]) + 1) % 10) + text[last + 1 :]
        sentence = typed[found.start() : found.end()]  # the whole page for each of them would take seconds
        assert filled(sentence, HOME / "results").splitlines()[0] == found[0] != sentence


def kept(folder: Path, **errors: float) -> Path:
    """Results of one row with these errors, by the names `seed_0` and so on."""
    result = read_result(HOME / "results/heinsen2019/smallnorb/0.json")
    for name, error in errors.items():
        seed = int(name.removeprefix("seed_"))
        metrics = {"test": {"error_percent": error}, "test_unmixed": {"error_percent": error + 1}}
        write_result(
            folder / f"heinsen2019/smallnorb/{seed}.json",
            {**result, "seed": seed, "metrics": metrics, "extras": {"parts": [1, 2]}, "seconds": 60 + seed},
        )
    return folder


def said(words: str, results: Path, written: str = "0.00") -> str:
    mark = f"<!-- heinsen2019/smallnorb {words} -->"
    text, *_ = filled(f"In (so {written}{mark} %) words.", results).splitlines()
    before, found, after = text.removeprefix("In (so ").partition(mark)
    assert found and after in (" %) words.", "† %) words.")
    return before + after.removesuffix(" %) words.")


def test_a_number_may_be_that_of_the_seed_with_the_least_of_another_number(tmp_path):
    results = kept(tmp_path, seed_0=3.0, seed_1=1.0, seed_2=4.0)  # seconds rise with the seed
    assert said("100-error_percent by seconds of 3", results) == "97.00"
    assert said("error_percent by test_unmixed.error_percent of 3", results) == "1.00"
    assert said("error_percent by seconds of 3", tmp_path / "nothing") == "not run yet"


def test_a_selection_waits_for_its_number_of_seeds_and_takes_no_more(tmp_path):
    results = kept(tmp_path, seed_0=3.0, seed_1=2.0, seed_2=1.0)
    assert said("error_percent by test_unmixed.error_percent of 2", results) == "2.00", "the third makes it no better"
    assert said("error_percent by test_unmixed.error_percent of 4", results) == "not run yet"
    assert _selected({0: 5.0, 1: 6.0, 2: 7.0}, {1: 2.0, 2: 1.0, 3: 0.0}, 2) == {2: 7.0}, "seeds that have both"
    assert _selected({0: 5.0, 1: 6.0}, {1: 2.0, 2: 1.0}, 2) == {}


def test_a_number_in_a_sentence_is_the_mean_with_the_decimals_that_are_written(tmp_path):
    results = kept(tmp_path, seed_0=1.0, seed_1=2.0, seed_2=4.0)
    assert said("error_percent", results) == "2.33"
    assert said("error_percent", results, "17") == "2"
    assert said("error_percent", results, "9.9 ± 0.99") == "2.3 ± 1.53"  # the sd of 1, 2 and 4 is 1.5275
    assert said("100-error_percent", results, "0.000 ± 0.0") == "97.667 ± 1.5"
    assert said("test_unmixed.error_percent", results) == "3.33"
    assert [said(f"error_percent {which}", results) for which in ("least", "most", "seed 1")] == [
        "1.00",
        "4.00",
        "2.00",
    ]
    assert said("100-error_percent least", results) == "96.00"
    assert said("parts", results) == "1.50†"  # one for each of two: their mean
    assert said("seconds most", results, "0") == "62†"
    assert said("error_percent", kept(tmp_path / "one", seed_0=1.0), "9.9 ± 0.9") == "1.0"


def test_a_number_may_be_the_ratio_of_two_training_steps(tmp_path):
    costs = [Cost(row, ms, 100, 8, "one GPU", "c") for row, ms in (("digits-em", 3.0), ("digits-uniform", 2.0))]
    write_costs(tmp_path, {cost.row: cost for cost in costs})

    def ratio(row: str, other: str, name: str = "ms", written: str = "0.00") -> str:
        return filled(f"{written}<!-- routings/{row} {name} over {other} -->", tmp_path).split("<")[0]

    assert ratio("digits-em", "digits-uniform") == "1.50"
    assert ratio("digits-uniform", "digits-em", written="9.9") == "0.7"
    assert ratio("digits-em", "digits-uniform", "memory_bytes") == "1.00"
    assert ratio("digits-em", "digits-dynamic") == "not run yet"
    write_costs(tmp_path, {cost.row: cost._replace(commit=cost.row) for cost in costs})
    with pytest.raises(
        ValueError, match="or other code; time both by `torchcaps bench routings digits-em digits-uniform`"
    ):
        ratio("digits-em", "digits-uniform")


def test_a_number_in_a_sentence_that_nobody_ran_says_so(tmp_path):
    assert said("error_percent", tmp_path) == said("error_percent", tmp_path, "not run yet") == "not run yet"
    results = kept(tmp_path, seed_0=1.0, seed_1=2.0)
    assert said("error_percent seed 2", results) == "not run yet"
    assert said("error_percent", results, "not run yet") == "1.5 ± 0.71"
    stale = read_result(results / "heinsen2019/smallnorb/1.json")
    write_result(results / "heinsen2019/smallnorb/1.json", {**stale, "run": {**stale["run"], "model": "another"}})
    assert said("error_percent", results) == "1.00"


@pytest.mark.parametrize(
    "wrong, why",
    {
        "of<!-- heinsen2019/smallnorb error_percent -->": "'of<!-- heinsen2019/smallnorb error_percent -->' marks no table and no number",
        "24,300<!-- heinsen2019/smallnorb error_percent -->": "no number",
        "2.02 <!-- heinsen2019/smallnorb error_percent -->": "no number",
        "2.02<!-- heinsen2019/smallnorb error_percent median -->": "no number",
        "2.02<!-- heinsen2019/smallnorb error_percent by seconds -->": "no number",
        "2.02<!-- heinsen2019/smalnorb error_percent -->": "no recipe 'heinsen2019/smalnorb'; did you mean heinsen2019/smallnorb",
        "2.02<!-- heinsen2019/smallnorb ms over smallnorb-cnn -->": "no cost of a training step",
        "2.02<!-- routings/digits-em seconds over digits-uniform -->": "no cost of a training step",
        "2.02<!-- routings/digits-em ms over digits-unifrm -->": "did you mean routings/digits-uniform",
        "2.02<!-- heinsen2019/smallnorb eror_percent -->": "heinsen2019/smallnorb is not measured by eror_percent; it has error_percent",
    }.items(),
)
def test_a_mark_that_would_keep_no_number_honest_is_refused(wrong, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        filled(f"It is {wrong} %.", HOME / "results")


def recipe_of(path: Path) -> str:
    """Name of the recipe whose folder a result file lies in."""
    return path.parent.relative_to(HOME / "results").as_posix()


CLAIMED = [path for path in sorted((HOME / "results").rglob("*.json")) if RECIPES[recipe_of(path)].claim]


def faults(path: Path) -> list[str]:
    """Say what keeps a result file out of a table."""
    result = read_result(path)
    found = {
        "of another recipe": not check_recipe(result, RECIPES).passed,
        "of code that was not committed": result["dirty"],
        "of no commit": not re.fullmatch(r"[0-9a-f]{40}", result["commit"]),
    }
    return [f"{path}: {fault}" for fault, there in found.items() if there]


@pytest.mark.parametrize("paper", sorted({path.parts[-3] for path in CLAIMED}))
def test_every_number_in_a_table_is_of_todays_recipe_and_of_committed_code(paper):
    paths = [path for path in CLAIMED if path.parts[-3] == paper]
    assert paths and not [fault for path in paths for fault in faults(path)]


def test_a_result_of_other_code_is_found(tmp_path):
    result = json.loads(CLAIMED[0].read_text())
    for change in ({"dirty": True}, {"commit": "unknown"}, {"run": result["run"] | {"hold_out": 7}}):
        path = tmp_path / "0.json"
        path.write_text(json.dumps(result | change))
        assert len(faults(path)) == 1


@pytest.mark.parametrize(
    "path", [path for path in CLAIMED if path.parts[-3] == "digits"], ids=lambda path: "-".join(path.parts[-2:])
)
def test_every_metric_on_the_digits_recomputes(path):
    result = read_result(path)
    checks = check_metrics(result, stored(result["run"]), None)
    assert checks
    assert all(check.passed for check in checks), checks


@pytest.mark.data
@pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")
def test_every_metric_on_mnist_recomputes():
    results = {path: read_result(path) for path in CLAIMED if path.parts[-3] == "sabour2017"}
    digits = {path: result for path, result in results.items() if "mnist" in result["data"]["name"]}
    assert len(digits) >= 12
    for path, result in digits.items():
        assert all(check.passed for check in check_metrics(result, stored(result["run"]), None)), path


@pytest.mark.parametrize("paper", sorted(path.name for path in (HOME / "docs/papers").iterdir() if path.is_dir()))
def test_readme_links_every_paper_and_has_a_number_of_it(paper):
    assert f"](docs/papers/{paper}.md)" in README
    assert any(found["recipe"].startswith(f"{paper}/") for found in NUMBER.finditer(README))


def test_readme_counts_the_seeds_that_were_run():
    counts = re.findall(r"<!-- (\S+) \S+ --> \((\d+)\)", README)
    assert len(counts) >= 10
    for recipe, n in counts:
        assert len(list((HOME / "results" / recipe).glob("*.json"))) == int(n), recipe


def test_readme_can_be_read_in_two_minutes():
    assert len(README.encode()) <= 9_000
    assert [line for line in README.splitlines() if len(line) > 160 and not line.startswith("|")] == []
    assert (HOME / "docs/moving.gif").stat().st_size < 1_500_000


def test_every_result_file_belongs_to_a_recipe_and_lies_in_its_place():
    files = sorted((HOME / "results").rglob("*.json"))
    assert len(files) >= 18
    for path in files:
        result = read_result(path)
        assert result["recipe"] in RECIPES
        assert path == HOME / "results" / result["recipe"] / f"{result['seed']}.json"
