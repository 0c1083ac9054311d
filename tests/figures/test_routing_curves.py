"""Curves and errors by routing passes, and the logits of figure A.1 of Sabour 2017."""

import pytest

from torchcaps.figures.routing_curves import error_by_passes, logit_change_curves, loss_curves, smooth

matplotlib = pytest.importorskip("matplotlib")
CHANGES = [
    {"step": 10, "loss": 0.9, "logit_change_2": 0.02, "logit_change_3": 0.004, "logit_change_4": 0.0008, "logit_change_5": 0.0002},
    {"step": 15, "validation_error_percent": 3.0},
    {"step": 20, "loss": 0.5, "logit_change_2": 0.01, "logit_change_3": 0.002, "logit_change_4": 0.0004, "logit_change_5": 0.00005},
]


def falling(learning_rate: float, n: int = 100) -> list[dict]:
    return [{"step": 10 * k, "loss": learning_rate**k + 0.01 * (k % 2)} for k in range(1, n + 1)]


def test_a_running_mean_by_hand():
    assert smooth([1.0, 3.0, 8.0, 4.0, 0.0], 1) == pytest.approx([1.0, 4.0, 5.0, 4.0, 0.0])
    assert smooth([1.0, 3.0, 8.0, 4.0, 0.0], 9) == pytest.approx([1.0, 4.0, 3.2, 4.0, 0.0])
    assert smooth([5.0], 3) == [5.0] and smooth([1.0, 2.0], 0) == [1.0, 2.0]


def test_a_slope_stays_a_slope():
    values = [2.0 * k for k in range(20)]
    assert smooth(values, 4) == pytest.approx(values)


def test_logit_changes_over_training_and_at_its_end():
    figure, caption = logit_change_curves(CHANGES)
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["pass 2", "pass 3", "pass 4", "pass 5"]
    assert list(left.lines[1].get_xdata()) == [10, 20] and list(left.lines[1].get_ydata()) == [0.004, 0.002]
    ours, printed = right.lines
    assert list(ours.get_xdata()) == [2, 3, 4, 5] and list(ours.get_ydata()) == [0.01, 0.002, 0.0004, 0.00005]
    assert list(printed.get_xdata()) == [2, 5] and list(printed.get_ydata()) == [0.007, 1e-5]
    assert left.get_yscale() == right.get_yscale() == "log"
    assert "At step 20: 0.01 at pass 2, 0.002 at pass 3, 0.0004 at pass 4, 5e-5 at pass 5." in caption
    assert "The paper prints 0.007 at pass 2 and 1e-5 at pass 5" in caption


def test_fewer_passes_are_drawn_as_they_are():
    figure, _ = logit_change_curves([{"step": 5, "logit_change_2": 0.1, "logit_change_3": 0.2}])
    assert [line.get_label() for line in figure.axes[0].lines] == ["pass 2", "pass 3"]


def test_raw_losses_stand_faint_behind_the_smoothed_ones():
    one, three = falling(0.99), falling(0.97)
    figure, caption = loss_curves({1: one, 3: three})
    (axes,) = figure.axes
    raw, mean, _, other = axes.lines
    assert list(raw.get_ydata()) == [line["loss"] for line in one] and raw.get_alpha() < 0.5
    assert list(mean.get_ydata()) == pytest.approx(smooth([line["loss"] for line in one], 2))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1 routing pass", "3 routing passes"]
    assert other.get_label() == "3 routing passes"
    ends = [sum(line["loss"] for line in journal[-10:]) / 10 for journal in (one, three)]
    assert f"the mean loss is {ends[0]:.3g} with 1 routing pass, {ends[1]:.3g} with 3 routing passes." in caption


@pytest.mark.parametrize(("worst", "scale"), [(15.0, "linear"), (80.0, "log")])
def test_errors_far_apart_have_a_log_scale(worst, scale):
    figure, caption = error_by_passes({"digits": {1: [worst], 2: [1.6, 2.0]}})
    (axes,) = figure.axes
    assert axes.get_yscale() == scale and ("log scale" in axes.get_title(loc="left")) == (scale == "log")
    assert [list(line.get_ydata()) for line in axes.lines] == [[worst], [1.6, 2.0], [worst, 1.8]]
    assert "digits: 1 of 1, 2 of 2" in caption


def test_a_journal_without_the_numbers_is_refused():
    with pytest.raises(ValueError, match="needs journal lines with logit_change_2 and so on, got 1 with loss, step; write what"):
        logit_change_curves([{"step": 1, "loss": 0.5}])
    with pytest.raises(ValueError, match="needs journal lines with 'step' and 'loss', got 0 with nothing"):
        loss_curves({1: [], 3: falling(0.9)})


def test_the_figures_become_pictures(monkeypatch):
    from torchcaps.figures import canvas

    monkeypatch.setattr(canvas, "DPI", 40)
    for figure, _ in (logit_change_curves(CHANGES), loss_curves({1: falling(0.99), 3: falling(0.97)})):
        assert canvas.png(figure).startswith(b"\x89PNG")
