"""What docs/papers/heinsen2019.md types of new viewpoints and no mark can name: it says what the files say."""

import re
from statistics import mean

import pytest
from heinsen_results import HOME, PAGE, WITH_DATA, amiss, errors, result, shown, welch

import torchcaps
from torchcaps.data import load
from torchcaps.papers.heinsen2019.image_figures import by_view, of_viewpoints, rows_today
from torchcaps.papers.made import results_of
from torchcaps.results.compare import sd_of_mean


@pytest.mark.data
@WITH_DATA
def test_viewpoints():
    def more_wrong(row: str, other: str, n_seeds: int) -> tuple[float, float]:
        labels, toys = shown(row.split("-")[0])
        more = 100 * sum(amiss(result(row, seed), labels) - amiss(result(other, seed), labels) for seed in range(n_seeds)) / n_seeds
        return more.mean().item(), sd_of_mean(more, toys)

    by = *more_wrong("azimuth", "azimuth-cnn", 3), *more_wrong("elevation", "elevation-cnn", 3)
    assert "it has {:.2f} ± {:.2f} points more wrong at new azimuths and {:.2f} ± {:.2f} at new elevations".format(*by) in PAGE
    chances = [welch(errors(vary), errors(f"{vary}-cnn")) for vary in ("azimuth", "elevation")]
    assert "by Welch's t test of the seeds, two tests, p = {:.1g} and {:.1g}".format(*chances) in PAGE
    by = *more_wrong("azimuth-capsnet", "azimuth", 1), *more_wrong("elevation-capsnet", "elevation", 1)
    assert "it has {:.1f} ± {:.1f} points more wrong than the routing's same seed, at new elevations {:.1f} ± {:.1f}".format(*by) in PAGE


@pytest.mark.slow
@pytest.mark.data
@WITH_DATA
def test_captions_of_poses():
    """Figures 4, 6 and 7, of the weights in the package."""
    pytest.importorskip("matplotlib", reason="pip install 'torchcaps[experiments]'")
    words = {
        name: said for name, (_, said) in of_viewpoints(torchcaps.load("em-capsnet-smallnorb"), load("smallnorb", "test"), None).items()
    }
    (stress,) = re.findall(r"stress \S+ to [\d.]+\d", words["figure-4"])
    assert f"({stress})" in PAGE
    for number, size in ((6, 450), (7, 225)):
        (right,) = re.findall(rf"wins in (\d+) of {size} pictures", words[f"figure-{number}"])
        assert f"wins in {right} of {size} pictures" in PAGE
    numbers = re.findall(r"([\d.]+) at 140 and ([\d.]+) at 340 degrees", words["figure-6"])
    distances = "first view is {} of the norm at 140 degrees and {} at 340, the norm {} and {} of the first, the cosine {} and {}:"
    assert distances.format(*(number for pair in numbers for number in pair)) in PAGE
    distance, _, cosine = re.findall(r"([\d.]+) at 70 degrees", words["figure-7"])
    assert f"At 70 degrees the distance to the view at 30 is {distance} of the norm, the cosine {cosine}." in PAGE


@pytest.mark.data
@WITH_DATA
def test_errors_by_view():
    """What the caption says of the curves."""
    seen = by_view(results_of("heinsen2019", HOME / "results", rows_today()), None)
    by_degrees = {  # the files count azimuths in tens of degrees, elevations from 30 degrees in steps of 5
        "azimuth": lambda view: 10 * view,
        "elevation": lambda view: 30 + 5 * view,
    }
    (routing, cnn, capsnet), of_elevation = (
        [
            {degrees(view): mean(run[view] for run in runs) for view in runs[0]}
            for runs in (seen[vary][network] for network in ("EM routing", "CNN", "CapsNet"))
        ]
        for vary, degrees in by_degrees.items()
    )
    for errors_at, worst in ((routing, {80, 260}), (capsnet, {80, 260}), (cnn, {240, 260})):
        assert set(sorted(errors_at, key=errors_at.__getitem__)[-2:]) == worst
    assert all(errors_at[200] == min(errors_at[view] for view in range(60, 300, 20)) for errors_at in (routing, capsnet))
    assert all(cnn[view] > routing[view] for view in range(160, 260, 20))
    for errors_at in of_elevation:
        assert all(errors_at[view] < errors_at[view + 5] for view in range(50, 70, 5))
    routing, cnn, _ = of_elevation
    assert all(routing[view] > cnn[view] for view in range(50, 75, 5))
