"""Ensembles are computed from the scores that their members stored."""

from dataclasses import replace

import pytest
import torch

from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import Ensemble
from torchcaps.results.claims import Claim, Recipe
from torchcaps.results.statistics import by_seed, ensemble_error_percent
from torchcaps.results.store import make_result, pack, read_result, result_path, unpack, write_result
from torchcaps.results.tables import table
from torchcaps.results.verify import (
    check_metrics,
)
from torchcaps.train import Options, train

NAME = "smoke/capsnet-plain"


def member(scores, labels, recipe="sabour2017/cifar10"):
    """A result of one that answers with these scores."""
    part = {"scores": pack(torch.tensor(scores).half().view(torch.uint8)), "labels": pack(torch.tensor(labels))}
    return {"recipe": recipe, "ensemble": {"test": part}}


def test_an_ensemble_adds_up_what_its_members_say():
    """Each member is wrong about another image; together they are right about both."""
    sure, unsure = [0.9, 0.1], [0.45, 0.55]
    one, other = member([sure, unsure], [0, 0]), member([unsure, sure], [0, 0])
    assert ensemble_error_percent([one], "test") == ensemble_error_percent([other], "test") == 50
    assert ensemble_error_percent([one, other], "test") == 0
    with pytest.raises(ValueError, match="must have the same test images"):
        ensemble_error_percent([one, member([sure, sure], [0, 1])], "test")


def test_the_row_of_an_ensemble_is_computed_from_its_members(tmp_path):
    pytest.importorskip("sklearn")
    run = replace(
        RECIPES["smoke/capsnet"].make(), data="digits-writers", keep_scores=True
    )  # the same test images for every seed
    together = Ensemble(network=run, of="smoke/one")
    recipes = {
        "smoke/one": Recipe("smoke/one", lambda: run, None),
        "smoke/all": Recipe("smoke/all", lambda: together, Claim(table="-", row="-", metric="test.error_percent")),
    }
    for seed in (0, 3, 7):
        trained = train(
            run, name="smoke/one", seed=seed, options=Options(out=tmp_path / "runs" / str(seed), progress=False)
        )
        write_result(result_path(tmp_path, "smoke/one", seed), make_result("smoke/one", seed, run, trained))
        (row,) = table(recipes, tmp_path)
        assert bool(row.values) == (seed == 7)  # fewer than three are no ensemble
    assert row.together == (0, 3, 7) and "(3 together" in row.ours()
    assert row.command().endswith("smoke/all --seeds 0,3,7")
    members = [read_result(result_path(tmp_path, "smoke/one", seed)) for seed in (0, 3, 7)]
    assert list(by_seed(recipes["smoke/all"], tmp_path, "error_percent").values()) == [
        ensemble_error_percent(members, "test")
    ]
    with pytest.raises(ValueError, match="smoke/all is not measured by seconds; an ensemble has error_percent alone"):
        by_seed(recipes["smoke/all"], tmp_path, "seconds")


def test_scores_of_an_ensemble_that_do_not_give_the_predictions_are_found(tmp_path):
    pytest.importorskip("sklearn")
    run = replace(RECIPES["smoke/capsnet"].make(), data="digits-writers", keep_scores=True)
    result = make_result(NAME, 0, run, train(run, name=NAME, seed=0, options=Options(out=tmp_path, progress=False)))
    assert all(check.passed for check in check_metrics(result, run, None))
    part = result["ensemble"]["test"]
    labels = unpack(part["labels"]).long()
    forged = {**part, "scores": pack(torch.nn.functional.one_hot(labels, 10).half().view(torch.uint8))}
    bad = [
        check
        for check in check_metrics({**result, "ensemble": {**result["ensemble"], "test": forged}}, run, None)
        if not check.passed
    ]
    assert [check.name for check in bad] == ["test.scores"]
    other = {**part, "labels": pack((labels + 1) % 10)}
    assert not all(
        check.passed
        for check in check_metrics({**result, "ensemble": {**result["ensemble"], "test": other}}, run, None)
    )
