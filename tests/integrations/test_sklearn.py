"""A CapsNet as an estimator of scikit-learn: grid search, pipelines, and plain words for what is wrong."""

import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="pip install 'torchcaps[experiments]'")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchcaps.data.sets.generated import generate
from torchcaps.integrations.sklearn import CapsNetClassifier
from torchcaps.layers import EM
from torchcaps.train.state import Diverged

# a few steps on a few rows often end at chance
pytestmark = pytest.mark.filterwarnings("ignore:at chance on the training images", "ignore:layer .* all activities")
TINY = {"channels": 8, "n_types": 2, "d_class": 4, "reconstruction_weight": 0.0, "random_state": 0}


def test_a_network_that_learnt_nothing_says_so():
    images, labels = generate(60, 16, torch.Generator().manual_seed(0))
    rows, y = images.flatten(1).numpy(), labels.numpy()
    with pytest.warns(ConvergenceWarning, match=r"at chance on the training images, where guessing gives 10.0 %; give"):
        CapsNetClassifier(**TINY, epochs=1, learning_rate=0.0).fit(rows, y)


@pytest.fixture(scope="module")
def bars():
    """Bars in three directions, 8x8: 90 to fit to, and others."""
    images, labels = generate(400, 8, torch.Generator().manual_seed(0))
    mine = labels < 3
    images, names = images[mine].squeeze(1).numpy(), np.array(["flat", "low", "high"])[labels[mine].numpy()]
    return images[:90], names[:90], images[90:], names[90:]


@pytest.fixture(scope="module")
def fitted(bars):
    return CapsNetClassifier(**TINY | {"reconstruction_weight": 0.005}, epochs=12, learning_rate=2e-2).fit(*bars[:2])


def test_it_learns_and_says_so_in_every_way(bars, fitted):
    _, _, images, names = bars
    assert fitted.score(images, names) > 0.9  # a third by chance
    shares = fitted.predict_proba(images)
    assert shares.shape == (len(images), 3)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    assert (fitted.classes_[shares.argmax(1)] == fitted.predict(images)).all()
    assert fitted.transform(images).shape == (len(images), 12)
    np.testing.assert_array_equal(fitted.transform(images), fitted.poses(images).reshape(len(images), 12))
    # a capsule is as long as the network is sure
    np.testing.assert_allclose(np.linalg.norm(fitted.poses(images), axis=-1), fitted.lengths(images), atol=1e-4)


def test_pictures_with_and_without_a_channel_and_flat_rows_are_the_same_to_it(bars):
    images, names, others, _ = bars
    shown = [images, images[:, None], images.reshape(len(images), 64)]
    said = [CapsNetClassifier(**TINY, epochs=1).fit(x, names).lengths(others.reshape(-1, *x.shape[1:])) for x in shown]
    for other in said[1:]:
        np.testing.assert_array_equal(said[0], other)


def test_the_scale_of_the_numbers_does_not_matter(bars):
    """Bytes, and the same images as numbers from -1 to 1, up to what rounding to bytes leaves: nothing."""
    images, names, others, _ = bars
    assert (images.min(), images.max()) == (0, 255)
    one, other = CapsNetClassifier(**TINY, epochs=1), CapsNetClassifier(**TINY, epochs=1)
    with pytest.warns(UserWarning, match=r"X has negative values, from -1 to 1: .* give pixels of 0 or more"):
        other.fit(images / 127.5 - 1, names)
    said = one.fit(images, names).lengths(others), other.lengths(others / 127.5 - 1)
    np.testing.assert_array_equal(*said)


def test_standardised_columns_are_told_from_pixels(bars):
    images, names, others, _ = bars
    flat, model = images.reshape(len(images), -1), CapsNetClassifier(**TINY, epochs=0)
    with pytest.warns(UserWarning, match="X has standardised columns, .* without StandardScaler"):
        make_pipeline(StandardScaler(), model).fit(flat, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pixels cause no warning
        model.fit(flat / 255, names).predict(others.reshape(len(others), -1) / 255)
    with pytest.warns(UserWarning, match="negative values, down to -0.5, and the training set had none"):
        model.predict(flat / 255 - 0.5)


def test_couplings_are_those_of_the_network(bars):
    images, names, others, _ = bars
    leaky = CapsNetClassifier(**TINY, epochs=0, couplings="leaky").fit(images, names)
    assert leaky.model_.classes.couplings == "leaky"
    softmax = CapsNetClassifier(**TINY, epochs=0).fit(images, names)
    assert (leaky.lengths(others) < softmax.lengths(others)).all()  # a part of every vote goes nowhere


@pytest.mark.parametrize("routing", ["em", "dynamic", pytest.param("ladder", marks=pytest.mark.slow), EM(rows=2)])
def test_it_learns_with_the_routing_that_it_is_given(bars, routing):
    images, names, others, other_names = bars
    order = np.argsort(names, kind="stable")  # sorted rows must not be calibrated on one class alone
    rate = 5e-3 if routing == "ladder" else 2e-2
    model = CapsNetClassifier(**TINY | {"reconstruction_weight": 0.005}, routing=routing, epochs=12, learning_rate=rate)
    model = clone(model).fit(images[order], names[order])
    assert model.score(others, other_names) > 0.9  # a third by chance
    shares = model.predict_proba(others)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    assert (model.classes_[shares.argmax(1)] == model.predict(others)).all()
    assert ((model.lengths(others) >= 0) & (model.lengths(others) <= 1)).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(others), model.transform(others))


def test_a_network_of_a_chosen_routing_is_calibrated_and_the_papers_is_not(bars):
    images, names, *_ = bars
    for routing, calibrated in ((None, False), ("dynamic", True)):
        model = CapsNetClassifier(**TINY, epochs=0, routing=routing).fit(images, names).model_
        median = model.primary_capsules(torch.from_numpy(images[:, None]).float() / 255).activity.median()
        assert (0.15 <= median <= 0.75) == calibrated


def test_the_type_of_the_numbers_at_prediction_does_not_matter(bars):
    """Fitted to 17 grey levels as floats, as scikit-learn's digits are, and asked about the same levels as bytes and as
    integers.
    """
    images, names, others, _ = bars
    coarse, asked = (images // 16).astype(float), (others // 16).astype(float)
    fitted = CapsNetClassifier(**TINY, epochs=1).fit(coarse, names)
    for kind in (np.uint8, np.int32, np.float32):
        np.testing.assert_array_equal(fitted.lengths(asked.astype(kind)), fitted.lengths(asked))
    fitted.fit(images, names)
    np.testing.assert_array_equal(fitted.lengths(others.astype(float)), fitted.lengths(others))


def test_colour_pictures_that_are_not_square_and_flat_rows_of_them(bars):
    images, names, *_ = bars
    wide = np.stack([images[:, :6]] * 3, axis=1)  # [n 3 6 8]
    one = CapsNetClassifier(**TINY, epochs=1).fit(wide, names)
    other = CapsNetClassifier(**TINY, epochs=1, image_shape=(3, 6, 8)).fit(wide.reshape(len(wide), -1), names)
    assert one.image_shape_ == other.image_shape_ == (3, 6, 8)
    np.testing.assert_array_equal(one.lengths(wide), other.lengths(wide.reshape(len(wide), -1)))


def test_the_same_random_state_gives_the_same_network(bars):
    images, names, others, _ = bars
    one, same, other = (
        CapsNetClassifier(**TINY | {"random_state": seed}, epochs=1).fit(images, names).lengths(others)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3


def test_it_does_not_touch_the_random_numbers_of_others(bars):
    before = torch.get_rng_state()
    CapsNetClassifier(**TINY, epochs=1).fit(*bars[:2])
    assert torch.equal(before, torch.get_rng_state())


def test_it_can_be_searched_put_in_a_line_copied_and_stored(bars, fitted):
    images, names, others, other_names = bars
    flat = images.reshape(len(images), -1)
    search = GridSearchCV(
        CapsNetClassifier(**TINY, learning_rate=2e-2), {"epochs": [0, 8]}, cv=2, error_score="raise"
    ).fit(flat, names)
    assert search.best_params_ == {"epochs": 8}
    line = make_pipeline(clone(fitted), LogisticRegression(max_iter=500)).fit(flat, names)
    assert line.score(others.reshape(len(others), -1), other_names) > 0.9  # of the poses
    assert not hasattr(clone(fitted), "model_")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).lengths(others), fitted.lengths(others))


def test_balanced_drawing_finds_a_rare_class(bars):
    """Three of one class beside some sixty of two others: drawn as often as these it is found."""
    images, names, others, other_names = bars
    few = np.flatnonzero(names == "low")[:3]
    kept = np.concatenate([np.flatnonzero(names != "low"), few])
    settings = TINY | {"epochs": 8, "learning_rate": 2e-2}
    rare = other_names == "low"
    found = {
        balanced: CapsNetClassifier(**settings, balanced=balanced)
        .fit(images[kept], names[kept])
        .score(others[rare], other_names[rare])
        for balanced in (False, True)
    }
    assert found[True] > found[False] + 0.2


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({}, (10, 7), r"rows of 7 feature\(s\) are no square image; give image_shape"),
        ({"image_shape": (2, 3)}, (10, 7), r"image_shape \(2, 3\) does not hold rows of 7"),
        ({}, (10, 1, 2, 3, 4), r"expects images \[n h w\] or \[n c h w\]"),
        ({"device": "tpu"}, (10, 8, 8), "device must be auto, cpu, cuda"),
        ({"image_shape": (4, 16)}, (10, 8, 8), r"image_shape \(4, 16\) is not that of the images, \(1, 8, 8\)"),
        ({"image_shape": 64}, (10, 64), "image_shape 64 does not hold rows of 64"),
        ({"couplings": "hard"}, (10, 8, 8), "couplings must be one of softmax, leaky, .*; got 'hard'"),
        ({"routing": "hard"}, (10, 8, 8), "routing must be one of dynamic, .*; got 'hard'"),
        ({"routing": EM}, (10, 8, 8), "routing must be one of dynamic, .*, or their options; got <class"),
        (
            {"routing": "em", "n_iters": 2},
            (10, 8, 8),
            "CapsNetClassifier: n_iters=2 is for routing=None, .*; leave n_iters",
        ),
        ({"batch_size": 0}, (10, 8, 8), "batch_size must be a whole number, 1 or more; got 0"),
        ({"d_class": 0}, (10, 8, 8), "d_class must be a whole number, 1 or more; got 0"),
        ({"epochs": -1}, (10, 8, 8), "epochs must be a whole number, 0 .* or more; got -1"),
        ({"epochs": 1.5}, (10, 8, 8), "epochs must be a whole number"),
        ({"shift": 8}, (10, 8, 8), "shift must be .* less than the side of the images, 8x8; got 8"),
        ({"learning_rate": float("nan")}, (10, 8, 8), "learning_rate must be a number, 0 or more; got nan"),
        ({"learning_rate": None}, (10, 8, 8), "learning_rate must be a number, 0 or more; got None"),
        ({"reconstruction_weight": -1.0}, (10, 8, 8), "reconstruction_weight must be a number, 0 or more"),
        ({"shift": True}, (10, 8, 8), "shift must be a whole number of pixels .*; got True"),
        ({"image_shape": (-8, -8)}, (10, 64), r"image_shape \(-8, -8\) does not hold rows of 64"),
        ({}, (10, 20, 18, 3), r"look like \[n h w c\].* give np\.moveaxis\(X, -1, 1\), or image_shape=\(20, 18, 3\)"),
        ({}, (0, 8, 8), r"Found array with 0 sample\(s\)"),
    ],
)
def test_what_it_cannot_fit_is_said_plainly(settings, shape, message):
    with pytest.raises(ValueError, match=message):
        CapsNetClassifier(**TINY | settings).fit(np.random.default_rng(0).random(shape), np.arange(shape[0]) % 2)


def test_other_pictures_than_it_was_fitted_to_are_refused(bars, fitted):
    with pytest.raises(ValueError, match=r"fitted to images of \(1, 8, 8\) \(c h w\), got \(1, 4, 16\)"):
        fitted.predict(bars[2].reshape(-1, 4, 16))
    with pytest.raises(ValueError, match="got one class, 'flat'; give images of two"):
        clone(fitted).fit(bars[0], np.repeat("flat", len(bars[0])))


@pytest.mark.parametrize("batch_size", [32, 1000])
def test_a_learning_rate_that_breaks_it_is_named(bars, batch_size):
    """Also in the last step, or the only one: its weights are asked for no loss."""
    with pytest.raises(Diverged, match="give a lower learning_rate than inf"):
        CapsNetClassifier(**TINY, epochs=1, learning_rate=float("inf"), batch_size=batch_size).fit(*bars[:2])


def test_pictures_may_come_one_by_one_in_a_list(bars):
    images, names, others, _ = bars
    fitted = CapsNetClassifier(**TINY, epochs=1).fit(list(images), list(names))
    np.testing.assert_array_equal(fitted.lengths(others.tolist()), fitted.lengths(others.astype(int)))


def test_channels_that_come_last_are_taken_for_what_they_are_said_to_be(bars):
    images, names, *_ = bars
    odd = np.stack([images[:, :, :3]] * 5, axis=1)  # [n 5 8 3]
    assert CapsNetClassifier(**TINY, epochs=0, image_shape=(5, 8, 3)).fit(odd, names).image_shape_ == (5, 8, 3)
