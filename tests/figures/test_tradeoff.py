"""What is wanted at once, and who has it."""

from pathlib import Path

import pytest

from torchcaps.figures.tradeoff import Setting, purity_against_probe
from torchcaps.papers.hauser2019 import figures as drawing
from torchcaps.results import read_result

pytest.importorskip("matplotlib")
RESULTS = Path(__file__).parents[2] / "results"
WANTED = {"n_pure": 15, "probe_accuracy": 95, "n_capsules": 20}


def test_a_dot_for_every_setting_and_a_line_for_every_force():
    settings = [Setting(10, 0.2, 18, 92.0), Setting(10, 0.1, 17, 89.0), Setting(7, 0.1, 15, 95.0)]
    figure, words = purity_against_probe(settings, **WANTED)
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines == {"7": [[95.0, 15.0]], "10": [[89.0, 17.0], [92.0, 18.0]]}  # by goal
    assert "1 of 3 settings has both" in words
    assert "none of 2 settings has both" in purity_against_probe(settings[:2], **WANTED)[1]
    with pytest.raises(ValueError, match="got 0"):
        purity_against_probe([], **WANTED)


def test_numbers_off_the_sphere_are_diamonds_of_their_own():
    settings = [Setting(10, 0.1, 17, 89.0), Setting(10, 0.2, 18, 92.0), Setting(10, 0.1, 13, 96.0, 4)]
    axes = purity_against_probe(settings, **WANTED)[0].axes[0]
    lines = {line.get_label(): (line.get_marker(), line.get_linestyle(), line.get_xydata().tolist()) for line in axes.lines}
    assert lines == {"10": ("o", "-", [[89.0, 17.0], [92.0, 18.0]]), "10, some numbers off the sphere": ("D", "None", [[96.0, 13.0]])}
    assert "0.1, R^4" in [text.get_text() for text in axes.texts]


def test_the_dots_are_those_of_the_result_files():
    settings = drawing._settings(RESULTS)
    assert len(settings) >= 13
    extras = read_result(RESULTS / "hauser2019/choose-force-20-goal-30/0.json")["extras"]
    assert Setting(20.0, 0.3, extras["restricted_n_pure"], extras["probe_accuracy"]) in settings
    assert drawing._settings(RESULTS / "none") == []
