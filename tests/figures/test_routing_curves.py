"""Loss and error against the number of routing iterations."""

import pytest

from torchcaps.figures.routing_curves import error_by_iterations, loss_curves, smooth

matplotlib = pytest.importorskip("matplotlib")


def falling(learning_rate: float, n: int = 100) -> list[dict]:
    return [{"step": 10 * k, "loss": learning_rate**k + 0.01 * (k % 2)} for k in range(1, n + 1)]


def test_a_running_mean_by_hand():
    assert smooth([1.0, 3.0, 8.0, 4.0, 0.0], 1) == pytest.approx([1.0, 4.0, 5.0, 4.0, 0.0])
    assert smooth([1.0, 3.0, 8.0, 4.0, 0.0], 9) == pytest.approx([1.0, 4.0, 3.2, 4.0, 0.0])
    assert smooth([5.0], 3) == [5.0] and smooth([1.0, 2.0], 0) == [1.0, 2.0]


def test_a_slope_stays_a_slope():
    values = [2.0 * k for k in range(20)]
    assert smooth(values, 4) == pytest.approx(values)


def test_raw_losses_stand_faint_behind_the_smoothed_ones():
    one, three = falling(0.99), falling(0.97)
    figure, caption = loss_curves({1: one, 3: three})
    (axes,) = figure.axes
    raw, mean, _, other, _ = axes.lines
    assert list(raw.get_ydata()) == [line["loss"] for line in one] and raw.get_alpha() < 0.5
    assert list(mean.get_ydata()) == pytest.approx(smooth([line["loss"] for line in one], 2))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "1 routing iteration",
        "3 routing iterations",
        "thin lines: as logged",
    ]
    assert other.get_label() == "3 routing iterations"
    ends = [sum(line["loss"] for line in journal[-10:]) / 10 for journal in (one, three)]
    assert (
        f"the mean loss is {ends[0]:.3g} with 1 routing iteration, {ends[1]:.3g} with 3 routing iterations." in caption
    )


@pytest.mark.parametrize(("worst", "scale"), [(15.0, "linear"), (80.0, "log")])
def test_errors_far_apart_have_a_log_scale(worst, scale):
    figure, caption = error_by_iterations({"digits": {1: [worst], 2: [1.6, 2.0]}})
    (axes,) = figure.axes
    assert axes.get_yscale() == scale and ("log scale" in axes.get_ylabel()) == (scale == "log")
    assert [list(line.get_ydata()) for line in axes.lines] == [[worst], [1.6, 2.0], [worst, 1.8]]
    assert "digits: 1 of 1, 2 of 2" in caption


def test_a_journal_without_the_numbers_is_refused():
    with pytest.raises(ValueError, match="needs lines with 'step' and 'loss', got 0 with nothing"):
        loss_curves({1: [], 3: falling(0.9)})


def test_the_figures_become_pictures(monkeypatch):
    from torchcaps.figures import canvas

    monkeypatch.setattr(canvas, "DPI", 40)
    assert canvas.png(loss_curves({1: falling(0.99), 3: falling(0.97)})[0]).startswith(b"\x89PNG")
