"""Run: a frozen dataclass that holds everything that decides a result, except the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from torchcaps.data import OwnImages, info, stand_in
from torchcaps.data.augment import (
    Anywhere,
    Augmentation,
    Crop,
    Erase,
    Flip,
    Light,
    Mixup,
    Shift,
    Standardise,
    StandardiseFirst,
    Warp,
    shape_after,
)
from torchcaps.data.batches import Hard, Records
from torchcaps.layers.routings import ROUTINGS
from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.train import splits
from torchcaps.train.loop import Options, Trained, train
from torchcaps.train.optimizers import SGD, Adam, RAdam
from torchcaps.train.plain import from_plain, misfit, up_to_date, without_lists
from torchcaps.train.schedules import Cosine, Exponential, OneCycle
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify, ClassifyFrozen
from torchcaps.train.tasks.classify_pairs import ClassifyPairLogits, ClassifyPairs
from torchcaps.train.tasks.experts import Autoencode, LearnDecoder, LearnExperts
from torchcaps.train.tasks.ladder import ClassifyLadder
from torchcaps.train.tasks.logits import ClassifyLikelihood, ClassifyLogits, ClassifyScores
from torchcaps.train.tasks.rbm import LearnBottleneck, LearnRBM
from torchcaps.train.tasks.reconstruct import Reconstruct
from torchcaps.train.tasks.sentences import ClassifySentences
from torchcaps.train.tasks.spread import ClassifySpread

if TYPE_CHECKING:
    from torchcaps.data import DataInfo

PRECISIONS = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Early stopping: end a stage once `part` reaches an accuracy, and keep the weights of that step.

    Example:

        Stage(epochs=20, stop=Stop(accuracy=99.0)).stop.part  # validation
    """

    accuracy: float  # percent
    part: str = "validation"  # "test" is selection on the test set, and a row has to say so
    every: int = 100  # steps between two evaluations


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Learning curve on a fixed sample of `part`, measured every few epochs. Nothing is selected by it.

    Example:

        Stage(epochs=20, watch=Watch(n_images=1000)).watch.every  # 1
    """

    part: str = "test"
    n_images: int = 2500  # at most this many images or sentences, the same ones every time
    every: int = 1  # epochs
    every_steps: int = 0  # measure every so many steps instead, whatever `every` says; 0: by epochs

    def __post_init__(self) -> None:
        for name, least in (("n_images", 1), ("every", 1), ("every_steps", 0)):
            if (found := getattr(self, name)) < least:
                raise ValueError(f"a watch needs {name} of at least {least}; got {found}; give {name}={least} or more")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One task trained with one schedule for a number of epochs, or for `steps` if given.

    Example:

        stage = Stage(epochs=20, batch=64, learning_rate=3e-3)
        stage.steps is None  # True
    """

    task: Task = Classify()  # noqa: RUF009, frozen
    epochs: int = 1
    steps: int | None = None
    batch: int = 128
    balanced: bool = False  # draw every class equally often, whatever its number of images
    records: Records | None = None  # the order of record files, all variants of an image in turn
    hard: Hard | None = None  # show only images whose last loss was large
    learning_rate: float = 1e-3
    schedule: Exponential | Cosine | OneCycle = Exponential()  # noqa: RUF009, frozen
    optimizer: Adam | RAdam | SGD = Adam()  # noqa: RUF009, frozen
    ema: float = 0.0  # decay of the moving average of the weights; 0: no average
    unmixed: int = 0  # batches without mixup that recompute batch norm's statistics at the end (batchnorm.py)
    stop: Stop | None = None  # the schedule still spans all planned steps
    probe_every: int = 0  # steps between two calls of the task's `probe`; 0: never
    watch: Watch | None = None
    # Precision of convolutions and matrix products in training on CUDA: bfloat16 by autocast, or float32, which cuDNN
    # may round to TF32. Training on a CPU and every evaluation run without casts.
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"a stage's precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        if self.records and self.steps is None:
            raise ValueError("an epoch of records has all variants of all images; give a stage with records its steps")

    def n_steps(self, n_images: int) -> int:
        """Count the planned steps with so many training images; an epoch of hard images is shorter."""
        shown = self.hard.n_images(n_images) if self.hard else n_images
        return self.steps if self.steps is not None else self.epochs * (shown // self.batch)

    def quick(self, steps: int, batch: int) -> Stage:
        """Return the stage shortened to a few small steps."""
        return replace(
            self,
            task=self.task.quick(),
            steps=steps,
            batch=min(self.batch, batch),
            stop=None,
            probe_every=min(self.probe_every, steps // 2),
            unmixed=min(self.unmixed, 2),
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A network, its data and its training.

    Example:

        run = Run(data="digits", model="capsnet", model_args={"channels": 32, "kernel": 5, "primary_kernel": 5})
        type(run.build()).__name__, run.sizes()  # ('CapsNet', ((1, 16, 16), 10))
    """

    # the interface that `reproduce` needs from a run or a probe
    needs: ClassVar[tuple[str, ...]] = ()  # rows that must be finished first
    trains: ClassVar[bool] = True
    together: ClassVar[bool] = False  # whether it is computed from the results of another row
    own_images: ClassVar[bool] = False  # whether it makes the images that it is evaluated on

    data: str | OwnImages
    model: str
    model_args: dict[str, Any]
    augment: tuple[Augmentation, ...] = ()
    hold_out: int = 0  # training images held out for model selection; the run then evaluates no test set except `tests`
    views: tuple[str, ...] = ()  # views of the held-out images (data/subsets.py); empty: the images unchanged
    tests: tuple[str, ...] = ()  # further data sets; their test parts are evaluated at the end
    stages: tuple[Stage, ...] = (Stage(),)
    keep_scores: bool = False  # store scores and labels in the result file, for an ensemble

    def learnt_from(self) -> tuple[str, ...]:
        """Return the parts of the data that the run is trained on."""
        return ("train",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_args", without_lists(self.model_args))

    def build(self, n_classes: int | None = None) -> nn.Module:
        """Build the model for the image shape and number of classes of the data, or for `n_classes`."""
        about: DataInfo = info(self.data)
        models = SENTENCE_MODELS if about.kind == "sentences" else MODELS
        if self.model not in models:
            raise ValueError(f"no model {self.model!r}; there are {', '.join(models)} for {about.kind}")
        if wrong := misfit(models[self.model].__init__, self.model_args):
            raise ValueError(f"{self.model} cannot be built with {wrong}; give a value of that type")
        try:
            *shape, usual = self.sizes()
            return models[self.model](*shape, usual if n_classes is None else n_classes, **self.model_args)
        except (TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            args, reason = str(self.model_args), str(error).partition("\n")[0]  # torch adds where in its code it was
            raise ValueError(f"{self.model} cannot be built with {args[:200]}: {reason}") from error

    def sizes(self) -> tuple[Any, ...]:
        """Return the shape of the model input and the number of classes."""
        about = info(self.data)
        seen = about.shape[1:] if about.kind == "sentences" else (shape_after(self.augment, about.shape),)
        return *seen, about.n_classes

    def quick(self, steps: int = 20) -> Run:
        """Shorten the run to seconds for smoke tests: generated images and a few small steps per stage."""
        data = stand_in(self.data)
        # some networks need a second of CPU time per image of this size
        large = data.size == 96 or data.channels == "rgb"
        stages = tuple(stage.quick(min(steps, 8) if large else steps, 4 if large else 16) for stage in self.stages)
        return replace(self, data=str(data), stages=stages, hold_out=0, views=(), tests=())

    def parts(self) -> tuple[str, ...]:
        """List the parts that a finished run is evaluated on, in order."""
        return splits.names(self)

    def part(self, name: str, root: Path | None, seed: int) -> Any:
        """Load the training set (`train`) or a part of the data that the run is evaluated on."""
        return splits.part(self, name, root, seed)

    def score(self, predictions: Tensor, labels: Tensor) -> dict[str, float]:
        """Compute the metrics of a part from stored predictions."""
        return self.stages[-1].task.score(predictions, labels)

    def sets(self) -> set[str]:
        """Return the names of the data sets that the run reads."""
        return {name.split("/")[0] for name in (self.data, *self.tests)}

    def cost(self) -> float:
        """Estimate the cost as planned images times pixels, to run the cheapest first."""
        about = info(self.data)
        images = sum(stage.batch * stage.n_steps(about.n_train) for stage in self.stages)
        return images * about.shape[1] * about.shape[2]

    def execute(self, name: str, seed: int, options: Options) -> Trained:
        """Train the run to its end and evaluate it."""
        return train(self, name=name, seed=seed, options=options)


# fmt: off
KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Run, Stage, Stop, Watch, OwnImages, Exponential, Cosine, OneCycle, Adam, RAdam, SGD,
        Hard, Records, Shift, Anywhere, Crop, Erase, Flip, Light, Standardise, StandardiseFirst, Mixup, Warp,
        Classify, ClassifyFrozen, ClassifyPairs, ClassifyLogits, ClassifyPairLogits, ClassifyScores, ClassifyLadder,
        ClassifyLikelihood, ClassifySentences, ClassifySpread,
        Reconstruct, Autoencode, LearnExperts, LearnDecoder, LearnRBM, LearnBottleneck,
        *map(type, ROUTINGS.values()),
    )
}
# fmt: on


def stored_run(stored: dict[str, Any]) -> Run:
    """Rebuild the run stored in a checkpoint, with old names migrated."""
    found = from_plain(up_to_date(stored), KINDS)
    if not isinstance(found, Run) or not found.stages:
        raise ValueError("the file holds no run with a stage of training; use one that torchcaps wrote")
    return found
