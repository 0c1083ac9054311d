"""Purity of the capsules against the probe: a dot for each setting, labels that cover nothing."""

from pathlib import Path

import pytest

from torchcaps.papers import RECIPES
from torchcaps.papers.hauser2019.figures import tried
from torchcaps.papers.hauser2019.tradeoff import SIZE, Setting, Wanted, _free, _shared, purity_against_probe
from torchcaps.results.tuning import read_tuning, tuning_path

pytest.importorskip("matplotlib")
RESULTS = Path(__file__).parents[2] / "results"
WANTED = Wanted(n_pure=15, probe_accuracy=95, n_capsules=20)


def dots(axes, marker: str) -> dict[tuple[float, ...], tuple[float, ...]]:
    """Where dots of this form are, with their colours."""
    return {tuple(line.get_xydata()[0]): line.get_color() for line in axes.lines if line.get_marker() == marker}


def words(axes) -> list[str]:
    return sorted(text.get_text().strip() for text in axes.texts)


def test_a_dot_for_every_setting_and_a_line_for_every_force():
    settings = [Setting(10, 0.2, 18, 92.0), Setting(10, 0.1, 17, 89.0, row="mnist"), Setting(7, 0.1, 15, 95.0)]
    figure, told = purity_against_probe(settings, WANTED)
    (axes,) = figure.axes
    here = dots(axes, "o")
    assert here[92.0, 18.0] != here[95.0, 15.0]  # another force, another colour
    (line,) = [line for line in axes.lines if line.get_marker() == "None"]
    assert line.get_xydata().tolist() == [[89.0, 17.0], [92.0, 18.0]]  # by goal
    assert tuple(line.get_color()) == tuple(here[92.0, 18.0])
    (ring,) = [line for line in axes.lines if line.get_color() == "none"]
    assert ring.get_xydata().tolist() == [[89.0, 17.0]] and words(axes) == ["0.1", "0.1: mnist", "0.2", "both high"]
    assert "1 of 3 settings" in told
    assert "none of 2 settings" in purity_against_probe(settings[:2], WANTED)[1]


def test_numbers_off_the_sphere_have_a_panel_of_their_own_with_the_others_in_grey():
    on = [Setting(10, 0.1, 17, 89.0), Setting(10, 0.4, 2, 95.5)]
    off = [Setting(10, 0.1, 13, 96.0, 4), Setting(10, 0.1, 14, 96.0, 4, 0.03), Setting(10, 0.2, 15, 96.5, 2)]
    sphere, axes = purity_against_probe([*on, *off], WANTED)[0].axes
    assert set(dots(sphere, "o")) == {(89.0, 17.0), (95.5, 2.0)} and words(sphere) == ["0.1", "0.4", "both high"]
    here = dots(axes, "o")
    assert (
        set(here) == {(95.5, 2.0), (96.0, 13.0), (96.5, 15.0)}
        and here[95.5, 2.0] != here[96.0, 13.0] == here[96.5, 15.0]
    )
    assert set(dots(axes, "D")) == {(96.0, 14.0)}  # another l2
    assert words(axes) == ["2, target 0.2", "4", "4", "both high", "on the sphere"]


def test_settings_on_one_dot_share_its_words():
    settings = [
        Setting(10, 0.1, 13, 96.4, 4, 0.03),
        Setting(10, 0.1, 13, 96.4, 4, 0.1),
        Setting(10, 0.1, 13, 96.4, 8, 0.1),
    ]
    assert words(purity_against_probe(settings, WANTED)[0].axes[0]) == ["4 and 8", "both high"]


def test_words_go_where_they_cover_nothing():
    assert _shared((0, 0, 2, 2), (1, 1, 5, 5)) == 1 and _shared((0, 0, 2, 2), (2, 0, 5, 5)) == 0
    right, left = ((start, -20, start + 30, 20) for start in (SIZE, -30 - SIZE))
    assert _free((0, 0), SIZE, "0.15", [])[0] > 0  # to the right, where nothing is
    assert _free((0, 0), SIZE, "0.15", [right])[0] < 0
    for low, high, up in ((-20, 0, 1), (0, 20, -1)):  # left, and above or below what is there
        beside = _free((0, 0), SIZE, "0.15", [right, (left[0], low, left[2], high)])
        assert beside[0] < 0 < up * beside[1]


def test_what_cannot_be_told_apart_is_not_drawn():
    with pytest.raises(ValueError, match="got 0 settings"):
        purity_against_probe([], WANTED)
    with pytest.raises(ValueError, match="got 4 settings of 4"):
        purity_against_probe([Setting(10, 0.1, 13, 96.0, 4, l2) for l2 in (0.01, 0.02, 0.03, 0.04)], WANTED)


def test_the_dots_are_the_lines_of_tuning():
    """Values are those that the files of the settings held; a row has its ring, whatever row a setting varies."""
    settings = tried(RESULTS)
    assert len(settings) == 33 and sum(map(WANTED.met, settings)) == 6
    assert Setting(20.0, 0.3, 18, 90.8) in settings  # choose-force-20-goal-30
    assert Setting(30.0, 0.1, 18, 96.02, 2, 0.03, "mnist-plain-chosen") in settings  # choose-plain-2-force-30-l2-30
    assert Setting(20.0, 0.1, 16, 95.74, 1, 0.03) in settings  # choose-plain-1-force-20-l2-30
    assert {setting.row for setting in settings} == {"", "mnist", "mnist-plain", "mnist-plain-chosen"}
    assert tried(RESULTS / "none") == []


def test_the_rows_that_settings_vary_are_there():
    rows = {line.row for line in read_tuning(tuning_path(RESULTS, "hauser2019"))}
    assert rows and all(f"hauser2019/{row}" in RECIPES for row in rows)
