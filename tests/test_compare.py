"""Two results beside each other: by hand, against a double loop, and what cannot be compared."""

import pytest
import torch

from torchcaps import parts
from torchcaps.compare import Sources, compare, sd_of_mean, sources_of, wrong
from torchcaps.data import fingerprint, load
from torchcaps.papers import RECIPES
from torchcaps.recipe import to_plain
from torchcaps.results import pack

PICTURES, PAIRS = "smoke/capsnet-plain", "smoke/capsnet-pairs"


def result_of(name, said, seed=0):
    run = RECIPES[name].make()
    data = {"test": fingerprint(parts.part(run, "test", None, seed))}
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
    assert (found.what, found.n_sources) == ("pictures", n)


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
    # a ring: no two digits are in two pairs, as for two independent draws out of ten thousand
    sources = torch.stack([torch.arange(30), (torch.arange(30) + 1) % 30], dim=1) if n_each == 2 else torch.arange(60)[:, None] % 12
    by_source = torch.randn(30, generator=rng, dtype=torch.float64)
    values = by_source[sources].sum(1) + torch.randn(len(sources), generator=rng, dtype=torch.float64) / 4
    assert sd_of_mean(values, sources) == pytest.approx(brute_force(values, sources), rel=1e-12)


def test_pictures_shown_twice_make_nothing_surer(rng):
    values, each = torch.randn(50, generator=rng, dtype=torch.float64), torch.arange(50)[:, None]
    assert sd_of_mean(values.repeat(4), each.repeat(4, 1)) == pytest.approx(sd_of_mean(values, each), rel=1e-12)


def test_sd_is_what_other_draws_of_the_digits_do(rng):
    # values that belong to digits, each digit in several pairs: the mean of draw after draw varies by about what one draw says
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
    with pytest.raises(ValueError, match="test of the two are other data"):
        compare(first, other_seed, None)
    elsewhere = {**first, "predictions": {"validation": pack(labels)}, "data": {"validation": "0"}}
    with pytest.raises(ValueError, match="the first was judged on test, the second on validation"):
        compare(first, elsewhere, None)
    changed = [{**first, "data": {"test": "0"}} for _ in range(2)]
    with pytest.raises(ValueError, match="is not what the results were made on"):
        compare(*changed, None)


def test_warped_digits_belong_together():
    run = RECIPES["sabour2017/choose-like-paper"].make()
    found = sources_of(run, "affnist-like", load("generated-16", "test")._replace(labels=torch.zeros(20_000, dtype=torch.long)), None)
    assert isinstance(found, Sources) and found.what == "digits"
    assert found.of[:, 0].tolist() == [*range(10_000)] * 2
