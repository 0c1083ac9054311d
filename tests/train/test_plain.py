"""Stored runs are read as today's code names things, whatever version wrote them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchcaps.layers import SelfRouting
from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import Attack, FrozenClassifier, stored
from torchcaps.results.store import read_result
from torchcaps.train.plain import to_plain, unlike, up_to_date
from torchcaps.train.recipe import Run, stored_run
from torchcaps.train.schedules import Exponential

RESULTS = Path(__file__).parents[2] / "results"


def test_a_renamed_field_is_read_under_its_new_name():
    run = RECIPES["smoke/capsnet"].make()
    old = json.loads(json.dumps(to_plain(run)))
    (stage,) = old["stages"]
    stage["rate"] = stage.pop("learning_rate")
    stage["schedule"]["rate"] = stage["schedule"].pop("decay")
    assert stored_run(old) == run and unlike(old, run) == []
    stage["rate"] = 1.0
    assert unlike(old, run) == ["stages[0].learning_rate: 1.0, 0.003"]
    assert stored_run(old).stages[0].schedule == Exponential()


def test_a_renamed_kind_and_model_are_read_under_their_new_names():
    run = RECIPES["smoke/rbm"].make()
    text = (
        json.dumps(to_plain(run))
        .replace('"LearnRBM"', '"LearnNeurons"')
        .replace('"model": "rbm"', '"model": "neurons"')
    )
    assert text.count("LearnNeurons") == text.count('"neurons"') == 1
    assert stored_run(json.loads(text)) == run


@pytest.mark.parametrize("kind", ["Reading", "Attack"])
def test_a_probe_that_was_stored_flat_holds_its_network(kind):
    network = RECIPES["smoke/sparsecaps"].make()
    old = to_plain(network) | {
        "kind": kind,
        "of": "smoke/sparsecaps",
        "features": "masked",
        "fit": "a/train",
        "on": ["a/test"],
    }
    probe = stored(old)
    assert type(probe) is (Attack if kind == "Attack" else FrozenClassifier)
    assert probe.network == network and (probe.of, probe.features, probe.on) == (
        "smoke/sparsecaps",
        "masked",
        ("a/test",),
    )
    assert unlike(old, probe) == []
    assert unlike(old, replace(probe, features="pre_mask")) == ["features: masked, pre_mask"]
    assert unlike(old, replace(probe, network=replace(network, data="mnist"))) == ["network.data: generated-16, mnist"]


def test_a_field_that_is_gone_is_read_only_with_the_value_that_changes_nothing():
    run = RECIPES["smoke/experts-persistent"].make()
    old = to_plain(run)
    old["stages"][1]["task"]["restart"] = True
    assert stored_run(old) == run and unlike(old, run) == []
    old["stages"][1]["task"]["restart"] = False  # chains that fell silent for good
    assert unlike(old, run)
    with pytest.raises(ValueError, match=r"has a setting that is gone .*restart"):
        stored_run(old)


def test_an_option_of_a_model_s_argument_that_is_newer_has_its_default():
    run = RECIPES["smoke/routing-net"].make()
    run = replace(run, model_args=run.model_args | {"routing": SelfRouting(bias=True)})
    old = to_plain(run)
    del old["model_args"]["routing"]["batch_norm"]
    assert stored_run(old) == run and unlike(old, run) == []
    other = replace(run, model_args=run.model_args | {"routing": SelfRouting(bias=True, batch_norm=True)})
    assert unlike(old, other) == ["model_args.routing.batch_norm: False, True"]


def test_what_is_up_to_date_stays_as_it_is():
    for recipe in RECIPES.values():
        plain = json.loads(json.dumps(to_plain(recipe.make())))
        assert up_to_date(plain) == plain


def test_no_committed_result_is_stale_or_rewritten():
    """Some files still hold the old names, and all are of today's recipes."""
    files = sorted(RESULTS.rglob("*.json"))
    assert len(files) > 200
    kinds = set()
    for path in files:
        result = read_result(path)
        kinds |= {result["run"]["kind"]} | {
            key for stage in result["run"].get("stages", ()) for key in stage if key == "rate"
        }
        assert unlike(result["run"], RECIPES[result["recipe"]].make()) == [], path
    assert {"Run", "Reading", "Attack", "rate"} <= kinds
    assert isinstance(stored(read_result(files[0])["run"]), Run)
