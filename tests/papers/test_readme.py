"""What README and the docs say is true: paths exist, tables are those of the result files. Their code: test_pages.py."""

import json
import os
import re
from pathlib import Path

import pytest

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.papers.pages import NUMBER, filled, pages
from torchcaps.probes.kinds import stored
from torchcaps.results.store import read_result, write_result
from torchcaps.results.verify import check_metrics, check_recipe
from torchcaps.train.plain import to_plain

HOME = Path(__file__).parents[2]
README = (HOME / "README.md").read_text()


@pytest.mark.parametrize("page", [*pages(HOME), HOME / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_exists(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} names {link}"


@pytest.mark.parametrize("page", pages(HOME), ids=lambda page: page.name)
def test_every_table_and_marked_number_is_computed_from_the_result_files(page):
    assert filled(page.read_text(), HOME / "results") == page.read_text(), "run `make table`"


def test_a_table_of_named_rows_has_those_in_that_order():
    marked = "<!-- table sabour2017 only like-r3-stopped mnist-cnn -->\n<!-- end -->"
    lines = filled(marked, HOME / "results").splitlines()
    assert ["like-r3-stopped" in lines[3], "mnist-cnn" in lines[4], len(lines)] == [True, True, 6]
    with pytest.raises(ValueError, match="no recipe 'sabour2017/mnist-cn'; did you mean sabour2017/mnist-cnn"):
        filled(marked.replace("mnist-cnn", "mnist-cn"), HOME / "results")


def test_what_else_was_measured_stands_in_columns_of_its_own():
    marked = "<!-- measures hauser2019 restricted_n_pure probe_accuracy -->\n<!-- end -->"
    head, _, *rows = filled(marked, HOME / "results").splitlines()[1:-1]
    assert head == "| row | n | restricted_n_pure | probe_accuracy |"
    (neurons,) = [row for row in rows if "`mnist-rbm`" in row]
    assert re.search(r"\| 3 \| - \| \d+\.\d+ ± \d\.\d+ \|$", neurons)
    with pytest.raises(ValueError, match=r"no row of hauser2019 is measured by probe_acuracy; there are .*probe_accuracy"):
        filled(marked.replace("probe_accuracy", "probe_acuracy"), HOME / "results")
    assert len(filled(marked.replace(" -->\n", " only mnist mnist-rbm -->\n"), HOME / "results").splitlines()) == 6
    bare = "<!-- table hauser2019 bare only mnist -->\n<!-- end -->"
    assert "n_pure" not in filled(bare, HOME / "results") and "n_pure" in filled(bare.replace(" bare", ""), HOME / "results")


def test_of_a_number_for_each_capsule_the_table_has_the_mean():
    marked = "<!-- measures hauser2019 restricted_modal_share only mnist-r3 -->\n<!-- end -->"
    shares = read_result(HOME / "results/hauser2019/mnist-r3/0.json")["extras"]["restricted_modal_share"]
    assert len(shares) == 20
    assert filled(marked, HOME / "results").splitlines()[-2].endswith(f"(`mnist-r3`) | 1 | {sum(shares) / 20:.4g} |")


def test_settings_that_were_tried_stand_in_the_order_of_the_last_column():
    marked = "<!-- tried hauser2019 restricted_n_pure probe_accuracy only choose-force-* -->\n<!-- end -->"
    head, _, *rows = filled(marked, HOME / "results").splitlines()[1:-1]
    assert head == "| setting | n | restricted_n_pure | probe_accuracy |" and len(rows) == 13
    probes = [float(row.split("|")[-2]) for row in rows]
    assert probes == sorted(probes) and probes[0] < probes[-1]
    kept = read_result(HOME / "results/hauser2019/choose-force-10/0.json")["extras"]
    assert f"| `choose-force-10` | 1 | {kept['restricted_n_pure']} | {kept['probe_accuracy']:.4g} |" in rows
    with pytest.raises(ValueError, match=r"is measured by probe_acuracy; there are .*probe_accuracy"):
        filled(marked.replace("probe_accuracy", "probe_acuracy"), HOME / "results")
    with pytest.raises(ValueError, match="no recipe of hauser2019 begins with 'choose-farce-'"):
        filled(marked.replace("choose-force", "choose-farce"), HOME / "results")
    assert filled(marked, HOME / "no results").count("not run yet") == 26


def test_what_was_tried_stands_in_its_own_words_with_what_the_part_kept_aside_says(tmp_path):
    marked = "<!-- tried heinsen2019 told accuracy_percent only choose-sst5-faster choose-sst5 -->\n<!-- end -->"
    head, _, fast, plain = filled(marked, HOME / "results").splitlines()[1:-1]
    stored = json.loads((HOME / "results/heinsen2019/choose-sst5-faster/0.json").read_text())["metrics"]["test"]["accuracy_percent"]
    assert head == "| tried | n | accuracy_percent | command |"
    assert fast == f"| Four times the rate. | 1 | {stored:.4g} | `torchcaps reproduce heinsen2019/choose-sst5-faster --seeds 0` |"
    assert plain.startswith("| The routing as it is: the paper's rate. | 1 | ")
    assert filled(marked, tmp_path).count("| 0 | not run yet |") == 2
    with pytest.raises(ValueError, match="heinsen2019/sst5 is a row"):
        filled(marked.replace("choose-sst5 ", "sst5 "), HOME / "results")


def test_what_was_tried_says_of_which_runs_its_numbers_are(tmp_path):
    """Of code that was not committed, cut short, or left out because today's recipe is another; of another part by that part's name."""
    marked = "<!-- tried heinsen2019 error_percent test_unmixed.error_percent only choose-smallnorb choose-capsnet -->\n<!-- end -->"
    result = read_result(HOME / "results/heinsen2019/choose-smallnorb/0.json")
    numbers = " | ".join(f"{result['metrics'][part]['error_percent']:.4g}" for part in ("test", "test_unmixed"))
    folder = tmp_path / "heinsen2019/choose-smallnorb"
    write_result(folder / "0.json", {**result, "dirty": True, "steps": 1, "planned_steps": 1000})
    write_result(folder / "1.json", {**result, "run": {**result["run"], "model": "another"}})
    _, _, plain, other = filled(marked, tmp_path).splitlines()[1:-1]
    assert plain == f"| `choose-smallnorb` | 1, one at 1 of 1,000 steps, 1 stale left out, 1 of uncommitted code | {numbers} |"
    assert other == "| `choose-capsnet` | 0 | not run yet | not run yet |"
    write_result(
        tmp_path / "heinsen2019/choose-text/0.json", {**result, "metrics": {"test": {"error_percent": 7}}, "run": plain_run("choose-text")}
    )
    assert "| `choose-text` | 1 | 7 | - |" in filled(marked.replace("choose-capsnet", "choose-text"), tmp_path)


def plain_run(name: str) -> dict:
    return json.loads(json.dumps(to_plain(RECIPES[f"heinsen2019/{name}"].make())))


@pytest.mark.parametrize(
    "mark",
    {
        "no such kind": "<!-- choices heinsen2019 error_percent only choose-text -->\n<!-- end -->",
        "words in a wrong order": "<!-- table hauser2019 only mnist bare -->\n<!-- end -->",
        "a star that is not alone": "<!-- tried hauser2019 probe_accuracy only choose-force-* choose-force-7 -->\n<!-- end -->",
        "no end, and another table behind": "<!-- table digits -->\n\n<!-- table hauser2019 -->\n<!-- end -->",
        "an end alone": "| a |\n<!-- end -->",
    }.items(),
    ids=lambda mark: mark[0],
)
def test_a_mark_that_would_fill_nothing_is_refused(mark):
    """The table under it would stay as it is for ever."""
    with pytest.raises(ValueError, match=r"no table|no recipe"):
        filled(mark[1], HOME / "results")


def test_a_typed_result_would_be_noticed():
    typed = re.sub(r"\d\.\d+ ± \d\.\d+ \(n=3\)", "0.001 ± 0.001 (n=3)", README)
    assert typed != README
    assert filled(typed, HOME / "results") != typed


@pytest.mark.parametrize("page", ["hauser2019.md", "heinsen2019.md"])
def test_a_typed_number_in_a_sentence_would_be_noticed(page):
    """Each of them: another last digit, and the page is not what its results make of it."""
    text = (HOME / "docs/papers" / page).read_text()
    numbers = list(NUMBER.finditer(text))
    assert len(numbers) >= 4
    for found in numbers:
        last = found.end("written") - 1
        typed = text[:last] + str((int(text[last]) + 1) % 10) + text[last + 1 :]
        sentence = typed[found.start() : found.end()]  # the whole page for each of them would take seconds
        assert filled(sentence, HOME / "results") == found[0] != sentence


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
    text = filled(f"In (so {written}{mark} %) words.", results)
    assert text.startswith("In (so ") and text.endswith(f"{mark} %) words.")
    return text.removeprefix("In (so ").removesuffix(f"{mark} %) words.")


def test_a_number_in_a_sentence_is_the_mean_with_the_decimals_that_are_written(tmp_path):
    results = kept(tmp_path, seed_0=1.0, seed_1=2.0, seed_2=4.0)
    assert said("error_percent", results) == "2.33"
    assert said("error_percent", results, "17") == "2"
    assert said("error_percent", results, "9.9 ± 0.99") == "2.3 ± 1.53"  # the sd of 1, 2 and 4 is 1.5275
    assert said("100-error_percent", results, "0.000 ± 0.0") == "97.667 ± 1.5"
    assert said("test_unmixed.error_percent", results) == "3.33"
    assert [said(f"error_percent {which}", results) for which in ("least", "most", "seed 1")] == ["1.00", "4.00", "2.00"]
    assert said("100-error_percent least", results) == "96.00"
    assert said("parts", results) == "1.50"  # one for each of two: their mean
    assert said("seconds most", results, "0") == "62"
    assert said("error_percent", kept(tmp_path / "one", seed_0=1.0), "9.9 ± 0.9") == "1.0"


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
        "2.02<!-- heinsen2019/smalnorb error_percent -->": "no recipe 'heinsen2019/smalnorb'; did you mean heinsen2019/smallnorb",
        "2.02<!-- heinsen2019/smallnorb eror_percent -->": "heinsen2019/smallnorb is not measured by eror_percent; it has error_percent",
    }.items(),
)
def test_a_mark_that_would_keep_no_number_honest_is_refused(wrong, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        filled(f"It is {wrong} %.", HOME / "results")


CLAIMED = [path for path in sorted((HOME / "results").rglob("*.json")) if RECIPES[read_result(path)["recipe"]].claim]


@pytest.mark.parametrize("path", CLAIMED, ids=lambda path: str(path.relative_to(HOME / "results")))
def test_every_number_in_a_table_is_of_todays_recipe_and_of_committed_code(path):
    result = read_result(path)
    assert check_recipe(result, RECIPES).passed
    assert not result["dirty"]
    assert re.fullmatch(r"[0-9a-f]{40}", result["commit"])


@pytest.mark.parametrize("path", [path for path in CLAIMED if path.parts[-3] == "digits"], ids=lambda path: "-".join(path.parts[-2:]))
def test_every_metric_on_the_digits_recomputes(path):
    result = read_result(path)
    checks = check_metrics(result, stored(result["run"]), None)
    assert checks
    assert all(check.passed for check in checks), checks


@pytest.mark.data
@pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")
def test_every_metric_on_mnist_recomputes():
    paths = [path for path in CLAIMED if path.parts[-3] == "sabour2017"]
    assert len(paths) >= 12
    for path in paths:
        result = read_result(path)
        assert all(check.passed for check in check_metrics(result, stored(result["run"]), None)), path


@pytest.mark.parametrize("paper", [*PAPERS])
def test_a_paper_is_said_not_to_be_run_only_while_it_is_not(paper):
    """In the words of README and of its page; its tables are computed."""
    begun = any(path.parts[-3] == paper for path in CLAIMED)
    said = [line for line in README.splitlines() if f"(docs/papers/{paper}.md) |" in line]
    page = HOME / "docs" / "papers" / f"{paper}.md"
    assert len(said) == page.exists()
    assert not begun or "not run yet" not in "".join(said)
    assert not begun or not page.exists() or not re.search(r"No row [\w ]*has been", page.read_text())


def test_every_result_file_belongs_to_a_recipe_and_lies_in_its_place():
    files = sorted((HOME / "results").rglob("*.json"))
    assert len(files) >= 18
    for path in files:
        result = read_result(path)
        assert result["recipe"] in RECIPES
        assert path == HOME / "results" / result["recipe"] / f"{result['seed']}.json"
