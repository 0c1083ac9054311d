"""What the rows of this paper are made of."""

from collections.abc import Callable
from dataclasses import fields, replace

from torchcaps.data.augment import Shift
from torchcaps.probes.kinds import Reading
from torchcaps.train.recipe import Run, Stage, reproduces
from torchcaps.train.tasks.reconstruct import Reconstruct

STAGE = Stage(task=Reconstruct(), steps=30_000, batch=128, rate=1e-3)  # the authors' decay: 0.96 every 2,000 steps, down to 1e-6
MNIST = Run(data="mnist", model="sparsecaps", model_args={"preset": "sparse"}, augment=(Shift(2),), stages=(STAGE,))
ASKED = "affnist-like/60000-70000"
SHARED = "the same digits on both sides"  # in the name of every row where it is so
LIKE = replace(MNIST, data="mnist-40", augment=(Shift(6),), tests=(ASKED,))
WINS = "extras.winning_frequency_least", "extras.winning_frequency_most", "extras.relative_support_8"


def reading(network: Run, of: str, fit: str, on: str, **how) -> Reading:
    """A classifier of the row `of`, whose run is `network`."""
    return Reading(**plain(network), of=f"rawlinson2018/{of}" if of else "", fit=fit, on=(on,), **how)


def plain(network: Run, kind: type[Run] = Run) -> dict:
    """The settings that every run of this kind has."""
    return {field.name: getattr(network, field.name) for field in fields(kind)}


def claim(row: str, on: str, printed: float | None = None, table: str = "1") -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    """Tie a classifier's error to the printed one."""
    return reproduces(table=table, row=row, metric=f"{on}.error_percent", printed=printed)
