"""CapsNet as a scikit-learn classifier: fit, predict, predict_proba, transform and score on NumPy arrays.

Training uses the same step, batches and task as every recipe, but writes no checkpoints and no result files.
"""

import warnings
from math import ceil
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Shift
from torchcaps.data.batches import Batches
from torchcaps.integrations.arrays import about_negative, as_bytes, flat_rows, image_shape_of
from torchcaps.layers import Capsules, Routing
from torchcaps.layers.memory_format import to_device
from torchcaps.layers.routings import routing_named
from torchcaps.models import CapsNet
from torchcaps.models.checks import check_swap
from torchcaps.ops import COUPLINGS
from torchcaps.runtime.environment import own_randomness, pick_device
from torchcaps.train.recipe import Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.state import Diverged
from torchcaps.train.step import TrainingStep
from torchcaps.train.tasks.by_routing import task_for

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "CapsNetClassifier is an estimator of scikit-learn, 1.6 or later: pip install 'torchcaps[experiments]'"
    ) from error

from torchcaps.integrations.learnt import warn_if_nothing_was_learnt  # after the check of scikit-learn

SMALL = 16  # images with a shorter side get padded convolutions, or little would be left of them
AT_ONCE = 500  # batch size in prediction
CALIBRATED = 64  # images that a network of a chosen routing is calibrated on
OF_AGREEMENT = {"n_iters": 3, "couplings": "softmax"}  # defaults of what only routing by agreement has


class CapsNetClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Image classifier: a small CapsNet (Sabour 2017).

        from sklearn.datasets import load_digits
        X, y = load_digits(return_X_y=True)
        model = CapsNetClassifier(random_state=0).fit(X[:1000], y[:1000])
        model.score(X[1000:], y[1000:])

    `X`: images [n h w] or [n c h w], or flat rows [n p] of square grey images. For other flat rows, give `image_shape`
    as (h, w) or (c, h, w), or pad them with zeros to a square by `fill_square`. Bytes are used unchanged. Other values
    are scaled to bytes by the range of the training set; values outside it are clipped. Negative and standardised
    values are no pixels, and cause a warning.

    `transform` returns the poses of the class capsules as flat rows, `poses` as [n, classes, d_class]. `lengths`
    returns the capsule lengths; they do not sum to 1, so `predict_proba` divides them by their sum.
    `routing` of the class capsules: a name of `ROUTINGS` such as "em", or its options, in place of `n_iters` and
    `couplings`. `lengths` are then activities.
    `couplings`: rule by which parts share their votes among the classes, softmax, or leaky for cluttered images.
    `balanced`: draw every class equally often. `shift`: shift training images by up to this many pixels.
    `random_state`: an int makes results bit-identical on a CPU with the same number of threads.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...] | None = None,
        fill_square: bool = False,
        routing: str | Routing | None = None,
        n_iters: int = 3,
        couplings: str = "softmax",
        channels: int = 48,
        n_types: int = 8,
        d_class: int = 16,
        reconstruction_weight: float = 0.005,
        epochs: int = 20,
        batch_size: int = 32,
        learning_rate: float = 4e-3,
        shift: int = 0,
        balanced: bool = False,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.image_shape = image_shape
        self.fill_square = fill_square
        self.routing = routing
        self.n_iters = n_iters
        self.couplings = couplings
        self.channels = channels
        self.n_types = n_types
        self.d_class = d_class
        self.reconstruction_weight = reconstruction_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.shift = shift
        self.balanced = balanced
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "CapsNetClassifier":
        """Train the network on images `X` and their classes `y`."""
        X, shape = flat_rows(X, self.image_shape)
        X, y = validate_data(self, X, y, dtype="numeric")
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            only = str(self.classes_[0])
            raise ValueError(
                f"CapsNetClassifier tells classes apart and got one class, {only!r}; give images of two at least"
            )
        self.image_shape_ = image_shape_of(self.image_shape, shape, X.shape[1], self.fill_square)
        self._check_settings()
        self._set_range(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data = Labelled(as_bytes(X, self.range_, self.image_shape_), torch.from_numpy(labels).long())
        self.model_ = self._train(data, seed)
        if self.epochs:
            warn_if_nothing_was_learnt(self.model_, data, len(self.classes_))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the class of each image, [n]."""
        said = self._capsules(X).confidence.argmax(-1)
        return self.classes_[said.numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute activities divided by their sum, [n classes]; for a routing with cross-entropy, softmax of scores."""
        capsules = self._capsules(X)
        if self.routing is not None and routing_named(self.routing).loss == "cross-entropy":
            return capsules.score.softmax(-1).numpy()
        lengths = capsules.activity.numpy()
        return lengths / lengths.sum(-1, keepdims=True)

    def lengths(self, X: Any) -> np.ndarray:
        """Compute the activity of each class capsule, [n classes], between 0 and 1: by default its length."""
        return self._capsules(X).activity.numpy()

    def poses(self, X: Any) -> np.ndarray:
        """Compute the poses of the class capsules, [n classes d_class]."""
        return self._capsules(X).poses.numpy()

    def transform(self, X: Any) -> np.ndarray:
        """Compute the poses of the class capsules as flat rows, [n classes*d_class]."""
        poses = self.poses(X)
        return poses.reshape(len(poses), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # poses are float32, whatever the images are
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.classes_) * self.d_class

    def _check_settings(self) -> None:
        """Refuse settings that would be ignored, or would fail later with an unclear error."""
        for name in ("n_iters", "channels", "n_types", "d_class", "batch_size"):
            if not _is_whole(value := getattr(self, name)) or value < 1:
                raise ValueError(f"{name} must be a whole number, 1 or more; got {value!r}")
        if self.routing is not None:
            routing_named(self.routing)
            given = {name: getattr(self, name) for name in OF_AGREEMENT}
            check_swap("CapsNetClassifier", self.routing, given, OF_AGREEMENT)
        if self.couplings not in COUPLINGS:
            raise ValueError(f"couplings must be one of {', '.join(COUPLINGS)}; got {self.couplings!r}")
        if not _is_whole(self.epochs) or self.epochs < 0:
            raise ValueError(
                f"epochs must be a whole number, 0 (the network as it is drawn) or more; got {self.epochs!r}"
            )
        if not _is_whole(self.shift) or not 0 <= self.shift < min(self.image_shape_[1:]):
            h, w = self.image_shape_[1:]
            raise ValueError(
                f"shift must be a whole number of pixels from 0 to less than the side of the images, {h}x{w}; "
                f"got {self.shift!r}"
            )
        for name in ("learning_rate", "reconstruction_weight"):
            if not isinstance(value := getattr(self, name), Real) or not value >= 0:
                raise ValueError(f"{name} must be a number, 0 or more; got {value!r}")

    def _set_range(self, X: np.ndarray) -> None:
        """Note the range of the training set, and warn of rows that are no pixels."""
        if X.dtype.kind != "u" and X.min() < 0:
            warnings.warn(about_negative(X), UserWarning, stacklevel=3)
        self.range_ = (0.0, 255.0) if X.dtype == np.uint8 else (float(X.min()), float(X.max()))

    def _train(self, data: Labelled, seed: int) -> CapsNet:
        device = pick_device(self.device)
        augment: tuple[Augmentation, ...] = (Shift(self.shift),) if self.shift else ()
        task = task_for(self.routing, self.reconstruction_weight)
        batch = min(self.batch_size, len(data.labels))
        stage = Stage(
            task=task,
            epochs=self.epochs,
            batch=batch,
            learning_rate=self.learning_rate,
            schedule=Cosine(warmup=0.05),
            balanced=self.balanced,
        )
        with own_randomness(seed, device):
            model = to_device(self._model(), device)
            if model.needs_calibration:
                some = data.images[:: ceil(len(data.images) / CALIBRATED)]  # of all classes, also where rows are sorted
                model.calibrate(some.to(device).float() / 255)
            batches, rng = (
                Batches(data, batch, augment, device, balanced=self.balanced),
                torch.Generator().manual_seed(seed),
            )
            step = TrainingStep(stage, model, batches, self.epochs * batches.n_steps, device)
            model.train()
            for _ in range(self.epochs):
                batches.new_epoch(rng)
                for _ in range(batches.n_steps):
                    step()
        if int(step.first_bad) >= 0:
            raise Diverged(
                f"the loss was no finite number in step {int(step.first_bad) + 1}; "
                f"give a lower learning_rate than {self.learning_rate:g}"
            )
        # no loss is computed after the last step
        if not all(parameter.isfinite().all() for parameter in model.parameters()):
            raise Diverged(
                "the weights are no finite numbers after the last step; "
                f"give a lower learning_rate than {self.learning_rate:g}"
            )
        return model.cpu().eval()

    def _model(self) -> CapsNet:
        small = min(self.image_shape_[1:]) < SMALL
        kernel = 3 if small else 5
        return CapsNet(
            self.image_shape_,
            len(self.classes_),
            preset="paper",
            routing=self.routing,
            n_iters=self.n_iters,
            reconstruction=self.reconstruction_weight > 0,
            channels=self.channels,
            kernel=kernel,
            n_types=self.n_types,
            primary_kernel=kernel,
            same=small,
            d_class=self.d_class,
            hidden=(128, 256),
            couplings=self.couplings,
        )

    @torch.no_grad()
    def _capsules(self, X: Any) -> Capsules:
        check_is_fitted(self)
        X, shape = flat_rows(X, self.image_shape)
        if shape is not None and tuple(shape) != self.image_shape_:
            raise ValueError(
                f"CapsNetClassifier was fitted to images of {self.image_shape_} (c h w), got {tuple(shape)}; "
                "give such images"
            )
        X = validate_data(self, X, dtype="numeric", reset=False)
        if X.min() < 0 <= self.range_[0]:
            warnings.warn(
                f"X has negative values, down to {X.min():g}, and the training set had none: they are clipped to "
                f"{self.range_[0]:g}; prepare X as the training set",
                UserWarning,
                stacklevel=4,
            )
        device = pick_device(self.device)
        model = self.model_.to(device)
        images = as_bytes(X, self.range_, self.image_shape_)
        seen = [model(part.to(device).float() / 255) for part in images.split(AT_ONCE)]
        model.cpu()
        poses, activity = (torch.cat([one[number] for one in seen]).cpu() for number in (0, 1))
        scored = seen[0].score is not None
        return Capsules(poses, activity, torch.cat([one.score for one in seen]).cpu() if scored else None)


def _is_whole(value: Any) -> bool:
    """Check for an integer; True and False are integers in Python, but a mistake here."""
    return isinstance(value, Integral) and not isinstance(value, bool)
