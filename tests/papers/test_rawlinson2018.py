"""Rows of Rawlinson 2018: each variant changes what its name says, and stored results are of today's runs."""

from pathlib import Path

import pytest

from torchcaps.papers import RECIPES
from torchcaps.probes.classifier import Svm
from torchcaps.results.store import read_result
from torchcaps.train.plain import differences, to_plain, unlike

RESULTS = Path(__file__).parents[2] / "results" / "rawlinson2018"
ROWS = [name.removeprefix("rawlinson2018/") for name in RECIPES if name.startswith("rawlinson2018/")]
# rows that wait for their first result
WAITING = {f"like-{how}-sparse{end}" for how in ("paper", "types") for end in ("", "-svm-a")}


def plain(name):
    return to_plain(RECIPES[f"rawlinson2018/{name}"].make())


def changed(one, other):
    return {line.partition(":")[0] for line in differences(plain(one), plain(other))}


@pytest.mark.parametrize(
    ("base", "variant", "fields"),
    [
        ("mnist-sparse", "mnist-dense", {"model_args.preset"}),
        ("mnist-sparse", "mnist-no-boost", {"model_args.boost_step"}),
        ("mnist-sparse", "mnist-32", {"model_args.n_latent", "model_args.frequencies"}),
        ("like-sparse", "like-steered", {"model_args.boost_gain"}),
        ("like-sparse", "like-released", {"model_args.support", "model_args.frequencies"}),
        ("stack-sparse", "stack-dense", {"model_args.preset"}),
        ("like-sparse-svm-a", "like-sparse-svm-a-masked", {"features", "n_fit"}),
        ("like-sparse-svm-a", "like-sparse-svm-disjoint", {"fit", "on[0]"}),
        ("like-sparse-svm-a", "like-dense-svm-a", {"of", "network.model_args.preset"}),
        ("like-sparse-svm-a", "pixels-wide-svm-a", {"of", "features", "classifier.gamma"}),
        ("attack-sparse", "transfer-to-sparse", {"source"}),
    ],
)
def test_a_variant_changes_what_its_name_says(base, variant, fields):
    assert changed(base, variant) == fields


def test_training_digits_anywhere_change_the_augmentation_alone():
    assert {field.partition("[")[0] for field in changed("like-sparse", "like-anywhere-sparse")} == {"augment"}


def test_an_attack_goes_through_the_svm_of_table_1():
    attack, svm = (RECIPES[f"rawlinson2018/{name}"].make() for name in ("attack-sparse", "mnist-sparse-svm"))
    assert (attack.network, attack.of, attack.fit, attack.features) == (svm.network, svm.of, svm.fit, svm.features)
    assert attack.classifier == svm.classifier == Svm(C=100.0, gamma=0.1)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in WAITING])
def test_results_are_of_today_s_runs(name):
    files = sorted((RESULTS / name).glob("*.json"))
    assert files
    for path in files:
        assert not unlike(read_result(path)["run"], RECIPES[f"rawlinson2018/{name}"].make()), path
