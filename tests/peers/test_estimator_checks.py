"""Proves by scikit-learn's own checks that CapsNetClassifier is an estimator, with every routing. None is excepted."""

import pytest

pytest.importorskip("sklearn", reason="pip install 'torchcaps[experiments]'")

from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from torchcaps.integrations.sklearn import CapsNetClassifier
from torchcaps.layers import ROUTINGS

pytestmark = [
    # a few steps on a few rows often end at chance
    pytest.mark.filterwarnings("ignore:at chance on the training images", "ignore:layer .* all activities"),
    # the checks fit rows that are no images
    pytest.mark.filterwarnings("ignore:X has (standardised|negative):UserWarning"),
]
TINY = {"channels": 8, "n_types": 2, "d_class": 4, "reconstruction_weight": 0.0, "random_state": 0}
# the checks fit rows of 1 to 20 numbers, so zeros have to fill the square
CHECKED = CapsNetClassifier(**TINY, epochs=4, learning_rate=2e-2, fill_square=True)
# one check wants 83 % of its training rows right; these routings take longer to learn them, ladders in smaller steps
LONGER = {"lazy": {"epochs": 12}, "ladder": {"epochs": 12, "learning_rate": 5e-3}}


def checks():
    """All that scikit-learn has for such an estimator; training three more times on read-only files is slow."""
    for routing in (None, *ROUTINGS):
        checked = clone(CHECKED).set_params(routing=routing, **LONGER.get(routing, {}))
        for estimator, check in estimator_checks_generator(checked):
            settings = getattr(check, "keywords", {})
            name = getattr(check, "func", check).__name__ + "".join(f"-{key}" for key in settings)
            slow = routing is not None or "readonly_memmap" in name
            yield pytest.param(estimator, check, id=f"{routing}-{name}", marks=[pytest.mark.slow] if slow else [])


CHECKS = list(checks())


def test_there_are_as_many_checks_for_each_routing():
    assert len(ROUTINGS) >= 8 and len(CHECKS) >= 50 * (1 + len(ROUTINGS))
    assert len(CHECKS) % (1 + len(ROUTINGS)) == 0


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_it_passes_what_scikit_learn_asks_of_an_estimator(estimator, check):
    check(estimator)
