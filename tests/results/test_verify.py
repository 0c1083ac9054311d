"""Verification passes what is right and notices what is not."""

import base64
import zlib
from pathlib import Path

import pytest

from torchcaps.data import load
from torchcaps.papers import RECIPES
from torchcaps.papers.against_cnn import check_intervals
from torchcaps.probes.kinds import Attack
from torchcaps.results.history import History
from torchcaps.results.store import make_result, pack, unpack
from torchcaps.results.verify import (
    Check,
    Parts,
    check_course,
    check_fitted,
    check_metrics,
    check_recipe,
    check_replay,
    check_weights,
    unchecked,
    verify,
    verify_all,
)
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain

NAME = "smoke/capsnet-plain"


def test_a_setting_that_is_new_today_does_not_make_old_results_stale(result):
    before = {name: value for name, value in result["run"].items() if name != "hold_out"}
    assert check_recipe(result | {"run": before}, RECIPES).passed
    gone = check_recipe(result | {"run": result["run"] | {"flavour": "sweet"}}, RECIPES)
    assert not gone.passed
    assert "flavour: sweet" in gone.text


def test_verify_passes_what_is_right(result):
    checks = check_metrics(result, RECIPES[NAME].make(), None)
    assert [check.passed for check in checks] == [True, True]  # raw and averaged weights
    assert check_recipe(result, RECIPES).passed
    assert check_replay(result, RECIPES[NAME].make(), None, "cpu").passed


def test_verify_notices_a_changed_number(result):
    changed = result | {"metrics": {"test": {"error_percent": result["metrics"]["test"]["error_percent"] - 0.1}}}
    (check,) = check_metrics(changed, RECIPES[NAME].make(), None)
    assert not check.passed
    assert "recomputed" in check.text


def test_verify_notices_other_data_and_missing_predictions(result):
    (check, *_) = check_metrics(result | {"data": result["data"] | {"test": "0" * 64}}, RECIPES[NAME].make(), None)
    assert not check.passed
    assert "was made on 00000000…" in check.text
    short = pack(unpack(result["predictions"]["test"])[:-1])
    (check, *_) = check_metrics(
        result | {"predictions": result["predictions"] | {"test": short}}, RECIPES[NAME].make(), None
    )
    assert not check.passed
    assert "255 predictions for 256 images" in check.text
    twice = pack(unpack(result["predictions"]["test"])[:, None].expand(-1, 2))
    (check, *_) = check_metrics(result | {"predictions": {"test": twice}}, RECIPES[NAME].make(), None)
    assert not check.passed and check.text == "predictions of shape [256, 2] for labels [256]"
    large = {"shape": [256, 1000], "zlib_base64": base64.b64encode(zlib.compress(bytes(256_000))).decode()}
    with pytest.raises(ValueError, match="at most 512 bytes"):
        check_metrics(result | {"predictions": {"test": large}}, RECIPES[NAME].make(), None)


def test_verify_notices_another_training_set(result):
    run, parts = RECIPES[NAME].make(), Parts(None)
    assert check_fitted(result, run, parts).passed
    for name, value in (("train", "0" * 64), ("name", "mnist")):
        found = check_fitted(result | {"data": result["data"] | {name: value}}, run, parts)
        assert not found.passed and found.text == f"differs: {name}"
    without = {name: value for name, value in result["data"].items() if name != "train"}
    assert "no hash of train" in check_fitted(result | {"data": without}, run, parts).text


def test_the_portion_that_an_attacked_classifier_was_fitted_to_is_read_as_a_portion():
    """Its hash was never compared: that name gave the attacked images."""
    attack = Attack(network=RECIPES[NAME].make(), of=NAME, fit="generated-16/train", n_images=20)
    assert len(attack.part("clean", None, 0).labels) == 20
    assert len(attack.part("generated-16/train", None, 0).labels) == len(load("generated-16", "train").labels)


def test_verify_notices_changed_steps_and_another_end_of_the_curve(result):
    run = RECIPES[NAME].make()
    assert [check.passed for check in check_course(result, run)] == [True, True]
    assert [check.passed for check in check_course(result | {"steps": 19}, run)] == [True, False]  # unfinished, it says
    more = result | {"steps": 40, "planned_steps": 40}
    assert [check.passed for check in check_course(more, run)] == [False, False]
    last = {"step": 20, "test_error_percent": result["metrics"]["test"]["error_percent"] + 1}
    assert not check_course(result | {"curve": [*result["curve"], last]}, run)[1].passed
    probe = Attack(network=run, of=NAME)
    assert [check_course({"steps": steps}, probe)[0].passed for steps in (0, 7)] == [True, False]
    nothing = last | {"test_error_percent": float("nan")}
    assert not check_course(result | {"curve": [*result["curve"], nothing]}, run)[1].passed


def test_verify_says_which_numbers_it_cannot_recompute(result):
    """An edited extra must not pass as checked."""
    found = unchecked(result | {"extras": {"probe_accuracy": 99.0}})
    assert [(check.name, check.passed) for check in found] == [
        ("extras", None),
        ("told", None),
        ("diagnostics", None),
    ]
    assert "probe_accuracy" in found[0].text
    assert all(name in found[1].text for name in ("seconds", "peak_memory_bytes", "device", "versions"))
    metrics = result["metrics"] | {"test": result["metrics"]["test"] | {"made_up": 1.0}}
    checks = {
        check.name: check.passed for check in check_metrics(result | {"metrics": metrics}, RECIPES[NAME].make(), None)
    }
    assert checks["test.made_up"] is None and checks["test.error_percent"]


def test_verify_compares_the_hash_of_the_weights_with_a_checkpoint(tmp_path):
    run = RECIPES[NAME].make()
    result = make_result(NAME, 0, run, train(run, name=NAME, seed=0, options=Options(out=tmp_path, progress=False)))
    assert check_weights(result, None).passed is None
    assert check_weights(result, tmp_path / "checkpoint.safetensors").passed
    assert check_weights(result | {"weights_sha256": "0" * 64}, tmp_path / "checkpoint.safetensors").passed is False


def test_verify_notices_a_stale_recipe(result):
    stale = result | {"run": to_plain(RECIPES["smoke/capsnet"].make())}
    assert not check_recipe(stale, RECIPES).passed
    assert not check_recipe(result | {"recipe": "gone/away"}, RECIPES).passed


@pytest.mark.slow
@pytest.mark.data
def test_every_committed_result_is_consistent_with_its_data_recipe_and_commit():
    found = verify_all(Path(__file__).parents[2] / "results", RECIPES, None, History())
    assert found.n > 300
    assert not found.bad, found.text()
    # encoders and photographs may be missing, of clothes too; digits may not
    digits = [name for name in found.without_data if "mnist" in name or name.startswith("digits")]
    assert set(digits) <= {"fashion-mnist"}, found.text()
    intervals = check_intervals(Path(__file__).parents[2] / "results")
    assert any(check.passed for check in intervals) and not [check for check in intervals if check.passed is False]


def test_verify_makes_every_check(result, monkeypatch):
    monkeypatch.setattr(
        "torchcaps.results.verify.check_commit", lambda result, history: Check("commit", True, "")
    )  # tested above
    checks = verify(result, RECIPES, None, True, "cpu")
    assert [check.name for check in checks][-3:] == ["recipe", "commit", "replay"]
    by_name = {check.name: check.passed for check in checks}
    assert by_name["steps"] and by_name["curve"]
    assert by_name["data"] and by_name["weights"] is None and by_name["told"] is None
    without = {check.name: check.passed for check in verify(result, RECIPES, None, False, "cpu")}
    assert without["replay"] is None
