"""Statistics of latent capsules, computed by hand."""

import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.data.batches import in_order
from torchcaps.models import SparseCaps, StackedCaps, SupervisedCaps
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.latents import by_rank, latent_numbers, rank_frequency

CPU = torch.device("cpu")
SMALL = {"channels": 4, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "hidden": (8, 8)}


def pictures(rng, n: int = 7) -> Labelled:
    return Labelled(torch.randint(0, 256, (n, 1, 12, 12), generator=rng).to(torch.uint8), torch.arange(n) % 3)


def test_by_rank_each_picture_counts_alike():
    """Shares (1, 0.5) and (1, 0.2), however large the numbers are."""
    torch.testing.assert_close(by_rank(torch.tensor([[2.0, 1.0], [20.0, 100.0]])), torch.tensor([1.0, 0.35]).double())


def test_rank_frequencies_are_shares_of_pictures_and_of_capsules():
    found = rank_frequency(torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [0, 1, 2]]))
    assert found.tolist() == [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]


def test_winners_are_the_boosted_ones_and_nothing_is_counted(rng):
    model, data = SparseCaps((1, 12, 12), n_latent=12, **SMALL), pictures(rng)
    model.mask.boost[3] = 50.0
    told = latent_numbers(model, in_order(data, 4, CPU))
    assert told["winning_frequency"]["3"] == told["winning_frequency_most"] == told["rank_frequency"]["3"]["0"] == 1
    assert told["winning_frequency_least"] == 0 and told["winning_frequency_without_boost"]["3"] < 1
    assert told["relative_support_8"] == told["relative_support"]["8"] < 1
    assert model.training and model.mask.n_batches == 0


def test_both_readings_of_support_are_told_and_the_network_s_own_decides(rng):
    data = pictures(rng)
    for groups in ("places", "runs"):
        model = SparseCaps((1, 12, 12), n_latent=12, support=groups, **SMALL)
        model.mask.frequency.copy_(torch.arange(12))
        told = latent_numbers(model, in_order(data, 4, CPU))
        support = {name: by_rank(part) for name, part in model.supports(data.images / 255).items()}
        assert {name: told[f"relative_support_8_{name}"] for name in support} == pytest.approx(
            {n: p[8].item() for n, p in support.items()}
        )
        assert told["relative_support_8"] == told[f"relative_support_8_{groups}"]
        assert told["relative_support_8_places"] != told["relative_support_8_runs"]
        assert told["winning_frequency_in_training"]["11"] == 11


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_a_model_of_several_layers_tells_of_each(routing, rng):
    model, data = StackedCaps((1, 12, 12), routing=routing, n_latent=4, d_latent=8, n_layers=2, **SMALL), pictures(rng)
    if routing == "em":
        torch.nn.init.normal_(model.levels[0].beta_use)  # they start at zero, and then all scores are equal
    told = latent_numbers(model, in_order(data, 4, CPU))
    assert list(told["layers"]) == ["1", "2"]
    assert told["layer_2_activity_middle"] == told["layers"]["2"]["relative_activity"]["2"]
    assert told["layers"]["2"]["relative_support"] == told["relative_support"]
    assert told["layers"]["1"]["relative_activity"]["0"] == 1 > told["layers"]["1"]["relative_activity"]["3"]


def test_a_supervised_model_tells_its_support_and_a_plain_capsnet_nothing(rng):
    model, data = SupervisedCaps((1, 12, 12), 3, **SMALL), pictures(rng)
    assert set(Classify().extras(model, data, CPU, ())["relative_support"]) == {"0", "1", "2"}
    assert Classify().extras(torch.nn.Linear(1, 1), data, CPU, ()) == {}
