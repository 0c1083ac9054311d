"""Runs that train no network: a classifier of another row's frozen features, and attacks on what answers.

Each is the run of the network that it looks at and what is done with it, so that a result is stale as soon as either changes.
"""

from dataclasses import dataclass, fields, replace

from torchcaps.data.subsets import pool_of
from torchcaps.train.recipe import KINDS, Run, quick, to_plain
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify

FEATURES = ("pre_mask", "masked", "pixels")  # pixels: their first 256 principal components


@dataclass(frozen=True, kw_only=True)
class Svm:
    """A support vector machine for every pair of classes, with a radial basis function; the most votes win.

    `gamma` None is one over the sum of the features' variances, as scikit-learn's "scale".
    """

    C: float = 100.0
    gamma: float | None = 0.1


@dataclass(frozen=True, kw_only=True)
class Linear:
    """One layer and a softmax, on features of mean 0 and deviation 1."""

    decay: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class Reading(Run):
    """A classifier fitted to the features that a finished row gives of `fit`, tested on `on`."""

    of: str  # the row, "rawlinson2018/like-sparse"
    features: str = "pre_mask"
    classifier: Svm | Linear | None = Svm()
    fit: str = ""  # a portion (data/portions.py)
    n_fit: int = 60_000  # the first so many of it
    on: tuple[str, ...] = ()

    def network(self) -> Run:
        """The run that is read."""
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)})

    def quickly(self) -> "Reading":
        return replace(self, fit=f"{self.data}/train", n_fit=200, on=(f"{self.data}/test",))

    def judged_on(self) -> tuple[str, ...]:
        return self.on

    def judge(self) -> Task:
        return Classify()

    def pools(self) -> tuple[str, ...]:
        """What has to be seen of the network, or of the pixels."""
        return tuple(dict.fromkeys(pool_of(name) for name in (self.fit, *self.on) if name))


@dataclass(frozen=True, kw_only=True)
class Attack(Reading):
    """Pictures changed, each pixel by so many percent of its range at most, so that the answer is wrong: white box, gradients end to end.

    Without a classifier the longest capsule answers. `source`: the pictures are made to mislead another network, and shown to this one.
    """

    strengths: tuple[int, ...] = (5, 10, 20, 30)  # percent
    steps: int = 20
    restarts: int = 5
    n_images: int = 1000
    source: "Attack | None" = None

    def quickly(self) -> "Attack":  # the stages are quick already
        made = replace(super().quickly(), n_images=20, restarts=2, steps=3, strengths=self.strengths[:2], on=())
        return replace(made, source=quick(self.source, self.stages[0].steps) if self.source else None)

    def kinds(self) -> tuple[tuple[str, int], ...]:
        """Method and strength; nothing is done to the first."""
        methods = ("fgsm", "pgd") if self.source is None else ("pgd",)
        return (("clean", 0), *((method, strength) for method in methods for strength in self.strengths))

    def judged_on(self) -> tuple[str, ...]:
        return tuple(f"{method}-{strength}" if strength else method for method, strength in self.kinds())


def same_network(stored: dict, run: Reading) -> bool:
    """Whether a checkpoint's plain run is the one that is read."""
    return stored == to_plain(run.network())


KINDS |= {kind.__name__: kind for kind in (Svm, Linear, Reading, Attack)}
