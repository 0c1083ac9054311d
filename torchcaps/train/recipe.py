"""A run is a frozen dataclass; a recipe is a function that returns one, tied to the number it is for."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from math import cos, pi
from types import ModuleType
from typing import Any

from torch import nn

from torchcaps.data import DataInfo, OwnImages, info
from torchcaps.data.augment import Anywhere, Augmentation, Crop, Flip, Light, Shift, Standardise, shape_after
from torchcaps.data.augment.mixup import Mixup
from torchcaps.data.augment.warp import Warp
from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.train.optimizers import SGD, Adam, RAdam
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.classify_pairs import ClassifyPairs
from torchcaps.train.tasks.experts import Autoencode, LearnDecoder, LearnExperts
from torchcaps.train.tasks.ladder import ClassifyLadder
from torchcaps.train.tasks.logits import ClassifyLogits, ClassifyPairLogits, ClassifyScores
from torchcaps.train.tasks.rbm import LearnBottleneck, LearnNeurons
from torchcaps.train.tasks.reconstruct import Reconstruct
from torchcaps.train.tasks.sentences import ClassifySentences


class Schedule:
    """Called with a step, it gives the share of the rate in that step."""

    def momentum(self, step: int, n_steps: int) -> float:
        """The share of beta1; here all of it, always."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """Multiply by `rate` every `every` steps, smoothly, down to a floor (the authors' schedule for CapsNet)."""

    rate: float = 0.96
    every: int = 2000
    floor: float = 1e-3  # as a share of the first rate

    def __call__(self, step: int, n_steps: int) -> float:
        return max(self.rate ** (step / self.every), self.floor)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Rise over the first `warmup` share of the steps, then fall along half a cosine to `floor`."""

    warmup: float = 0.0
    floor: float = 0.0

    def __call__(self, step: int, n_steps: int) -> float:
        rise = self.warmup * n_steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return self.floor + (1 - self.floor) * (1 + cos(pi * (step - rise) / max(n_steps - rise, 1))) / 2


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """The rate rises along a line and returns along half a cosine; beta1 falls and returns with it (Heinsen 2019, section 4.2)."""

    start: float = 0.02  # the rate of the first and of the last step, as a share of the highest
    warmup: float = 0.1  # share of the steps until the rate is highest
    low: float = 0.9  # beta1 where the rate is highest, as a share of the first

    def __call__(self, step: int, n_steps: int) -> float:
        return self.start + (1 - self.start) * self._height(step, n_steps)

    def momentum(self, step: int, n_steps: int) -> float:
        return 1 + (self.low - 1) * self._height(step, n_steps)

    def _height(self, step: int, n_steps: int) -> float:
        """0 in the first and in the last step, 1 between them where the rate is highest."""
        rise = self.warmup * n_steps
        if step < rise:
            return step / rise
        return (1 + cos(pi * min((step - rise) / max(n_steps - 1 - rise, 1), 1))) / 2


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End a stage, with the weights as they are, once `part` is answered so well; asked every so many steps."""

    accuracy: float  # percent
    part: str = "validation"  # "test" is selection on the test set, and a row has to say so
    every: int = 100


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Look at some images, or sentences, of `part` after every so many epochs, for a curve in the journal. Nothing is chosen by it."""

    part: str = "test"
    n_images: int = 2500  # or sentences, at most; the same ones every time
    every: int = 1  # epochs


PRECISIONS = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One task trained for a number of epochs (or of steps, where given) with one schedule."""

    task: Task = Classify()  # noqa: RUF009, frozen
    epochs: int = 1
    steps: int | None = None
    batch: int = 128
    balanced: bool = False  # draw every class as often as the others, however many images it has
    rate: float = 1e-3
    schedule: Exponential | Cosine | OneCycle = Exponential()
    optimizer: Adam | RAdam | SGD = Adam()  # noqa: RUF009, frozen
    ema: float = 0.0  # decay of an average of the weights; 0 keeps none
    unmixed: int = 0  # batches, not mixed, over which batch norm's statistics are taken anew at the end, for further numbers (norms.py)
    stop: Stop | None = None  # before the last step, which the schedule still counts on
    probe_every: int = 0  # steps between two looks of the task's `probe` at the model; 0: none
    watch: Watch | None = None
    # of convolutions and products while training on CUDA: by autocast, or as the tensors are, where cuDNN rounds what it convolves to
    # TF32, ten bits, unless PyTorch is told otherwise. On a CPU, and in evaluation everywhere, nothing is cast.
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"a stage's precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that decides a result, but for the seed."""

    data: str | OwnImages
    model: str
    model_args: dict[str, Any]
    augment: tuple[Augmentation, ...] = ()
    hold_out: int = 0  # training images kept aside for choices; such a run sees no test set but those in `tests`
    views: tuple[str, ...] = ()  # how those are shown (data/views.py); as they are, if none is named
    tests: tuple[str, ...] = ()  # further data sets whose test part is tested at the end
    stages: tuple[Stage, ...] = (Stage(),)
    keep_scores: bool = False  # in the result file, with the labels: several runs' are added up for an ensemble

    def build(self) -> nn.Module:
        """The model, for the shape and the classes of the data."""
        about: DataInfo = info(self.data)
        models = SENTENCE_MODELS if about.kind == "sentences" else MODELS
        if self.model not in models:
            raise ValueError(f"no model {self.model!r}; there are {', '.join(models)} for {about.kind}")
        model = models[self.model](*self.sizes(), **self.model_args)
        model.augment = self.augment  # whoever evaluates the model shows it images of the same kind
        return model

    def sizes(self) -> tuple[Any, ...]:
        """What a model is told of the data: the shape of what it sees, and the number of classes."""
        about = info(self.data)
        seen = about.shape[1:] if about.kind == "sentences" else (shape_after(self.augment, about.shape),)
        return *seen, about.n_classes

    def quickly(self) -> "Run":
        """What else a quick variant changes, of a run of another kind (readings.py)."""
        return self

    def judged_on(self) -> tuple[str, ...]:
        """Parts whose names this kind of run makes itself; none: those of its data."""
        return ()

    def judge(self) -> Task:
        """Whose metrics the numbers of a finished run are."""
        return self.stages[-1].task


_TASKS = Classify, ClassifyPairs, ClassifyLogits, ClassifyPairLogits, ClassifyScores, ClassifyLadder, Reconstruct, ClassifySentences
_BY_CONTRAST = Autoencode, LearnExperts, LearnDecoder, LearnNeurons, LearnBottleneck
_SCHEDULES = Exponential, Cosine, OneCycle, Adam, RAdam, SGD, Stop, Watch
_AUGMENTATIONS = Shift, Anywhere, Crop, Flip, Light, Standardise, Mixup, Warp
KINDS = {kind.__name__: kind for kind in (Run, Stage, OwnImages, *_TASKS, *_BY_CONTRAST, *_SCHEDULES, *_AUGMENTATIONS)}


def to_plain(value: Any) -> Any:
    """The value as JSON holds it: a dataclass becomes a dict that names its kind."""
    if is_dataclass(value):
        return {"kind": type(value).__name__} | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    return [to_plain(part) for part in value] if isinstance(value, tuple | list) else value


def from_plain(value: Any) -> Any:
    """The way back. Lists become tuples, since a run is frozen."""
    if isinstance(value, list):
        return tuple(from_plain(part) for part in value)
    if not isinstance(value, dict):
        return value
    parts = {key: from_plain(part) for key, part in value.items() if key != "kind"}
    if "kind" not in value:
        return parts
    if value["kind"] not in KINDS:
        raise ValueError(f"a stored run has a part {value['kind']!r} that this version does not know; it knows {', '.join(KINDS)}")
    return KINDS[value["kind"]](**parts)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """What differs between two plain values, as `path: this, that`."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [line for n, pair in enumerate(zip(one, other, strict=True)) for line in differences(*pair, f"{where}[{n}]")]
    return [] if one == other else [f"{where}: {one}, {other}"]


def unlike(stored: dict[str, Any], run: Run) -> list[str]:
    """What differs between a stored run and one of today. A setting that did not exist then has today's default."""
    if stored == to_plain(run):
        return []  # also for tasks of a user's own, which `from_plain` does not know
    try:
        return differences(to_plain(from_plain(stored)), to_plain(run))
    except (TypeError, ValueError) as error:
        return [f"the stored run has a setting that is gone ({error})"]


def quick(run: Run, steps: int = 20) -> Run:
    """The same run made seconds long: generated images, a few small steps per stage. For smoke tests, not for numbers."""
    data = _generated(info(run.data).shape)
    data = "generated-pairs" if info(run.data).n_labels == 2 else data
    data = "generated-sentences" if info(run.data).kind == "sentences" else data
    large = data.startswith(("generated-32-rgb", "generated-96"))  # their networks may take a second of a CPU's time for a picture
    steps = min(steps, 8) if large else steps
    stages = tuple(
        replace(
            stage,
            task=stage.task.quick(),
            steps=steps,
            batch=min(stage.batch, 4 if large else 16),
            stop=None,
            probe_every=min(stage.probe_every, steps // 2),
            unmixed=min(stage.unmixed, 2),
        )
        for stage in run.stages
    )
    return replace(run, data=data, stages=stages, hold_out=0, views=(), tests=()).quickly()


def _generated(shape: tuple[int, ...]) -> str:
    """Generated pictures with as many channels, and no smaller than they must be: crops have to fit."""
    grey = {16: "generated-16", 28: "generated", 40: "generated-40", 48: "generated-48", 96: "generated-96"}
    sets = {2: {48: "generated-48-stereo", 96: "generated-96-stereo"}, 3: {32: "generated-32-rgb"}}.get(shape[0], grey)
    return sets[max(size for size in sets if size <= max(min(sets), shape[-1]))]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The printed number that a recipe is for."""

    table: str
    row: str
    metric: str  # "test.error_percent"
    printed: float | None = None
    printed_sd: float | None = None
    selected: str = ""  # how the paper came to its number, in a word or two: "mean of 3", "stopped on test"
    beside: tuple[str, ...] = ()  # further metrics, or numbers of `extras`, that stand in the same cell
    members: str = ""  # of an ensemble: the row whose runs, one for each seed, answer together


@dataclass(frozen=True)
class Recipe:
    """A named function that returns a run."""

    name: str  # "sabour2017/mnist-r3-recon"
    make: Callable[[], Run]
    claim: Claim | None

    @property
    def about(self) -> str:
        return (self.make.__doc__ or "").strip()


def reproduces(**claim: Any) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    """Tie a recipe to the number it is for: table, row, metric, printed, printed_sd, selected."""

    def tie(make: Callable[[], Run]) -> Callable[[], Run]:
        make.claim = Claim(**claim)
        return make

    return tie


def recipes_of(paper: str, module: ModuleType) -> dict[str, Recipe]:
    """The public functions that a module defines, by name; in the order of its text."""
    made = [(name, part) for name, part in vars(module).items() if callable(part) and getattr(part, "__module__", "") == module.__name__]
    names = {f"{paper}/{name.replace('_', '-')}": part for name, part in made if not name.startswith("_") and not isinstance(part, type)}
    return {name: Recipe(name, part, getattr(part, "claim", None)) for name, part in names.items()}


def find(name: str, recipes: dict[str, Recipe]) -> Recipe:
    """The recipe of that name, or an error with the nearest names."""
    if name in recipes:
        return recipes[name]
    near = get_close_matches(name, recipes, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`torchcaps ls` lists them all"
    raise ValueError(f"no recipe {name!r}; {hint}")
