"""Rows of Sabour 2017: what they share, what they change, and the settings that were tried for them."""

from dataclasses import replace
from pathlib import Path

import pytest

from torchcaps.papers import RECIPES
from torchcaps.results.tuning import read_tuning
from torchcaps.train.plain import differences, to_plain

RESULTS = Path(__file__).parents[2] / "results/sabour2017"


def row(name: str):
    return RECIPES[f"sabour2017/{name}"].make()


@pytest.mark.parametrize(
    ("capsules", "plain"),
    [
        ("mnist-r3-recon", "mnist-cnn"),
        ("multimnist-6-r3", "multimnist-6-cnn"),
        ("like-anywhere-r3-end", "like-anywhere-cnn-end"),
    ],
)
def test_a_cnn_is_trained_as_the_capsnet_beside_it_but_for_its_loss_and_learning_rate(capsules, plain):
    ours, other = row(capsules), row(plain)
    (stage,), (of_ours,) = other.stages, ours.stages
    alike = replace(stage, task=of_ours.task, learning_rate=of_ours.learning_rate)
    assert replace(other, model=ours.model, model_args=ours.model_args, stages=(alike,)) == ours


@pytest.mark.parametrize(
    ("name", "base", "changed"),
    [
        ("mnist-r1", "mnist-r3-recon", {"model_args.n_iters", "model_args.reconstruction"}),
        ("mnist-r3-recon-64-torch-init", "mnist-r3-recon", {"stages[0].batch", "model_args.preset"}),
        ("mnist-small", "mnist-r3-recon", {f"model_args.{name}" for name in ("channels", "n_types", "hidden")}),
        ("multimnist-4-r1", "multimnist-4-r3-high", {"model_args.n_iters"}),
        ("cifar10-r5", "cifar10", {"model_args.n_iters", "keep_scores"}),
        ("smallnorb-types", "smallnorb", {"model_args.sharing"}),
        ("like-paper-end", "like-r3-end", {"model_args.preset"}),
    ],
)
def test_a_variant_changes_what_it_says_and_nothing_else(name, base, changed):
    assert {line.partition(":")[0] for line in differences(to_plain(row(base)), to_plain(row(name)))} == changed


def test_the_small_network_with_its_decoder_takes_less_than_three_megabytes_in_bfloat16():
    model = row("mnist-small").build()
    assert model.decoder is not None
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 2_900_000


def test_every_setting_that_was_tried_varies_a_row_that_is_there():
    tried = {line.row for line in read_tuning(RESULTS / "tuning.csv")}
    assert len(tried) > 10
    assert {f"sabour2017/{name}" for name in tried} <= {*RECIPES}
