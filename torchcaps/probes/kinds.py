"""Kinds of probes: a classifier on frozen features of another row, an adversarial attack, an ensemble, a vote.

No probe trains a network. A probe holds the run of its network, so its result is stale as soon as either changes.
It has the interface of a `Run` that `reproduce` needs: `needs`, `parts`, `part`, `sets`, `cost` and `execute`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from torchcaps.data import Labelled, load
from torchcaps.data.subsets import pool_of, portion
from torchcaps.probes.attack import attacked
from torchcaps.probes.classifier import Linear, Svm, classified
from torchcaps.probes.vote import voted
from torchcaps.train.plain import from_plain, up_to_date
from torchcaps.train.recipe import KINDS, Run
from torchcaps.train.state import Options, Outcome
from torchcaps.train.tasks.classify import Classify


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Base of all probes: the run of the probed network.

    Example:

        run = Run(data="generated", model="capsnet", model_args={})
        probe = Vote(network=run, of="mine/capsnet")
        isinstance(probe, Probe), probe.needs, probe.trains  # (True, ('mine/capsnet',), False)
    """

    trains: ClassVar[bool] = False
    together: ClassVar[bool] = False
    own_images: ClassVar[bool] = False
    keep_scores: ClassVar[bool] = False

    network: Run
    of: str  # row of that network, such as "rawlinson2018/like-sparse"; "" for a probe of pixels

    @property
    def needs(self) -> tuple[str, ...]:
        """Rows that must be finished first."""
        return (self.of,) if self.of else ()

    @property
    def data(self) -> str:
        """Data set of the network."""
        return self.network.data

    def learnt_from(self) -> tuple[str, ...]:
        """Return the parts of the data that the probe itself is fitted to."""
        return ()

    def score(self, predictions: Tensor, labels: Tensor) -> dict[str, float]:
        """Compute the metrics of a part from stored predictions."""
        return Classify().score(predictions, labels)

    def cost(self) -> float:
        """Return infinity: probes run after all networks."""
        return float("inf")


@dataclass(frozen=True, kw_only=True)
class FrozenClassifier(Probe):
    """Classifier on the features of a finished row, fitted to the portion `fit` and tested on `on`.

    Example:

        run = Run(data="mnist", model="capsnet", model_args={})
        probe = FrozenClassifier(network=run, of="mine/capsnet", fit="mnist/train", on=("mnist/test",))
        probe.parts(), probe.learnt_from()  # (('mnist/test',), ('mnist/train',))
    """

    features: str = "pre_mask"
    classifier: Svm | Linear | None = Svm()  # noqa: RUF009, frozen
    fit: str = ""  # a portion (data/subsets.py)
    n_fit: int = 60_000  # use at most this many images of `fit`
    on: tuple[str, ...] = ()

    def quick(self, steps: int = 20) -> FrozenClassifier:
        """Return the probe on the generated images of the quick network."""
        network = self.network.quick(steps)
        return replace(self, network=network, fit=f"{network.data}/train", n_fit=200, on=(f"{network.data}/test",))

    def learnt_from(self) -> tuple[str, ...]:
        return (self.fit,) if self.fit else ()

    def parts(self) -> tuple[str, ...]:
        return self.on

    def part(self, name: str, root: Path | None, seed: int) -> Labelled:
        return portion(name, root, seed)

    def sets(self) -> set[str]:
        """Return the names of the data sets that the probe reads."""
        return self.network.sets()

    def pools(self) -> tuple[str, ...]:
        """List the pools of images whose features are needed."""
        return tuple(dict.fromkeys(pool_of(name) for name in (self.fit, *self.on) if name))

    def execute(self, name: str, seed: int, options: Options) -> Outcome:
        """Fit the classifier and test it."""
        return classified(self, seed, options)


@dataclass(frozen=True, kw_only=True)
class Attack(FrozenClassifier):
    """White-box FGSM and PGD attacks on test images, bounded by `strengths` percent of the pixel range.

    Without a classifier, the longest capsule is the prediction. `source`: craft the images on another network and
    show them to this one (transfer attack).

    Example:

        run = Run(data="mnist", model="capsnet", model_args={})
        probe = Attack(network=run, of="mine/capsnet", classifier=None, strengths=(5, 10))
        probe.parts()  # ('clean', 'fgsm-5', 'fgsm-10', 'pgd-5', 'pgd-10')
    """

    own_images: ClassVar[bool] = True

    strengths: tuple[int, ...] = (5, 10, 20, 30)  # percent
    steps: int = 20
    restarts: int = 5
    n_images: int = 1000
    source: Attack | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of, self.source.of) if self.source else (self.of,)

    def quick(self, steps: int = 20) -> Attack:
        few = {"n_images": 20, "restarts": 2, "steps": 3, "strengths": self.strengths[:2], "on": ()}
        return replace(super().quick(steps), **few, source=self.source.quick(steps) if self.source else None)

    def kinds(self) -> tuple[tuple[str, int], ...]:
        """List methods and strengths; the first entry is the clean images."""
        methods = ("fgsm", "pgd") if self.source is None else ("pgd",)
        return (("clean", 0), *((method, strength) for method in methods for strength in self.strengths))

    def parts(self) -> tuple[str, ...]:
        return tuple(f"{method}-{strength}" if strength else method for method, strength in self.kinds())

    def part(self, name: str, root: Path | None, seed: int) -> Labelled:
        """Load the first test images, before any attack, or the portion that the classifier is fitted to."""
        if name not in self.parts():
            return super().part(name, root, seed)
        return Labelled(*(tensor[: self.n_images] for tensor in load(self.network.data, "test", root, seed)))

    def execute(self, name: str, seed: int, options: Options) -> Outcome:
        """Attack the network and compute its error."""
        return attacked(self, seed, options)


@dataclass(frozen=True, kw_only=True)
class Ensemble(Probe):
    """Ensemble of the runs of one row, one for each seed, that sums their scores.

    It has no result file; tables compute it from the result files of its members.

    Example:

        run = Run(data="mnist", model="capsnet", model_args={}, keep_scores=True)
        Ensemble(network=run, of="mine/capsnet").parts()  # ('test',)
    """

    together: ClassVar[bool] = True

    def quick(self, steps: int = 20) -> Ensemble:
        return replace(self, network=self.network.quick(steps))

    def parts(self) -> tuple[str, ...]:
        return self.network.parts()

    def part(self, name: str, root: Path | None, seed: int) -> Any:
        return self.network.part(name, root, seed)

    def sets(self) -> set[str]:
        return self.network.sets()

    def execute(self, name: str, seed: int, options: Options) -> Outcome:
        raise ValueError(
            f"{name} is an ensemble of {self.of}: reproduce that row, and `torchcaps table` adds its runs up"
        )


@dataclass(frozen=True, kw_only=True)
class Vote(Probe):
    """Majority vote of several seeds of a row, computed from the predictions in their result files.

    Seed n of the vote has the members n · n_members onwards, so votes of two seeds share no run.

    Example:

        run = Run(data="mnist", model="capsnet", model_args={})
        Vote(network=run, of="mine/capsnet", n_members=5).needs  # ('mine/capsnet',)
    """

    n_members: int = 3

    def quick(self, steps: int = 20) -> Vote:
        return replace(self, network=self.network.quick(steps), n_members=1)

    def parts(self) -> tuple[str, ...]:
        return self.network.parts()[:1]

    def part(self, name: str, root: Path | None, seed: int) -> Any:
        return self.network.part(name, root, seed)

    def sets(self) -> set[str]:
        return self.network.sets()

    def execute(self, name: str, seed: int, options: Options) -> Outcome:
        """Count the votes of the members."""
        return voted(self, seed, options)


PROBES = {kind.__name__: kind for kind in (Svm, Linear, FrozenClassifier, Attack, Ensemble, Vote)}


def stored(plain: dict[str, Any]) -> Run | Probe:
    """Rebuild the run or probe stored in a result file, with old names migrated."""
    found = from_plain(up_to_date(plain), KINDS | PROBES)
    if not isinstance(found, Probe) and not (isinstance(found, Run) and found.stages):
        raise ValueError("the file holds neither a run nor a probe; use one that torchcaps wrote")
    return found
