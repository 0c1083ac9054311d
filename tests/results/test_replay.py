"""The first steps are run again, and another curve is noticed."""

import json

from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.results.verify import (
    Check,
    check_replay,
)
from torchcaps.train import Options, train

NAME = "smoke/capsnet-plain"


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
