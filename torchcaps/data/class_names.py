"""What the classes of a data set are called."""

from torchcaps.data import OwnImages, info
from torchcaps.data.sets import cifar10, smallnorb

SENTIMENTS = {5: ("very negative", "negative", "neutral", "positive", "very positive"), 2: ("negative", "positive")}  # of SST


def class_names(data: str | OwnImages) -> tuple[str, ...]:
    """One for each class, in the order of the labels; where a class is a digit or has no name, its number."""
    if isinstance(data, OwnImages):
        return data.classes
    if data.startswith("smallnorb"):
        return smallnorb.CATEGORIES
    if data.startswith("cifar10"):
        return cifar10.CLASSES
    about = info(data)
    if data.startswith("sst"):
        return SENTIMENTS[about.n_classes]
    return tuple(map(str, range(about.n_classes)))
