"""Lines of tuning.csv: written, merged by seed, and read by the pages."""

from pathlib import Path

import pytest

from torchcaps.papers import PAPERS, RECIPES
from torchcaps.papers.pages import filled
from torchcaps.results.statistics import NOTE as NOT_RECOMPUTABLE
from torchcaps.results.statistics import UNCHECKED
from torchcaps.results.tuning import NOTE, Line, add_tuning, read_tuning, tuned, tuning_path

RESULTS = Path(__file__).parents[2] / "results"


def line(run: str = "a,n_iters=1", seeds: dict[int, float] | None = None, sha: str = "abc") -> Line:
    return Line(run, "a", "n_iters=1 hold_out=64", "validation.error_percent", seeds or {0: 2.0}, "c0ffee", sha)


def test_seeds_of_one_run_are_merged_and_another_run_is_appended(tmp_path):
    path = tmp_path / "tuning.csv"
    add_tuning(path, [line(), line("b")])
    add_tuning(path, [line(seeds={1: 4.0})])
    assert path.read_text().startswith(NOTE)
    assert [dict(found.by_seed) for found in read_tuning(path)] == [{0: 2.0, 1: 4.0}, {0: 2.0}]
    assert "0:2 1:4,3,c0ffee,abc" in path.read_text()  # the mean beside the seeds
    add_tuning(path, [line(seeds={2: 1.0}, sha="def")])  # of another run by that name: appended
    assert [dict(found.by_seed) for found in read_tuning(path)] == [{0: 2.0, 1: 4.0}, {0: 2.0}, {2: 1.0}]


def test_a_page_reads_a_tuned_number_by_its_mark(tmp_path):
    add_tuning(tuning_path(tmp_path, "smoke"), [line(seeds={0: 2.0, 1: 3.0})])
    mark = "<!-- smoke/a,n_iters=1 validation.error_percent -->"
    page = filled(f"It has 0.0{mark} % error.", tmp_path)
    assert page.startswith(f"It has 2.5{mark}{UNCHECKED} % error.\n") and page.count(NOT_RECOMPUTABLE) == 1
    assert filled(page, tmp_path) == page
    with pytest.raises(ValueError, match=r"is not measured by seconds; it has validation.error_percent"):
        tuned(tmp_path, "smoke", "a,n_iters=1", "seconds")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/tuning.csv")), ids=lambda path: path.parent.name)
def test_committed_lines_vary_rows_that_are_there(path):
    lines = read_tuning(path)
    assert path.parent.name in PAPERS and len({found.run for found in lines}) >= 2  # one alone is no choice
    assert {f"{path.parent.name}/{found.row}" for found in lines} <= set(RECIPES)
    assert all(found.by_seed and found.commit and found.run_sha256 for found in lines)
