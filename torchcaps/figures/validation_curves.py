"""Figure 8 of Heinsen 2019, from result files: loss and accuracy on the validation part after each epoch of training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchcaps.figures.canvas import BLUE, GREEN, ORANGE, SKY, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

COLOURS = (BLUE, ORANGE, GREEN, SKY)
WANTED = ("validation_loss", "validation_loss_sd", "validation_accuracy_percent", "validation_accuracy_sd")


def validation_curves(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Figure, str]:
    """By name the results of each seed: a line each, with the deviation between batches of 20 as a band. With a caption."""
    ends = []
    with canvas(3.6 * len(results), 4.6) as figure:
        grid = figure.subplots(2, len(results), squeeze=False, sharex="col")
        for column, (name, seeds) in enumerate(results.items()):
            for result, colour in zip(seeds, COLOURS * len(seeds), strict=False):
                epochs, lines = _by_epoch(result)
                for axes, what, spread in ((grid[0, column], *WANTED[:2]), (grid[1, column], *WANTED[2:])):
                    values, sds = ([line[key] for line in lines] for key in (what, spread))
                    axes.plot(epochs, values, "o-", color=colour, markersize=4, linewidth=1.4, label=f"seed {result['seed']}")
                    low, high = ([value + sign * sd for value, sd in zip(values, sds, strict=True)] for sign in (-1, 1))
                    axes.fill_between(epochs, low, high, color=colour, alpha=0.12, linewidth=0)
            last = [_by_epoch(result)[1][-1]["validation_accuracy_percent"] for result in seeds]
            ends.append(f"{name} {', '.join(f'{value:.1f}' for value in last)} %")
            grid[0, column].set(title=f"{name}: validation loss")
            grid[1, column].set(title="validation accuracy in %", xlabel="epoch")
            grid[1, column].xaxis.get_major_locator().set_params(integer=True)
            for axes in grid[:, column]:
                axes.grid(axis="y")
        grid[0, 0].legend()
    return figure, (
        f"After the last epoch: {'; '.join(ends)}. The shaded area is the standard deviation between batches of 20 sentences. "
        "After figure 8 of Heinsen (2019)."
    )


def _by_epoch(result: Mapping[str, Any]) -> tuple[list[float], list[Mapping[str, Any]]]:
    lines = [line for line in result["curve"] if all(name in line for name in WANTED)]
    if not lines:
        raise ValueError(f"validation_curves needs curves with {', '.join(WANTED)}; {result['recipe']} seed {result['seed']} has none")
    of_an_epoch = result["planned_steps"] / sum(stage["epochs"] for stage in result["run"]["stages"])
    return [line["step"] / of_an_epoch for line in lines], lines
