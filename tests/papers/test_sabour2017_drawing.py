"""Drawing of Sabour 2017's figure A.1, and of a trained network that routes longer or shorter."""

import pytest

from torchcaps.figures import canvas
from torchcaps.papers.sabour2017.drawing import iterations_at_test, logit_change_curves

matplotlib = pytest.importorskip("matplotlib")


def changes(*values: float) -> dict[str, float]:
    """A journal's numbers, from the second iteration on."""
    return {f"logit_change_{number}": value for number, value in enumerate(values, start=2)}


CHANGES = [
    {"step": 10, "loss": 0.9} | changes(0.02, 0.004, 0.0008, 0.0002),
    {"step": 15, "validation_error_percent": 3.0},
    {"step": 20, "loss": 0.5} | changes(0.01, 0.002, 0.0004, 0.00005),
]


def test_logit_changes_over_training_and_at_its_end():
    figure, caption = logit_change_curves(CHANGES)
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["iteration 2", "iteration 3", "iteration 4", "iteration 5"]
    assert list(left.lines[1].get_xdata()) == [10, 20] and list(left.lines[1].get_ydata()) == [0.004, 0.002]
    ours, printed = right.lines
    assert list(ours.get_xdata()) == [2, 3, 4, 5] and list(ours.get_ydata()) == [0.01, 0.002, 0.0004, 0.00005]
    assert list(printed.get_xdata()) == [2, 5] and list(printed.get_ydata()) == [0.007, 1e-5]
    assert left.get_yscale() == right.get_yscale() == "log"
    assert "At step 20: 0.01 at iteration 2, 0.002 at iteration 3, 0.0004 at iteration 4, 5e-5 at" in caption
    assert "The paper prints 0.007 at iteration 2 and 1e-5 at iteration 5" in caption


def test_fewer_iterations_are_drawn_as_they_are():
    figure, _ = logit_change_curves([{"step": 5, "logit_change_2": 0.1, "logit_change_3": 0.2}])
    assert [line.get_label() for line in figure.axes[0].lines] == ["iteration 2", "iteration 3"]


def test_a_journal_without_logit_changes_is_refused():
    with pytest.raises(ValueError, match="lines with logit_change_2 and so on, got 1 with loss, step; write what"):
        logit_change_curves([{"step": 1, "loss": 0.5}])


def looked_at(n_iters: int, *accuracies: float) -> dict:
    passes = [
        {"n_iters": n, "accuracy_percent": accuracy, "entropy_share_by_length": 1 - n / 100}
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    return {"n_images": 2000, "n_iters": n_iters, "passes": passes}


def test_accuracy_is_told_against_the_iterations_of_training_as_a_mean_of_seeds():
    digits = [looked_at(2, 90.0, 94.0, 95.0), looked_at(2, 92.0, 96.0, 95.0)]
    figure, caption = iterations_at_test({"digits": digits, "toys": [looked_at(1, 80.0, 70.0, 60.0)]})
    left, right = figure.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[-4.0, 0.0, 0.0], [0.0, -10.0, -20.0]]
    assert list(right.lines[0].get_ydata()) == pytest.approx([0.99, 0.98, 0.97])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["digits", "toys"]
    assert "on 2,000 test images. Seeds: digits: 2; toys: 1." in caption


def test_the_figure_becomes_a_picture(monkeypatch):
    monkeypatch.setattr(canvas, "DPI", 40)
    assert canvas.png(logit_change_curves(CHANGES)[0]).startswith(b"\x89PNG")
