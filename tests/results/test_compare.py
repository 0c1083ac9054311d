"""Two results beside each other: by hand, against a double loop, and what cannot be compared."""

from math import isnan

import pytest
import torch

from torchcaps.analysis.metrics import wrong
from torchcaps.data import fingerprint, load
from torchcaps.papers import RECIPES
from torchcaps.results.compare import compare, sd_of_mean
from torchcaps.results.store import pack
from torchcaps.train import splits
from torchcaps.train.plain import to_plain

PICTURES, PAIRS = "smoke/capsnet-plain", "smoke/capsnet-pairs"


def result_of(name, said, seed=0):
    run = RECIPES[name].make()
    data = {"test": fingerprint(splits.part(run, "test", None, seed))}
    return {"recipe": name, "seed": seed, "run": to_plain(run), "data": data, "predictions": {"test": pack(said)}}


def spoiled(labels, which):
    """Right but for `which`."""
    said = labels.clone()
    said[which] = (said[which] + 1) % 10
    return said


def test_counts_and_difference_by_hand():
    labels = load("generated-16", "test").labels
    n = len(labels)
    first, second = (result_of(PICTURES, spoiled(labels, which)) for which in ([0, 1, 2, 3], [3, 4]))
    (found,) = compare(first, second, None)
    assert (found.part, found.n, found.first_alone, found.second_alone, found.both) == ("test", n, 3, 1, 1)
    assert found.difference == pytest.approx(100 * 2 / n)
    # three times +1, once -1, else 0: the standard error of their mean
    values = torch.zeros(n, dtype=torch.float64)
    values[:4] = torch.tensor([1.0, 1, 1, -1])
    assert found.sd == pytest.approx(100 * values.std().item() / n**0.5)
    assert (found.what, found.n_sources) == ("images", n)


def test_pairs_are_compared_by_their_digits():
    pairs = load("generated-pairs", "test")
    labels = pairs.labels
    swapped = labels.flip(1)  # the order of the two classes does not matter
    other = swapped.clone()
    other[0, 0] = next(k for k in range(10) if k not in labels[0].tolist())
    (found,) = compare(result_of(PAIRS, other), result_of(PAIRS, labels), None)
    assert (found.first_alone, found.second_alone, found.both) == (1, 0, 0)
    assert (found.what, found.n_sources) == ("digits", len(pairs.classes))


def brute_force(values, sources):
    """Every two examples that share a source, an example and itself included."""
    off = values - values.mean()
    total = sum(
        (off[a] * off[b]).item()
        for a in range(len(values))
        for b in range(len(values))
        if set(sources[a].tolist()) & set(sources[b].tolist())
    )
    n_sources = len(sources.unique())
    return (total * n_sources / (n_sources - 1)) ** 0.5 / len(values)


@pytest.mark.parametrize("n_each", [1, 2])
def test_sd_against_a_double_loop(rng, n_each):
    base = torch.arange(60) % 12
    partner = (
        base + 1 + torch.randint(0, 11, (60,), generator=rng)
    ) % 12  # of few digits: some two are together several times
    sources = torch.stack([base, partner][:n_each], dim=1)
    assert n_each == 1 or len(sources.sort(1).values.unique(dim=0)) < 60
    values = (
        torch.randn(12, generator=rng, dtype=torch.float64)[sources].sum(1)
        + torch.randn(60, generator=rng, dtype=torch.float64) / 4
    )
    assert sd_of_mean(values, sources) == pytest.approx(brute_force(values, sources), rel=1e-12)


def test_two_pairs_of_the_same_digits_by_hand():
    sources = torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]])
    # off by 1/2: two groups of two, each sum 1; four digits
    assert sd_of_mean(torch.tensor([1.0, 1, 0, 0], dtype=torch.float64), sources) == pytest.approx(
        (2 * 4 / 3) ** 0.5 / 4
    )


def test_what_cannot_be_estimated_is_not_called_certain():
    one = torch.zeros(4, 1, dtype=torch.long)
    assert isnan(sd_of_mean(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), one))
    ring = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    assert isnan(
        sd_of_mean(torch.tensor([1.0, -1, 1, -1], dtype=torch.float64), ring)
    )  # neighbours differ more than strangers


def test_pictures_shown_twice_make_nothing_surer(rng):
    values, each = torch.randn(50, generator=rng, dtype=torch.float64), torch.arange(50)[:, None]
    assert sd_of_mean(values.repeat(4), each.repeat(4, 1)) == pytest.approx(sd_of_mean(values, each), rel=1e-12)


def test_sd_is_what_other_draws_of_the_digits_do(rng):
    # values that belong to digits, each digit in several pairs: the mean of draw after draw varies by about what one
    # draw says
    said, means = [], []
    for _ in range(400):
        own = torch.randn(200, generator=rng, dtype=torch.float64)
        base = torch.arange(200).repeat(3)
        partner = (base + 1 + torch.randint(0, 199, (600,), generator=rng)) % 200
        sources = torch.stack([base, partner], dim=1)
        values = own[sources].sum(1)
        said.append(sd_of_mean(values, sources))
        means.append(values.mean())
    assert torch.tensor(said).mean().item() == pytest.approx(torch.stack(means).std().item(), rel=0.1)


def test_wrong_by_hand():
    assert wrong(torch.tensor([1, 2]), torch.tensor([1, 3])).tolist() == [False, True]
    assert wrong(torch.tensor([[1, 2], [1, 2]]), torch.tensor([[2, 1], [2, 3]])).tolist() == [False, True]


def test_what_cannot_be_compared_is_said():
    labels = load("generated-16", "test").labels
    first, other_seed = (result_of(PICTURES, load("generated-16", "test", seed=seed).labels, seed) for seed in (0, 1))
    with pytest.raises(
        ValueError, match=r"no data in common: the first was evaluated on test \(\w{8}…\), the second on test"
    ):
        compare(first, other_seed, None)
    changed = [{**first, "data": {"test": "0"}} for _ in range(2)]
    with pytest.raises(ValueError, match="test: the results were made on data with sha256 0…, what is here has"):
        compare(*changed, None)
    no_classes = {**first, "predictions": {"test": pack(torch.zeros(len(labels), 2))}}
    with pytest.raises(ValueError, match=r"expected a class for each example, \[256\], got \[256\] and \[256, 2\]"):
        compare(first, no_classes, None)
    attack = {
        **first,
        "run": to_plain(RECIPES["rawlinson2018/attack-supervised"].make()),
        "recipe": "rawlinson2018/attack-supervised",
    }
    with pytest.raises(ValueError, match="attack-supervised attacks a network"):
        compare(first, attack, None)


def test_parts_are_matched_by_their_data_and_kind_of_weights():
    labels = load("generated-16", "test").labels
    right, off = pack(labels), pack(spoiled(labels, [0]))
    first = result_of(PICTURES, labels)
    first["predictions"] = {"test": right, "test_ema": off}
    second = {**first, "data": {"generated-16/test": first["data"]["test"], "validation": "0"}}
    second["predictions"] = {"validation": off, "generated-16/test_ema": right, "generated-16/test": off}
    found = compare(first, second, None)
    assert [(one.part, one.first_alone, one.second_alone) for one in found] == [("test", 0, 1), ("test_ema", 1, 0)]
