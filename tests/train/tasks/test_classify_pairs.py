"""Two digits in one image: the loss and the metrics by hand, and a run from training to a verified result file."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from torchcaps.data import load
from torchcaps.data.batches import PairBatch, PairBatches, pairs_in_order
from torchcaps.layers import Capsules
from torchcaps.ops import margin_loss
from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import stored
from torchcaps.results.claims import Recipe
from torchcaps.results.store import make_result, unpack
from torchcaps.results.verify import check_metrics, check_recipe, check_replay
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.tasks.classify_pairs import (
    ClassifyPairLogits,
    ClassifyPairs,
    iou,
    reconstruct_both,
    segmentation_iou,
)

CPU = torch.device("cpu")
SMALL = {"channels": 16, "kernel": 5, "n_types": 4, "primary_kernel": 5, "hidden": (32, 64)}
RUN = Run(
    data="generated-pairs",
    model="capsnet",
    model_args=SMALL,
    stages=(Stage(task=ClassifyPairs(), steps=20, batch=16, learning_rate=3e-3),),
)


class Told(nn.Module):
    """Says what it is told, and draws class k as an image full of k / 10."""

    n_classes = 10

    def __init__(self, lengths, decoder=True):
        super().__init__()
        self.lengths, self.decoder = torch.tensor(lengths), decoder or None

    def forward(self, images):
        lengths = self.lengths.expand(len(images), -1)
        return Capsules(lengths.unsqueeze(-1), lengths)

    def reconstruct(self, poses, labels):
        return (labels.float() / 10).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)

    def margin_weight(self):
        return 1.0


def some_batch(labels) -> PairBatch:
    labels = torch.tensor(labels)
    sources = (labels.float() / 10 + 0.1).view(-1, 2, 1, 1, 1).expand(-1, 2, 1, 2, 2)
    return PairBatch(sources.sum(1).clamp(max=1), labels, sources)


LENGTHS = [0.8, 0.0, 0.0, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1]


def test_the_loss_by_hand():
    """Present are 0 and 3: (0.9 - 0.8)² + (0.9 - 0.6)². Each of two images is off by 0.1 on 4 pixels."""
    losses = ClassifyPairs(reconstruction_weight=0.5).losses(Told(LENGTHS), some_batch([[0, 3]]))
    assert losses["margin"].item() == pytest.approx(0.01 + 0.09)
    assert losses["reconstruction"].item() == pytest.approx(0.5 * 2 * 4 * 0.01)
    assert losses["loss"].item() == pytest.approx(0.1 + 0.04)
    assert losses["error_percent"] == 0


def test_an_image_is_wrong_unless_both_are_found():
    losses = ClassifyPairs().losses(Told(LENGTHS, decoder=False), some_batch([[0, 3], [3, 0], [0, 9], [1, 2]]))
    assert losses["error_percent"] == 50
    assert set(losses) == {"loss", "margin", "error_percent"}


def test_the_order_of_the_two_digits_does_not_matter():
    model = RUN.build()
    batch = next(pairs_in_order(load("generated-pairs", "test"), 8, CPU))
    swapped = PairBatch(batch.images, batch.labels.flip(1), batch.sources.flip(1))
    one, other = (ClassifyPairs().losses(model, x) for x in (batch, swapped))
    assert {name: x.item() for name, x in one.items()} == pytest.approx({name: x.item() for name, x in other.items()})
    wrong = ClassifyPairs().losses(model, PairBatch(batch.images, batch.labels.flip(1), batch.sources))
    assert wrong["reconstruction"] != one["reconstruction"], "each digit has its own target"


def test_metrics_by_hand():
    said, labels = torch.tensor([[0, 3], [3, 9], [1, 2], [4, 5]]), torch.tensor([[3, 0], [3, 0], [7, 8], [5, 4]])
    assert ClassifyPairs().score(said, labels) == {
        "exact_match_error_percent": 50.0,  # the first and the last are right
        "half_credit_error_percent": 37.5,  # 3 of 8 were not found
    }


def test_the_two_longest_capsules_are_the_prediction():
    pairs = load("generated-pairs", "test")
    found = ClassifyPairs().evaluate(Told(LENGTHS), pairs, CPU)
    assert found.predictions.dtype == torch.uint8 and found.predictions.unique(dim=0).tolist() == [[0, 3]]
    right = (pairs.labels.sort().values == torch.tensor([0, 3])).all(1).double().mean().item()
    assert found.metrics["exact_match_error_percent"] == pytest.approx(100 * (1 - right))


def test_the_decoder_draws_each_digit_from_its_own_capsule_alone():
    model = RUN.build()
    poses, labels = torch.randn(3, 10, 16), torch.tensor([[1, 2], [3, 4], [9, 0]])
    both = reconstruct_both(model, poses, labels)
    for k in (0, 1):
        torch.testing.assert_close(both[:, k], model.reconstruct(poses, labels[:, k]))


def test_intersection_over_union_by_hand():
    one, other = torch.tensor([1, 1, 0, 0]).bool().view(1, 1, 2, 2), torch.tensor([1, 0, 1, 0]).bool().view(1, 1, 2, 2)
    assert iou(one, other).tolist() == [pytest.approx(1 / 3)]
    assert iou(one, one).tolist() == [1] and iou(one & ~one, one & ~one).tolist() == [0]


def test_segmentation_is_perfect_where_the_sources_are_drawn():
    pairs = load("generated-pairs", "test")
    batch = next(pairs_in_order(pairs, 512, CPU))

    class Knows(Told):
        def reconstruct(self, poses, labels):
            start = self.start
            self.start += len(labels)
            return batch.sources.flatten(0, 1)[start : start + len(labels)] * self.contrast

    model = Knows(LENGTHS)
    model.start, model.contrast = 0, 1.0
    assert segmentation_iou(model, pairs, CPU) == 1
    model.start, model.contrast = 0, 0.4
    assert segmentation_iou(model, pairs, CPU, threshold=0.5) == 0, "nothing drawn is above the threshold"
    assert 0 <= segmentation_iou(RUN.build(), pairs, CPU) < 0.9


def test_losses_wait_for_nothing_and_compile_whole(fresh_dynamo):
    """fullgraph: a value that the host had to know would break the graph."""
    batches = PairBatches(load("generated-pairs", "train"), 16, (), CPU)
    batch, model, task = batches.at(torch.tensor(0)), RUN.build(), ClassifyPairs()
    compiled = torch.compile(task.losses, backend="eager", fullgraph=True)(model, batch)
    for name, value in task.losses(model, batch).items():
        torch.testing.assert_close(compiled[name], value, msg=name)


def test_making_a_batch_needs_no_host_value():
    """On the meta device a tensor has no values to look at."""
    batches = PairBatches(load("generated-pairs", "train"), 16, (), CPU)
    batches.images, batches.labels = batches.images.to("meta"), batches.labels.to("meta")
    batches.plan = [part.to("meta") for part in batches.plan]
    made = batches.at(torch.zeros((), dtype=torch.long, device="meta"))
    assert list(made.images.shape) == [16, 1, 24, 24] and list(made.sources.shape) == [16, 2, 1, 24, 24]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    options = Options(out=tmp_path_factory.mktemp("pairs"), progress=False, log_every=1)
    trained = train(RUN, name="smoke/pairs", seed=0, options=options)
    return trained, json.loads(json.dumps(make_result("smoke/pairs", 0, RUN, trained)))


def test_training_on_pairs_lowers_the_loss(finished):
    curve = [line["loss"] for line in finished[0].curve]
    assert len(curve) == 20
    assert sum(curve[-5:]) < 0.9 * sum(curve[:5])


def test_a_result_of_pairs_says_how_much_they_overlap_and_what_is_found_of_each(finished):
    extras = finished[1]["extras"]
    assert 0 < extras["box_overlap_percent"]["ink"] <= 100 and 0 <= extras["segmentation_iou"] <= 1
    assert extras["threshold"] == 0.5 and extras["n_segmented"] == extras["n_pairs"] == 512


def test_a_result_of_pairs_is_verified_from_its_predictions(finished):
    result = finished[1]
    assert list(unpack(result["predictions"]["test"]).shape) == [512, 2]
    checks = check_metrics(result, RUN, None)
    assert {check.name for check in checks} == {"test.exact_match_error_percent", "test.half_credit_error_percent"}
    assert all(check.passed for check in checks)
    assert check_recipe(result, {"smoke/pairs": Recipe("smoke/pairs", lambda: RUN, None)}).passed
    assert check_replay(result, RUN, None, "cpu").passed
    forged = json.loads(json.dumps(result))
    forged["metrics"]["test"]["exact_match_error_percent"] -= 1
    assert [check.passed for check in check_metrics(forged, RUN, None)] == [False, True]


def test_a_resumed_run_of_pairs_is_the_same_run(tmp_path):
    """Stopped within the second epoch, whose partners and moves are then drawn again. 4 steps are an epoch here."""
    tiny = SMALL | {"channels": 4, "n_types": 2, "n_iters": 1}
    run = replace(RUN, model_args=tiny, stages=(replace(RUN.stages[0], steps=8, batch=128),))
    whole = train(run, name="x", seed=0, options=Options(out=tmp_path / "whole", progress=False, log_every=1))
    train(run, name="x", seed=0, options=Options(out=tmp_path / "parts", progress=False, log_every=1, max_steps=6))
    parts = train(run, name="x", seed=0, options=Options(out=tmp_path / "parts", progress=False, log_every=1))
    assert [line["loss"] for line in parts.curve] == [line["loss"] for line in whole.curve]
    assert torch.equal(parts.evaluations["test"].predictions, whole.evaluations["test"].predictions)


def test_choices_are_made_on_pairs_of_held_out_digits(tmp_path):
    run = replace(RUN, hold_out=64, stages=(replace(RUN.stages[0], steps=2),))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    assert set(trained.evaluations) == {"validation"} and len(trained.evaluations["validation"].predictions) == 640
    assert all(
        check.passed for check in check_metrics(json.loads(json.dumps(make_result("x", 0, run, trained))), run, None)
    )


def test_a_run_on_pairs_survives_json_and_its_quick_variant_stays_on_pairs():
    run = replace(RUN, data="multimnist-4")
    assert stored(json.loads(json.dumps(to_plain(run)))) == run
    assert run.quick().data == "generated-pairs"
    assert RECIPES["sabour2017/mnist-r1"].make().quick().data == "generated"


def test_multimnist_capsnet_has_the_papers_number_of_parameters():
    with torch.device("meta"):
        model = Run(data="multimnist-4", model="capsnet", model_args={}).build()
    assert sum(p.numel() for p in model.parameters()) == 11_361_968


def test_two_classes_present_is_what_the_margin_loss_takes():
    lengths, present = torch.tensor([[0.9, 0.9, 0.1]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert margin_loss(lengths, present).item() == pytest.approx(0)


# The same by logits.


class Logits(nn.Module):
    n_classes = 4

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def test_the_loss_of_logits_by_hand():
    batch = PairBatch(torch.zeros(1, 1, 2, 2), torch.tensor([[3, 0]]), torch.zeros(1, 2, 1, 2, 2))
    losses = ClassifyPairLogits().losses(Logits(2.0, -1.0, 0.5, 1.0), batch)
    right, wrong = (lambda x: torch.tensor(1 + torch.e**-x).log()), (lambda x: torch.tensor(1 + torch.e**x).log())
    torch.testing.assert_close(losses["loss"], right(2.0) + wrong(-1.0) + wrong(0.5) + right(1.0))
    assert losses["error_percent"] == 0
    assert (
        ClassifyPairLogits().losses(Logits(2.0, 1.5, 0.5, 1.0), batch)["error_percent"] == 100
    )  # one of two is not enough


def test_the_two_highest_logits_are_the_prediction():
    pairs = load("generated-pairs", "test")
    evaluation = ClassifyPairLogits().evaluate(Logits(0.1, 0.9, 0.3, 0.8), pairs, CPU)
    assert evaluation.predictions.unique(dim=0).tolist() == [[1, 3]]
    assert evaluation.metrics == ClassifyPairLogits().score(evaluation.predictions.long(), pairs.labels)


def test_a_baseline_trains_on_pairs(tmp_path):
    stage = Stage(task=ClassifyPairLogits(), steps=20, batch=16, learning_rate=3e-3)
    run = Run(data="generated-pairs", model="baseline", model_args={"preset": "small"}, stages=(stage,))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False, log_every=5))
    assert trained.curve[-1]["loss"] < trained.curve[0]["loss"]
    assert set(trained.evaluations["test"].metrics) == {"exact_match_error_percent", "half_credit_error_percent"}
