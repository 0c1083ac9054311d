"""Augmentations of training images, and the fixed view of an image that a model gets in evaluation."""

from torchcaps.data.augment.base import Augmentation, Batch, as_seen, shape_after
from torchcaps.data.augment.images import Anywhere, Crop, Erase, Flip, Light, Shift, Standardise, StandardiseFirst
from torchcaps.data.augment.mixup import Mixup, class_shares, main_labels
from torchcaps.data.augment.warp import Warp

__all__ = [
    "Anywhere",
    "Augmentation",
    "Batch",
    "Crop",
    "Erase",
    "Flip",
    "Light",
    "Mixup",
    "Shift",
    "Standardise",
    "StandardiseFirst",
    "Warp",
    "as_seen",
    "class_shares",
    "main_labels",
    "shape_after",
]
