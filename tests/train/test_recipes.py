"""Every recipe and every model, found by walking the registries."""

import json
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from torchcaps.analysis.routing import diagnose
from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.papers import PAPERS, RECIPES
from torchcaps.probes.kinds import stored
from torchcaps.results.claims import find
from torchcaps.train import Options, train
from torchcaps.train.plain import differences, to_plain, unlike
from torchcaps.train.recipe import Run, Stage

GOLDEN = Path(__file__).parents[1] / "golden"
SMOKE = [name for name in RECIPES if name.startswith("smoke/")]
CLAIMED = [name for name, recipe in RECIPES.items() if recipe.claim]
TRAINED = [name for name in CLAIMED if RECIPES[name].make().trains]


def way_of(name: str) -> tuple:
    """Return what decides the code that a run takes; rows that agree in it differ in sizes and learning rates."""
    run = RECIPES[name].make().quick()
    return run.model, run.data, tuple(type(stage.task) for stage in run.stages), tuple(map(type, run.augment))


FIRST = {way_of(name): name for name in reversed(TRAINED)}


# sizes do not matter where a recipe only has to run
SMALL = {
    "capsnet": {"channels": 8, "n_types": 2, "hidden": (8, 8)},
    "deep-capsnet": {"channels": 8, "n_types": 2, "n_hidden": 4},
    "efficient-capsnet": {"channels": (8, 8, 8, 16), "hidden": (8, 8)},
    "inverted-capsnet": {"channels": (4, 4), "n_types": 2, "d_pose": 8},
    "em-capsnet": {"channels": 4, "strides": (2, 2, 2), "n_types": 1, "n_parts": 4},
    "routing-net": {"channels": 4, "n_types": 2, "n_parts": 4, "strides": (2, 2, 2)},
    "pooled-net": {"channels": 4, "strides": (2, 2, 2)},
    "lcapsnet": {"channels": 8, "n_types": 2, "n_kept": 3, "d_primary": 2, "d_class": 4},
    "baseline": {"preset": "small"},
    "sparsecaps": {"channels": 8, "n_types": 2, "hidden": (8, 8)},
    "supcaps": {"channels": 8, "n_types": 2, "hidden": (8, 8)},
    "stackedcaps": {"channels": 8, "n_types": 2, "hidden": (8, 8)},
    "matrix-capsnet": {"channels": 4, "n_types": (2, 2, 2)},
    "em-sentences": {"d_features": 8, "n_parts": 4},
    "pooled-sentences": {},
    "experts": {"channels": 8},
    "rbm": {"channels": 8, "width": 12},
}
# Steps whose losses every CPU agrees on, where not on all of them, and how far the losses after them may differ.
# Ladders keep the most active capsules: rounding may keep another where two are nearly equal, and then losses differ by
# 0.2 %; for so many steps the activities that decide lie 1e-5 apart at least, a hundred times what rounding does.
# Scores of EM routing start at 0, and so do most of its gradients, which Adam scales up whatever their size: what
# rounding does grows tenfold a step, from the fourth on. Inverted routing normalises every pose: there it grows
# threefold a step, to 6 % with another number of threads. The network of self-attention has batch norm on its four
# convolutions: there it jumps at the tenth. Matrix capsules with batch norm differ by 0.6 % in the end.
SURE = {
    "smoke/lcapsnet": (5, 5e-2),
    "smoke/em-": (6, 5e-2),
    "smoke/stackedcaps-em": (8, 1e-1),
    "smoke/inverted-capsnet": (9, 1e-1),
    "smoke/efficient-capsnet": (10, 2e-2),
    "smoke/matrix-capsnet-norm": (12, 3e-2),
}
# by paper: all recipes, and those tied to a number
COUNTS = {
    "sabour2017": (47, 47),
    "hinton2018": (8, 8),
    "heinsen2019": (36, 34),
    "hauser2019": (20, 20),
    "jeong2019": (26, 26),
    "rawlinson2018": (46, 46),
    "digits": (6, 2),
    "mazzia2021": (7, 7),
    "tsai2020": (2, 2),
    "depth": (13, 13),
    "routings": (75, 75),
    "records": (7, 7),
    "smoke": (33, 0),
}


def test_the_registry_holds_what_we_think():
    found = {
        paper: [[name for name in names if name.startswith(f"{paper}/")] for names in (RECIPES, CLAIMED)]
        for paper in PAPERS
    }
    assert {paper: tuple(map(len, both)) for paper, both in found.items()} == COUNTS
    assert {RECIPES[name].make().model for name in SMOKE} == {
        *MODELS,
        *SENTENCE_MODELS,
    }  # a smoke recipe for every model


@pytest.mark.parametrize("paper", PAPERS)
def test_every_recipe_is_documented_builds_and_survives_json(paper):
    for name in (name for name in RECIPES if name.startswith(f"{paper}/")):
        run = RECIPES[name].make()
        assert RECIPES[name].about, name
        assert stored(json.loads(json.dumps(to_plain(run)))) == run, name
        with torch.device("meta"):
            assert sum(p.numel() for p in (run if run.trains else run.network).build().parameters()) > 0, name


def test_a_row_that_holds_digits_out_is_about_other_sets():
    """The held-out digits decide when it stops."""
    assert all(run.hold_out == 0 or run.tests for run in (RECIPES[name].make() for name in TRAINED))


@pytest.mark.filterwarnings("ignore:layer .* all activities below")  # stacks of a paper start short, on purpose
@pytest.mark.parametrize(
    "name", [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow) for name in TRAINED]
)
def test_the_quick_variant_of_a_claimed_recipe_runs(name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchcaps.train.evaluate.diagnose", lambda *args, **how: {}
    )  # it looks at every image; tested for itself
    monkeypatch.setattr(
        "torchcaps.train.tasks.experts.study", lambda *args: {}
    )  # it trains other networks; tested for itself
    monkeypatch.setattr("torchcaps.data.sets.generated.counts", lambda size: (64, 32))  # two steps need no more
    run = RECIPES[name].make()
    run = replace(run, model_args=run.model_args | SMALL[run.model]).quick(steps=2)
    assert train(run, name=name, seed=0, options=Options(out=tmp_path, progress=False)).steps == 2 * len(run.stages)


@pytest.mark.parametrize("name", SMOKE)
def test_golden_losses(name, tmp_path, monkeypatch):
    """The first 20 losses as they were. Another CPU sums in another order, hence the tolerance; a refactor stays far
    inside.
    """
    monkeypatch.setattr("torchcaps.train.evaluate.diagnose", partial(diagnose, most=16))  # comes after all losses
    trained = train(RECIPES[name].make(), name=name, seed=0, options=Options(out=tmp_path, progress=False, log_every=1))
    golden = json.loads((GOLDEN / f"{name.replace('/', '-')}.json").read_text())
    losses = [line["loss"] for line in trained.curve if "loss" in line]
    sure, apart = next((known for start, known in SURE.items() if name.startswith(start)), (len(golden), 2e-3))
    assert losses[:sure] == pytest.approx(golden[:sure], rel=2e-3)
    assert losses == pytest.approx(golden, rel=apart)


def test_golden_losses_notice_another_rate(tmp_path):
    run = RECIPES["smoke/capsnet"].make()
    run = replace(run, stages=(replace(run.stages[0], learning_rate=2.9e-3),))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False, log_every=1))
    golden = json.loads((GOLDEN / "smoke-capsnet.json").read_text())
    assert [line["loss"] for line in trained.curve] != pytest.approx(golden, rel=2e-3)


def test_selection_on_test_is_in_the_name_of_every_row_that_does_it():
    for name in TRAINED:
        selects = any(stage.stop and stage.stop.part == "test" for stage in RECIPES[name].make().stages)
        assert selects == ("stopped on test" in RECIPES[name].claim.row), name


def test_a_misspelt_field_is_a_type_error():
    with pytest.raises(TypeError, match="epoch"):
        Stage(epoch=3)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be one of bfloat16, float32; got 'half'"):
        Stage(precision="half")


def test_a_run_stored_before_there_was_a_precision_had_that_of_today_and_no_other():
    run = RECIPES["heinsen2019/smallnorb"].make()
    stored = to_plain(run)
    assert stored["stages"][0].pop("precision") == "bfloat16"
    assert unlike(stored, run) == []
    exact = replace(run, stages=(replace(run.stages[0], precision="float32"),))
    assert unlike(stored, exact) == ["stages[0].precision: bfloat16, float32"]


def test_a_run_is_frozen():
    with pytest.raises(FrozenInstanceError):
        RECIPES["smoke/capsnet"].make().data = "mnist"


def test_an_unknown_recipe_gets_near_names():
    with pytest.raises(ValueError, match=r"no recipe 'sabour2017/mnist-r7-recon'; did you mean sabour2017/mnist-r"):
        find("sabour2017/mnist-r7-recon", RECIPES)
    with pytest.raises(ValueError, match="`torchcaps ls --all` lists them all"):
        find("???", RECIPES)


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="no model 'capsnot'; there are capsnet"):
        replace(RECIPES["smoke/capsnet"].make(), model="capsnot").build()


def test_differences_name_the_path():
    one = to_plain(RECIPES["smoke/capsnet"].make())
    other = to_plain(RECIPES["smoke/capsnet-paper"].make())
    assert differences(one, one) == []
    assert differences(one, other) == ["model_args.preset: None, paper"]


def test_a_stored_run_of_the_future_is_refused():
    with pytest.raises(ValueError, match="has a part 'Fold' that this version does not know"):
        stored({"kind": "Fold"})


def test_quick_never_touches_real_data():
    runs = [RECIPES[name].make().quick() for name in TRAINED]
    assert all(run.data.startswith("generated") for run in runs)
    assert not any(run.tests or run.hold_out or run.stages[0].stop for run in runs)
    assert isinstance(RECIPES["digits/writers"].make().quick(), Run)
