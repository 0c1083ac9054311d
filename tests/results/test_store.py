"""Result files in, tables out; what does not fit is said."""

import base64
import json
import shutil
import subprocess
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchcaps
from torchcaps.analysis.metrics import (
    confusion,
    coupling_entropy,
    dead_capsules,
    error_percent,
    exact_match_error_percent,
    half_credit_error_percent,
)
from torchcaps.data import DataError, load
from torchcaps.papers import RECIPES
from torchcaps.papers.against_cnn import check_intervals
from torchcaps.probes.kinds import Attack, Ensemble
from torchcaps.results.claims import Claim, Recipe
from torchcaps.results.history import History
from torchcaps.results.statistics import by_seed, ensemble_error_percent
from torchcaps.results.store import make_result, pack, read_result, result_path, thin, unpack, write_result
from torchcaps.results.tables import markdown, table
from torchcaps.results.verify import (
    Check,
    Parts,
    check_commit,
    check_course,
    check_fitted,
    check_metrics,
    check_place,
    check_recipe,
    check_replay,
    check_weights,
    course_of,
    unchecked,
    verify,
    verify_all,
)
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain

NAME = "smoke/capsnet-plain"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    run = RECIPES[NAME].make()
    trained = train(
        run, name=NAME, seed=0, options=Options(out=tmp_path_factory.mktemp("run"), progress=False, log_every=5)
    )
    return json.loads(json.dumps(make_result(NAME, 0, run, trained)))


def test_a_result_file_tells_everything_needed_to_check_it(result):
    wanted = "recipe seed metrics steps seconds peak_memory_bytes device routing versions commit dirty run data curve predictions"
    assert {*wanted.split(), "weights_sha256"} <= set(result)
    assert result["steps"] == 20
    assert result["metrics"]["test"]["error_percent"] == error_percent(
        unpack(result["predictions"]["test"]).long(), load("generated-16", "test").labels
    )


def test_predictions_survive_packing(rng):
    said = torch.randint(0, 10, (1000, 2), generator=rng, dtype=torch.uint8)
    assert torch.equal(unpack(json.loads(json.dumps(pack(said)))), said)


def test_the_declared_shape_bounds_the_memory_of_packed_predictions():
    bomb = {"shape": [1000], "zlib_base64": base64.b64encode(zlib.compress(bytes(1 << 26), 9)).decode()}
    tracemalloc.start()
    with pytest.raises(ValueError, match="do not have the 1,000 bytes of their shape"):
        unpack(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    for shape in ([1 << 40], [-1], ["a"], 3, None):
        with pytest.raises(ValueError, match="have a shape of at most"):
            unpack(bomb | {"shape": shape})
    for text in ("x", "AAAA", pack(torch.zeros(9))["zlib_base64"]):
        with pytest.raises(ValueError, match="packed predictions"):
            unpack({"shape": [10], "zlib_base64": text})


def test_a_thinned_curve_keeps_the_start_the_end_and_every_validation():
    curve = [{"step": step, "loss": 1 / 3} for step in range(50, 100_050, 50)]
    curve.insert(1000, {"step": 50_000, "validation_error_percent": 1.0})
    thinned = thin(curve)
    assert [line["step"] for line in thinned][:4] == [50, 100, 150, 200]
    assert thinned[-1] == {"step": 100_000, "loss": 0.333333}
    assert {"step": 50_000, "validation_error_percent": 1.0} in thinned
    assert len(thinned) < 120


def recipes_with_claim() -> dict[str, Recipe]:
    return {
        NAME: replace(
            RECIPES[NAME],
            claim=Claim(table="1", row="a row", metric="test.error_percent", printed=0.25, printed_sd=0.005),
        )
    }


def test_a_row_that_nobody_ran_says_so(tmp_path):
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "not run yet"
    assert row.printed() == "0.25 ± 0.005"
    told = replace(row.recipe, claim=replace(row.recipe.claim, selected="mean of 3"))
    assert replace(row, recipe=told).printed() == "0.25 ± 0.005, mean of 3"


def test_a_row_gives_mean_sd_and_n_and_leaves_stale_results_out(result, tmp_path):
    clean = result | {"dirty": False}
    for seed, error in enumerate([0.2, 0.3, 0.4]):
        write_result(
            result_path(tmp_path, NAME, seed), clean | {"seed": seed, "metrics": {"test": {"error_percent": error}}}
        )
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.300 ± 0.100 (n=3)"
    write_result(result_path(tmp_path, NAME, 2), result | {"run": result["run"] | {"data": "mnist"}})
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.250 ± 0.071 (n=2, 1 stale left out)"
    result_path(tmp_path, NAME, 1).unlink()
    result_path(tmp_path, NAME, 2).unlink()
    (row,) = table(recipes_with_claim(), tmp_path)
    assert row.ours() == "0.200 (n=1)"
    assert (
        f"| 1 | a row | test.error_percent | 0.25 ± 0.005 | 0.200 (n=1) | `torchcaps reproduce {NAME} --seeds 0` |"
        in markdown([row])
    )
    write_result(
        result_path(tmp_path, NAME, 0), clean | {"dirty": True, "metrics": {"test_ema": {"error_percent": 0.1}}}
    )
    (row,) = table(recipes_with_claim(), tmp_path, "_ema")
    assert "| test_ema.error_percent | 0.25 ± 0.005 | 0.100 (n=1, 1 of uncommitted code) |" in markdown([row])


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


def test_a_copy_is_no_further_seed(result, tmp_path):
    """Nothing in a file tells its seed but the seed itself, so a renamed copy once made n=2 of one run."""
    first, second = (result_path(tmp_path, NAME, seed) for seed in (0, 1))
    assert check_place(result, first, tmp_path, first).passed
    moved = check_place(result, second, tmp_path, second)
    assert not moved.passed and f"those of {first}" in moved.text
    copied = check_place(result | {"seed": 1}, second, tmp_path, first)
    assert not copied.passed and f"repeats {first}" in copied.text


def test_seeds_of_a_vote_that_agree_on_every_image_are_no_copies(result):
    """A vote has no curve: the weights of its members tell it from another one."""
    vote, curve = result | {"curve": []}, result["curve"]
    other = vote | {"seed": 1, "weights_sha256": "0" * 64}
    assert course_of(vote) == course_of(vote | {"seed": 1}) != course_of(other)
    assert course_of(vote | {"curve": curve}) == course_of(other | {"curve": curve}), (
        "another hash of the weights hides no copy"
    )


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


def test_verify_notices_another_curve(result):
    curve = [line | {"loss": 1.2 * line["loss"]} for line in result["curve"]]
    found = check_replay(result | {"curve": curve, "commit": "0123456789abcdef"}, RECIPES[NAME].make(), None, "cpu")
    assert not found.passed and "replay it at its own commit, 0123456789ab" in found.text
    last = result["curve"][-1] | {"loss": float("nan")}
    assert not check_replay(result | {"curve": [*result["curve"][:-1], last]}, RECIPES[NAME].make(), None, "cpu").passed


def test_a_replay_elsewhere_allows_more_where_the_network_draws_random_numbers(tmp_path):
    """A CPU draws another dropout than a GPU: losses differ by its noise, but not by half."""
    name = "smoke/baseline"
    run = RECIPES[name].make()
    options = Options(out=tmp_path, progress=False, log_every=5)
    made = json.loads(json.dumps(make_result(name, 0, run, train(run, name=name, seed=0, options=options))))

    def replayed(factor: float, device: str, result=made, run=run) -> Check:
        curve = [line | {"loss": factor * line["loss"]} for line in result["curve"] if "loss" in line]
        return check_replay(result | {"curve": curve, "device": device}, run, None, "cpu")

    assert not replayed(1.1, made["device"]).passed  # the same kind of device: the same numbers
    elsewhere = replayed(1.1, "NVIDIA H200")
    assert elsewhere.passed and "draws random numbers" in elsewhere.text
    assert not replayed(2.0, "NVIDIA H200").passed


def test_a_replay_elsewhere_allows_no_more_where_it_does_not(result):
    curve = [line | {"loss": 1.1 * line["loss"]} for line in result["curve"] if "loss" in line]
    moved = result | {"curve": curve, "device": "NVIDIA H200"}
    assert not check_replay(moved, RECIPES[NAME].make(), None, "cpu").passed


def committed(home: Path) -> str:
    """All files of the folder, in a repository of their own."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
def test_verify_asks_the_code_of_the_commit(result, tmp_path):
    shutil.copytree(
        Path(torchcaps.__file__).parent, tmp_path / "torchcaps", ignore=shutil.ignore_patterns("__pycache__")
    )
    history = History(tmp_path, tmp_path / "cache")
    assert check_commit(result | {"dirty": False, "commit": committed(tmp_path)}, history).passed


# has recipes as torchcaps has, without the seconds that the whole of torchcaps takes to import
OLD = {
    "papers.py": "class R:\n    make = staticmethod(lambda: RUN)\nRECIPES = {NAME: R()}\n",
    "recipe.py": "to_plain = dict\n",
    "__init__.py": "",
}


@pytest.fixture
def history(result, tmp_path) -> tuple[History, str]:
    """A repository of one commit with one recipe."""
    (tmp_path / "torchcaps").mkdir()
    for name, text in OLD.items():
        (tmp_path / "torchcaps" / name).write_text(text.replace("NAME", repr(NAME)).replace("RUN", repr(result["run"])))
    return History(tmp_path, tmp_path / "cache"), committed(tmp_path)


def test_verify_looks_at_the_recipe_as_it_was_at_the_commit(result, history):
    history, head = history
    clean = result | {"dirty": False, "commit": head}
    assert check_commit(clean, history).passed
    assert (
        "stored, then: data: mnist, generated-16"
        in check_commit(clean | {"run": result["run"] | {"data": "mnist"}}, history).text
    )
    assert "changes not committed" in check_commit(clean | {"dirty": True}, history).text
    missing = check_commit(clean | {"commit": "0" * 40}, history).text
    assert "could not look at 000000000000" in missing and "`git fetch --unshallow`" in missing
    unnamed = check_commit(clean | {"recipe": "smoke/none"}, history).text
    assert "has no recipe 'smoke/none'" in unnamed and "fetch" not in unnamed  # the commit is there, the recipe is not
    assert "names no commit, but 'unknown'" in check_commit(clean | {"commit": "unknown"}, history).text


@pytest.mark.slow
def test_a_commit_is_read_once_and_a_damaged_cache_is_made_anew(result, history, monkeypatch):
    history, head = history
    clean = result | {"dirty": False, "commit": head}
    assert check_commit(clean, history).passed
    (kept,) = history.cache.iterdir()
    again = History(Path("nowhere"), history.cache)
    assert check_commit(clean, again).passed  # without a repository: from the cache
    kept.write_bytes(kept.read_bytes().replace(b"generated-16", b"generated-17"))
    assert check_commit(clean, History(history.home, history.cache)).passed
    assert b"generated-16" in kept.read_bytes()


@pytest.mark.slow
def test_verify_all_counts_bad_files_and_those_without_data(result, history, tmp_path, monkeypatch):
    history, head = history
    folder = tmp_path / "results"
    clean = result | {"dirty": False, "commit": head, "evaluated_by": {}, "begun_by": []}
    write_result(result_path(folder, NAME, 0), clean)
    whole = verify_all(folder, RECIPES, None, history)
    assert (whole.n, whole.bad, whole.without_data) == (1, [], {})
    write_result(result_path(folder, NAME, 1), clean | {"commit": "0" * 40})
    forged = clean["metrics"] | {"test": {"error_percent": 1.5}}
    write_result(result_path(folder, NAME, 2), clean | {"metrics": forged})
    found = verify_all(folder, RECIPES, None, history)
    assert [(path.name, check.name) for path, check in found.bad] == [
        ("1.json", "commit"), ("1.json", "place"), ("2.json", "test.error_percent"), ("2.json", "place"),
    ]  # fmt: skip
    assert "3 result files, 2 bad" in found.text()
    result_path(folder, NAME, 3).write_text('{"recipe": 7}')
    malformed = verify_all(folder, RECIPES, None, history)
    assert [(path.name, check.name) for path, check in malformed.bad][-1:] == [("3.json", "file")]
    result_path(folder, NAME, 3).unlink()

    def missing(*args):
        raise DataError("not here")

    monkeypatch.setattr("torchcaps.results.verify.Parts.__call__", missing)
    found = verify_all(folder, RECIPES, None, history)
    assert {path.name for path, check in found.bad if check.name != "place"} == {"1.json"}
    assert found.without_data == {"generated-16": 3}
    assert "3 on generated-16" in found.text()


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


@pytest.mark.parametrize("text", ["", "[1", '{"recipe": "x"}'])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a (readable )?result file"):
        read_result(tmp_path / "r.json")


def test_metrics_by_hand():
    said, labels = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])
    assert error_percent(said, labels) == 25
    assert confusion(said, labels, 3).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    pairs_said, pairs = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([[2, 1], [3, 5], [7, 8]])
    assert exact_match_error_percent(pairs_said, pairs) == pytest.approx(200 / 3)
    assert half_credit_error_percent(pairs_said, pairs) == pytest.approx(50)
    assert coupling_entropy(torch.full((2, 3, 4), 0.25)) == pytest.approx(1)
    assert coupling_entropy(torch.eye(4)) == pytest.approx(0)
    assert dead_capsules(torch.tensor([[0.0, 0.5], [0.001, 0.0]])).tolist() == [True, False]


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


def test_what_stands_beside_a_number_says_of_which_part_it_is(result, tmp_path):
    """A row of averaged weights has the last step's beside it: without its part's name that would be taken for the
    row's own metric.
    """
    beside = "test.error_percent", "test.loss", "other.loss", "gone.x"
    recipe = Recipe(NAME, RECIPES[NAME].make, Claim(table="1", row="x", metric="test_ema.error_percent", beside=beside))
    metrics = {"test": {"error_percent": 2.0, "loss": 0.2}, "test_ema": {"error_percent": 1.5}, "other": {"loss": 0.1}}
    write_result(result_path(tmp_path, NAME, 0), result | {"metrics": metrics})
    (row,) = table({NAME: recipe}, tmp_path)
    assert row.ours().startswith("1.500 (n=1") and row.ours().endswith(
        "); test error_percent 2.000; loss 0.200; other loss 0.100"
    )


def test_a_row_says_which_runs_were_not_finished_or_never_met_their_rule(tmp_path):
    run = RECIPES["smoke/capsnet"].make()
    recipes = {"smoke/x": Recipe("smoke/x", lambda: run, Claim(table="-", row="-", metric="test.error_percent"))}
    for seed, extra in enumerate([{}, {"max_steps": 5, "as_is": True}]):
        options = Options(out=tmp_path / str(seed), progress=False, **extra)
        write_result(
            result_path(tmp_path, "smoke/x", seed),
            make_result("smoke/x", seed, run, train(run, name="x", seed=seed, options=options)),
        )
    assert ", one at 5 of 20 steps" in table(recipes, tmp_path)[0].ours()
    path = result_path(tmp_path, "smoke/x", 0)
    write_result(path, read_result(path) | {"stopping_rule_met": False})
    assert ", 1 that never met the rule" in table(recipes, tmp_path)[0].ours()
