"""Votes of finished runs: who wins, from which files, and what is refused."""

from dataclasses import replace
from typing import get_type_hints

import pytest
import torch

from torchcaps.data import fingerprint, load
from torchcaps.papers import RECIPES
from torchcaps.probes.features import Missing
from torchcaps.probes.kinds import Vote
from torchcaps.probes.vote import majority
from torchcaps.results.store import make_result, pack, predicted, write_result
from torchcaps.results.verify import Parts, check_fitted, check_metrics
from torchcaps.results.votes import check_vote
from torchcaps.train import Options
from torchcaps.train.plain import to_plain
from torchcaps.train.state import Predicted

NETWORK = RECIPES["smoke/capsnet"].make()
TEST = load("generated-16", "test")


def test_most_members_win_and_the_earliest_where_all_differ():
    said = torch.tensor([[1, 2, 3, 0], [0, 2, 4, 1], [0, 1, 5, 1]])
    assert majority(said).tolist() == [0, 2, 3, 1]
    assert majority(torch.tensor([[0], [3], [3], [1], [1]])).tolist() == [3]  # two pairs: that of the earlier member
    assert majority(said[:1]).tolist() == said[0].tolist()


def test_its_shapes_are_readable_annotations():
    """`n` without quotes is no name, and whoever reads the annotations failed on it."""
    assert get_type_hints(majority)["return"].dim_str == "n"


def member(seed: int) -> Predicted:
    """A run that errs on its own twentieth of the images."""
    said = TEST.labels.clone()
    said[seed::20] = (said[seed::20] + 1) % 10
    return Predicted(to_plain(NETWORK), {"test": fingerprint(TEST)}, f"{seed}", {"test": said.to(torch.uint8)})


def vote(tmp_path, seed: int = 0, found=lambda name, number: member(number)):
    probe = Vote(network=NETWORK, of="smoke/capsnet")
    return probe, probe.execute("vote", seed, Options(out=tmp_path, predicted=found))


def test_three_members_that_err_on_other_images_err_on_none_and_the_file_is_verified(tmp_path):
    probe, found = vote(tmp_path)
    assert found.evaluations["test"].metrics == {"error_percent": 0.0}
    result = make_result("vote", 0, probe, found)
    assert [check.passed for check in check_metrics(result, probe, None)] == [True]
    assert check_fitted(result, probe, Parts(None)).passed
    write_result(tmp_path / "result.json", result)
    assert torch.equal(predicted(tmp_path / "result.json").predictions["test"].long(), TEST.labels)
    assert predicted(tmp_path / "other.json") is None


def test_a_vote_is_counted_again_from_the_files_of_its_members(tmp_path):
    """Edited predictions, and a member that was run again, are noticed."""
    probe, found = vote(tmp_path / "run")
    result = make_result("vote", 0, probe, found)
    assert check_vote(result, probe, tmp_path).text == "no result of smoke/capsnet seed 0, 1, 2"

    def write(seed: int, said: Predicted) -> None:
        plain = {
            "recipe": "smoke/capsnet",
            "seed": seed,
            "run": said.run,
            "data": said.data,
            "metrics": {},
            "curve": [],
        }
        packed = {"test": pack(said.predictions["test"])}
        write_result(
            tmp_path / f"smoke/capsnet/{seed}.json",
            plain | {"weights_sha256": said.weights_sha256, "predictions": packed, "steps": 0, "seconds": 1.0},
        )

    for seed in range(3):
        write(seed, member(seed))
    assert check_vote(result, probe, tmp_path).passed
    edited = found.evaluations["test"].predictions.clone()
    edited[0] = (edited[0] + 1) % 10
    wrong = check_vote(result | {"predictions": {"test": pack(edited)}}, probe, tmp_path)
    assert not wrong.passed and wrong.text == "differs: predictions of test"
    write(1, member(1)._replace(weights_sha256="another"))
    assert check_vote(result, probe, tmp_path).text == "differs: weights_sha256"


def test_votes_of_two_seeds_share_no_member(tmp_path):
    asked, other = [], fingerprint(load("generated-16", "test", seed=1))  # its images are drawn by the seed
    vote(tmp_path, 0, lambda name, number: asked.append(number) or member(number))
    vote(tmp_path, 1, lambda name, number: asked.append(number) or member(number)._replace(data={"test": other}))
    assert asked == [0, 1, 2, 3, 4, 5]


def test_members_that_are_missing_stale_or_of_other_images_are_refused(tmp_path):
    with pytest.raises(Missing, match="`torchcaps reproduce smoke/capsnet --seeds 1` makes it"):
        vote(tmp_path, found=lambda name, seed: None if seed else member(seed))
    other = to_plain(replace(NETWORK, augment=()))
    with pytest.raises(Missing, match="there is none of today's run"):
        vote(tmp_path, found=lambda name, seed: member(seed)._replace(run=other))
    with pytest.raises(ValueError, match="tested on other test images than are here"):
        vote(tmp_path, found=lambda name, seed: member(seed)._replace(data={"test": "0"}))
