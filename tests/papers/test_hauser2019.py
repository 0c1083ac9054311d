"""Rows of Hauser 2019: those to the letter have the paper's method alone, and a variant changes what it says."""

from functools import cache

import pytest

from torchcaps.papers import RECIPES
from torchcaps.train.plain import differences, to_plain
from torchcaps.train.tasks.experts import LearnDecoder, LearnExperts

ROWS = [name.removeprefix("hauser2019/") for name in RECIPES if name.startswith("hauser2019/")]
LETTER = ["mnist-letter", "fashion-letter", "mnist-growth"]
DRAWING = [row for row in ROWS if row not in ("mnist-rbm", "mnist-bottleneck")]


@cache
def run_of(row: str):
    return RECIPES[f"hauser2019/{row}"].make()


def departures(row: str) -> set[str]:
    """How W and U are learnt and drawn otherwise than the paper's text, and our reading of it, say."""
    run = run_of(row)
    model = run.build()
    tasks = [stage.task for stage in run.stages if isinstance(stage.task, LearnExperts)]
    found = {
        "sparse": any(task.sparse for task in tasks),
        "one iteration": any(layer.rule.n_iters == 1 for layer in model.encoders),
        "rescaled": model.loud,
        "starts at lengths": any(layer.rule.start != "zero" for layer in [*model.encoders, *model.decoders]),
        "chain": any(task.sampled or task.persistent or task.sweeps > 1 for task in tasks),
    }
    return {name for name, there in found.items() if there}


def changed(row: str, base: str) -> list[str]:
    """Fields in which two rows differ."""
    return [line.split(":")[0] for line in differences(to_plain(run_of(base)), to_plain(run_of(row)))]


@pytest.mark.parametrize("row", LETTER)
def test_a_row_to_the_letter_departs_in_nothing(row):
    assert departures(row) == set()


def test_our_changes_are_three_and_the_decoder_is_one_of_them():
    assert departures("mnist") == {"sparse", "one iteration", "rescaled", "starts at lengths"}
    assert departures("mnist-letter-loud") == {"rescaled", "starts at lengths"}
    assert departures("mnist-dense") == departures("mnist") - {"sparse"}
    assert departures("mnist-r3") == departures("mnist") - {"one iteration"}


def test_both_data_sets_of_the_paper_are_run_to_the_letter_and_with_our_changes():
    for row in ("mnist", "mnist-letter"):
        assert changed(row.replace("mnist", "fashion"), row) == ["data"]


@pytest.mark.parametrize(
    ("row", "base", "fields"),
    [
        ("mnist-growth", "mnist-letter", {"stages[1].task.start_length", "stages[1].probe_every"}),
        ("mnist-letter-loud", "mnist-letter", {"model_args.loud"}),
        ("mnist-dense", "mnist", {"stages[1].task.sparse"}),
        ("mnist-r3", "mnist", {"model_args.rule.n_iters", "stages[1].learning_rate"}),
        ("mnist-outputs", "mnist-r3", {"model_args.rule.over", "stages[1].learning_rate"}),
        ("mnist-plain", "mnist", {"model_args.n_plain"}),
        (
            "mnist-plain-chosen",
            "mnist",
            {"model_args.n_plain", "stages[1].task.sparse", "stages[2].optimizer.l2"},
        ),
        ("digits-free-decoder", "digits", {"stages[2].optimizer.l2"}),
        (
            "digits-plain-chosen",
            "digits",
            {"model_args.n_plain", "stages[1].task.sparse", "stages[2].optimizer.l2"},
        ),
    ],
)
def test_a_variant_changes_what_it_says_and_nothing_else(row, base, fields):
    assert set(changed(row, base)) == fields


def test_the_network_has_the_papers_sizes():
    """576 capsules of 8 below, 20 of 16 above, and filter banks of 9 x 9."""
    model = run_of("mnist-letter").build()
    assert model.encoders[0].weight.shape == (576, 20, 8, 16) and model.decoders[0].weight.shape == (20, 576, 16, 8)
    assert {p.shape for p in model.autoencoder.parameters() if p.ndim == 4} == {(128, 1, 9, 9), (128, 128, 9, 9)}


@pytest.mark.parametrize("row", DRAWING)
def test_ten_thousand_samples_are_judged(row):
    last, experts = run_of(row).stages[-1].task, run_of(row).model_args["experts"]
    assert isinstance(last, LearnDecoder) and last.samples * experts[-1][0] >= 10_000


def test_there_are_twenty_rows():
    assert len(ROWS) == 20 and len(DRAWING) == 18
