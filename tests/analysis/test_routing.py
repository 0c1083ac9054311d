"""Diagnostics of a model's routing, against numbers worked out by hand; looking changes nothing."""

import json
from itertools import pairwise
from math import log

import pytest
import torch

from torchcaps import CapsNet
from torchcaps.analysis.metrics import coupling_entropy
from torchcaps.analysis.routing import diagnose, entropies, histogram, lines, logit_changes
from torchcaps.data import Labelled, load
from torchcaps.data.augment import Standardise, as_seen
from torchcaps.models import Baseline
from torchcaps.ops import squash
from torchcaps.ops.votes import votes_of
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.classify_pairs import ClassifyPairs

CPU = torch.device("cpu")
SMALL = {"channels": 8, "kernel": 5, "n_types": 3, "primary_kernel": 5, "hidden": (16,), "preset": "paper"}


def make_model(side=16, **changes):
    model = CapsNet((1, side, side), 10, **(SMALL | changes))
    with torch.no_grad():
        model.primary.weight *= 10  # untrained capsules are short, and routing them hardly moves the couplings
        model.classes.weight *= 3
    return model


@pytest.fixture(scope="module")
def data():
    images, labels = load("generated-16", "test")
    return Labelled(images[:60], labels[:60])


def test_entropy_by_hand():
    couplings = torch.tensor(
        [[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0]]
    )
    torch.testing.assert_close(entropies(couplings), torch.tensor([log(4), 0.0, log(2), log(2)]))
    assert entropies(couplings).mean().item() / log(4) == pytest.approx(coupling_entropy(couplings)), (
        "the metric says the same"
    )


def test_histogram_by_hand():
    lengths = torch.tensor([[0.0, 0.05, 0.15], [0.999, 1.0, 1.5]])
    assert histogram(lengths).tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 3]


def test_the_first_pass_is_uniform_and_agreement_decides(data):
    rows = diagnose(make_model(), data, CPU)["passes"]
    assert rows[0]["entropy_nats"] == pytest.approx(log(10), rel=1e-5) == rows[0]["entropy_nats_by_length"]
    assert rows[0]["entropy_share"] == pytest.approx(1, rel=1e-5)
    for name in ("entropy_nats", "entropy_share", "entropy_nats_by_length", "entropy_share_by_length"):
        assert all(after[name] < before[name] for before, after in pairwise(rows)), name


def test_long_inputs_weigh_more(data):
    """Two of three types are made short: they stay undecided, and hardly count."""
    model = make_model(n_iters=2)
    with torch.no_grad():
        model.primary.weight[8:] /= 10
    row = diagnose(model, data, CPU)["passes"][1]
    with torch.no_grad():
        images = as_seen(data.images)
        active = model.primary_capsules(images).activity
        nats = entropies(list(model.steps(images))[1].couplings)
    assert row["entropy_nats"] == pytest.approx(nats.mean().item())
    assert row["entropy_nats_by_length"] == pytest.approx(
        ((active * nats).sum(-1) / active.sum(-1)).mean().item(), rel=1e-5
    )
    assert row["entropy_share_by_length"] < row["entropy_share"]


@pytest.mark.parametrize(("n_iters", "n_rows"), [(1, 5), (3, 5), (4, 6)])
def test_accuracy_is_that_of_a_model_with_so_many_passes(data, n_iters, n_rows):
    model = make_model(n_iters=n_iters)
    found = diagnose(model, data, CPU)
    assert [row["n_iters"] for row in found["passes"]] == list(range(1, n_rows + 1)) and found["n_iters"] == n_iters
    for row in found["passes"]:
        model.classes.n_iters = row["n_iters"]
        error = Classify().evaluate(model, data, CPU).metrics["error_percent"]
        assert row["accuracy_percent"] == pytest.approx(100 - error)


def test_what_is_said_after_two_passes_is_right_after_two_passes(data):
    said = make_model(n_iters=2)(as_seen(data.images)).activity.argmax(-1)
    torch.manual_seed(0)  # the same weights
    rows = diagnose(make_model(n_iters=4), Labelled(data.images, said), CPU)["passes"]
    assert [row["accuracy_percent"] == 100 for row in rows] == [False, True, False, False, False, False]


def test_images_are_shown_as_in_evaluation(data):
    model = make_model()
    augment = (Standardise(),)
    right = 100 - Classify().evaluate(model, data, CPU).metrics["error_percent"]
    assert diagnose(model, data, CPU)["passes"][2]["accuracy_percent"] == pytest.approx(right)
    seen = model.primary_capsules(as_seen(data.images, augment)).activity
    assert diagnose(model, data, CPU, augment=augment)["lengths"]["primary"] == histogram(seen).tolist()


def test_of_pairs_both_must_be_right():
    pairs = load("generated-pairs", "test")
    pairs = pairs._replace(picks=pairs.picks[:120], moves=pairs.moves[:120])
    model = make_model(24)
    found = diagnose(model, pairs, CPU)
    error = ClassifyPairs().evaluate(model, pairs, CPU).metrics["exact_match_error_percent"]
    assert found["passes"][2]["accuracy_percent"] == pytest.approx(100 - error)
    assert sum(found["lengths"]["winning"]) == 2 * 120 and sum(found["lengths"]["other"]) == 8 * 120


def test_pairs_that_training_draws_can_be_looked_at():
    model = make_model(24)
    assert diagnose(model, load("generated-pairs", "train"), CPU, most=10)["n_images"] == 10


def test_so_many_images_spread_over_the_set(data):
    """Every third of 60 images is taken."""
    third = Labelled(data.images[::3], data.labels[::3])
    model = make_model()
    assert diagnose(model, data, CPU, most=20) == diagnose(model, third, CPU)


def test_looking_changes_nothing(data):
    model = make_model()
    images = as_seen(data.images)
    before = model(images).poses
    diagnose(model, data, CPU)
    logit_changes(model, images)
    assert model.classes.n_iters == 3 and model.training
    assert torch.equal(model(images).poses, before)


def test_the_passes_are_put_back_after_an_error(data):
    model = make_model()
    with pytest.raises(ValueError, match="CapsNet expects images"):
        diagnose(model, Labelled(data.images[..., 1:], data.labels), CPU)
    assert model.classes.n_iters == 3 and model.training


def test_a_type_without_weights_is_dead(data):
    model = make_model()
    assert diagnose(model, data, CPU)["dead"]["primary_types"] == []
    with torch.no_grad():
        model.primary.weight[8:16], model.primary.bias[8:16] = 0, 0
        model.classes.weight[:, 4], model.classes.bias[4] = 0, 0
    dead = diagnose(model, data, CPU)["dead"]
    assert dead == {
        "threshold": 0.01,
        "primary_types": [1],
        "n_primary_types": 3,
        "class_capsules": [4],
        "n_class_capsules": 10,
    }


def test_a_type_that_speaks_once_is_not_dead(data):
    """Dark images say nothing to a type without bias; one bright image is enough."""
    model = make_model()
    dark = Labelled(torch.zeros_like(data.images), data.labels)
    with torch.no_grad():
        model.conv.bias.zero_(), model.primary.bias.zero_()
    assert diagnose(model, dark, CPU)["dead"]["primary_types"] == [0, 1, 2]
    dark.images[7] = 255
    assert diagnose(model, dark, CPU)["dead"]["primary_types"] == []


def test_every_length_is_counted_once(data):
    model = make_model()
    found = diagnose(model, data, CPU)["lengths"]
    activity = model(as_seen(data.images)).activity
    assert len(found["edges"]) == 11 and found["edges"][3] == 0.3
    assert found["winning"] == histogram(activity.amax(-1)).tolist()
    assert [a + b for a, b in zip(found["winning"], found["other"], strict=True)] == histogram(activity).tolist()
    assert sum(found["primary"]) == 60 * 3 * 16


def test_the_numbers_survive_json_and_read_well(data):
    found = diagnose(make_model(), data, CPU)
    assert json.loads(json.dumps(found)) == found
    said = lines(found)
    assert len(said) == 4 and all(len(line) < 160 for line in said)
    assert f"3 (as trained): {found['passes'][2]['accuracy_percent']:.2f}, 4: " in said[0]
    assert "): 1.000, " in said[1]
    assert "0 of 3 primary types, 0 of 10 classes" in said[2]
    found["lengths"] |= {"winning": [0] * 5 + [60] + [0] * 4, "other": [405] + [0] * 8 + [135]}
    assert lines(found)[3].endswith("100.0 % of the predicted ones, 25.0 % of the others")


def test_a_network_without_capsules_has_no_routing_to_look_at(data):
    found = diagnose(Baseline((1, 16, 16), 10, preset="small"), data, CPU)
    assert found == {} and lines(found) == []


def test_logit_changes_by_a_loop_of_their_own(data):
    model, images = make_model(n_iters=5), as_seen(data.images[:4])
    with torch.no_grad():
        votes = votes_of(model.primary_capsules(images).poses, model.classes.weight, 10)
        logits, expected = torch.zeros(votes.shape[:-1]), {}
        for number in range(2, 6):
            poses = squash((logits.softmax(-1)[..., None] * votes).sum(1) + model.classes.bias)
            agreement = (votes * poses[:, None]).sum(-1)
            logits, expected[f"logit_change_{number}"] = logits + agreement, agreement.abs().mean().item()
    assert logit_changes(model, images) == pytest.approx(expected)
    assert list(expected) == ["logit_change_2", "logit_change_3", "logit_change_4", "logit_change_5"]


def test_logit_changes_are_float32_within_autocast(data):
    model, images = make_model(), as_seen(data.images[:4])
    plain = logit_changes(model, images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert logit_changes(model, images) == plain
    assert logit_changes(make_model(n_iters=1), images) == {}
