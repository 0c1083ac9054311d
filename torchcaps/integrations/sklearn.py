"""CapsNet as a scikit-learn classifier: fit, predict, predict_proba, transform and score on NumPy arrays.

Training uses the same step, batches and task as every recipe, but writes no checkpoints and no result files.
"""

import warnings
from math import isqrt
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Shift
from torchcaps.data.batches import Batches
from torchcaps.layers import Capsules
from torchcaps.models import CapsNet
from torchcaps.ops import COUPLINGS
from torchcaps.runtime.environment import own_randomness, pick_device
from torchcaps.train.recipe import Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.state import Diverged
from torchcaps.train.step import TrainingStep
from torchcaps.train.tasks.classify import Classify

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "CapsNetClassifier is an estimator of scikit-learn, 1.6 or later: pip install 'torchcaps[experiments]'"
    ) from error

SMALL = 16  # images with a shorter side get padded convolutions, or little would be left of them
AT_ONCE = 500  # batch size in prediction
NEAR_ZERO = 1e-3  # a column whose mean is closer to 0 was standardised
COLOURS = (1, 3, 4)  # usual numbers of channels


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
    `couplings`: rule by which parts share their votes among the classes, softmax, or leaky for cluttered images.
    `balanced`: draw every class equally often. `shift`: shift training images by up to this many pixels.
    `random_state`: an int makes results bit-identical on a CPU with the same number of threads.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...] | None = None,
        fill_square: bool = False,
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
        X, shape = self._rows(X)
        X, y = validate_data(self, X, y, dtype="numeric")
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            only = str(self.classes_[0])
            raise ValueError(
                f"CapsNetClassifier tells classes apart and got one class, {only!r}; give images of two at least"
            )
        self.image_shape_ = self._image_shape(shape, X.shape[1])
        self._check_settings()
        self._set_range(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.model_ = self._train(Labelled(self._images(X), torch.from_numpy(labels).long()), seed)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the class of each image, [n]."""
        said = self.lengths(X).argmax(-1)
        return self.classes_[said]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute capsule lengths divided by their sum, [n classes]."""
        lengths = self.lengths(X)
        return lengths / lengths.sum(-1, keepdims=True)

    def lengths(self, X: Any) -> np.ndarray:
        """Compute the length of each class capsule, [n classes], between 0 and 1: the confidence in the class."""
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

    def _rows(self, X: Any) -> tuple[Any, tuple[int, int, int] | None]:
        """Flatten images to rows; return them with c h w, or None where the array is flat already."""
        if isinstance(X, list) and np.ndim(X[0] if X else 0) > 1:
            X = np.stack(X)  # a list of images
        if not isinstance(X, np.ndarray | Tensor) or X.ndim <= 2:
            return X, None  # lists and tables are flat rows; scikit-learn refuses the rest
        X = np.asarray(X)
        if X.ndim > 4:
            raise ValueError(
                f"CapsNetClassifier expects images [n h w] or [n c h w], or flat rows [n p]; got {list(X.shape)}"
            )
        if X.ndim == 4 and X.shape[3] in COLOURS and X.shape[1] not in COLOURS and self.image_shape is None:
            raise ValueError(
                f"images {list(X.shape)} look like [n h w c], and CapsNetClassifier expects [n c h w]; "
                "give np.moveaxis(X, -1, 1), "
                f"or image_shape={tuple(X.shape[1:])} if they are {X.shape[1]} channels of {X.shape[2]}x{X.shape[3]}"
            )
        return X.reshape(len(X), int(np.prod(X.shape[1:]))), (X.shape[1:] if X.ndim == 4 else (1, *X.shape[1:]))

    def _image_shape(self, found: tuple[int, int, int] | None, n_features: int) -> tuple[int, int, int]:
        """Determine c h w of the network's input."""
        said = None
        if self.image_shape is not None:
            said = (
                (1, *self.image_shape)
                if np.size(self.image_shape) == 2
                else tuple(np.atleast_1d(self.image_shape).tolist())
            )
            if len(said) != 3 or min(said) < 1 or np.prod(said) != n_features:
                raise ValueError(
                    f"image_shape {self.image_shape} does not hold rows of {n_features} feature(s); "
                    "give (h, w) or (c, h, w)"
                )
        if found is not None and said is not None and tuple(found) != said:
            raise ValueError(
                f"image_shape {self.image_shape} is not that of the images, {tuple(found)} (c h w); "
                "leave it out, or give flat rows"
            )
        if found is not None or said is not None:
            return tuple(map(int, said if found is None else found))
        side = isqrt(n_features)
        if side**2 != n_features and not self.fill_square:
            raise ValueError(
                f"rows of {n_features} feature(s) are no square image; "
                "give image_shape=(h, w) or (c, h, w), images [n h w] or [n c h w], "
                "or fill_square=True to have zeros appended"
            )
        side += side**2 != n_features
        return 1, side, side

    def _check_settings(self) -> None:
        """Refuse settings that would be ignored, or would fail later with an unclear error."""
        for name in ("n_iters", "channels", "n_types", "d_class", "batch_size"):
            if not _is_whole(value := getattr(self, name)) or value < 1:
                raise ValueError(f"{name} must be a whole number, 1 or more; got {value!r}")
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
            warnings.warn(_negative(X), UserWarning, stacklevel=3)
        self.range_ = (0.0, 255.0) if X.dtype == np.uint8 else (float(X.min()), float(X.max()))

    def _images(self, X: np.ndarray) -> Tensor:
        """Convert rows to images as bytes [n c h w]."""
        least, most = self.range_
        # bytes are scaled too if the training set held other values
        if X.dtype != np.uint8 or self.range_ != (0.0, 255.0):
            # float64, since float32 could round to a different byte
            X = np.clip((X.astype(np.float64) - least) / ((most - least) or 1.0), 0, 1)
            X = np.round(255 * X).astype(np.uint8)
        whole = np.zeros((len(X), int(np.prod(self.image_shape_))), dtype=np.uint8)
        whole[:, : X.shape[1]] = X
        return torch.from_numpy(whole).unflatten(1, self.image_shape_)

    def _train(self, data: Labelled, seed: int) -> CapsNet:
        device = pick_device(self.device)
        augment: tuple[Augmentation, ...] = (Shift(self.shift),) if self.shift else ()
        task = Classify(reconstruction_weight=self.reconstruction_weight)
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
            model = self._model()
            model = model.to(device, memory_format=torch.channels_last) if device.type == "cuda" else model.to(device)
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
        X, shape = self._rows(X)
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
        seen = [model(part.to(device).float() / 255) for part in self._images(X).split(AT_ONCE)]
        model.cpu()
        return Capsules(*(torch.cat(parts).cpu() for parts in zip(*(one[:2] for one in seen), strict=True)))


def _negative(X: np.ndarray) -> str:
    """Say what is wrong with rows that have negative values."""
    values = f"from {X.min():g} to {X.max():g}"
    if np.abs(X.mean(0)).max() < NEAR_ZERO and X.std() > NEAR_ZERO:
        return (
            f"X has standardised columns, {values}: every pixel has its own scale, and images lose their shape; "
            "fit to the pixels as they are, without StandardScaler"
        )
    return (
        f"X has negative values, {values}: the smallest of the training set becomes black, 0 becomes grey; "
        "give pixels of 0 or more if 0 is black"
    )


def _is_whole(value: Any) -> bool:
    """Check for an integer; True and False are integers in Python, but a mistake here."""
    return isinstance(value, Integral) and not isinstance(value, bool)
