"""Two tables of docs/papers/sabour2017.md are of numbers that no mark can name: they say what the files say."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

HOME = Path(__file__).parent.parent
PAGE = (HOME / "docs/papers/sabour2017.md").read_text()
POSES = {"CapsNet, 16 numbers": "sabour2017/mnist-r3-recon-64 seed 0", "CNN, 192 numbers": "sabour2017/mnist-cnn seed 2"}


def cells(start: str) -> list[str]:
    """Of the one row of a table that begins so, what follows; as it is written."""
    (row,) = re.findall(rf"^\| {re.escape(start)} \| (.*) \|$", PAGE, re.MULTILINE)
    return row.split(" | ")


def told(numbers: list[float], decimals: int) -> list[str]:
    return [f"{number:.{decimals}f}" for number in numbers]


@pytest.mark.parametrize(
    ("start", "recipe", "n", "what", "decimals"),
    [
        ("MNIST, `{}`, right, mean of seeds 0 to 4", "mnist-r3-recon-64", 5, "accuracy_percent", 2),
        ("MNIST, `{}`, entropy, mean of seeds 0 to 4", "mnist-r3-recon-64", 5, "entropy_share_by_length", 3),
        ("MultiMNIST, `{}`, both right, seed 0", "multimnist-4-r3", 1, "accuracy_percent", 2),
        ("MultiMNIST, `{}`, entropy, seed 0", "multimnist-4-r3", 1, "entropy_share_by_length", 3),
        ("CIFAR-10, `{}`, right, mean of seeds 0 to 2", "cifar10", 3, "accuracy_percent", 2),
        ("CIFAR-10, `{}`, entropy, mean of seeds 0 to 2", "cifar10", 3, "entropy_share_by_length", 3),
    ],
)
def test_what_the_routing_does_is_what_the_result_files_hold(start, recipe, n, what, decimals):
    files = [HOME / f"results/sabour2017/{recipe}/{seed}.json" for seed in range(n)]
    found = [json.loads(file.read_text())["diagnostics"] for file in files]
    assert all(one["n_images"] == 2000 and one["n_iters"] == 3 for one in found)
    assert not any(one["dead"]["primary_types"] or one["dead"]["class_capsules"] for one in found)
    assert cells(start.format(recipe)) == told(
        [mean(row[what] for row in by_pass) for by_pass in zip(*(one["passes"] for one in found), strict=True)], decimals
    )


@pytest.mark.parametrize("start", POSES)
def test_what_a_pose_knows_is_what_its_file_holds(start):
    found = json.loads((HOME / "docs/papers/sabour2017/equivariance.json").read_text())[POSES[start]]
    assert str(found["n_features"]) in start
    assert cells(start) == told(list(found["r2"].values()), 2)
    assert f"{found['error_percent']:.1f} %" in PAGE
