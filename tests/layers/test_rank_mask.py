"""The mask and its statistics: they move in training only, are part of the state, and agree on all processes of a
run.
"""

import io
import os
import re

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from torchcaps.layers import RankMask
from torchcaps.models import SparseCaps
from torchcaps.ops import boosted_ranks, rank_mask, reconstruction_loss

SMALL = {"channels": 4, "kernel": 3, "n_types": 2, "primary_kernel": 3, "n_latent": 4, "hidden": (8, 8)}
RULE = {"frequencies": (0.2, 0.4), "boost_every": 2}
STEERED = {"gain": 0.1}


def state(layer: nn.Module) -> dict[str, list | float]:
    return {name: buffer.tolist() for name, buffer in layer.named_buffers()}


def biased_support(n: int, rng: torch.Generator) -> torch.Tensor:
    """Any of the capsules may have the most, but for the last, whose support is always half that of the others."""
    support = 1 + 0.1 * torch.rand(n, 4, generator=rng)
    support[:, 3] /= 2
    return support


def test_the_mask_is_that_of_the_boosted_ranks(rng):
    layer, support = RankMask(4, sharpness=2.0).eval(), torch.rand(3, 5, 4, generator=rng)
    layer.boost.copy_(torch.tensor([1.0, 1.5, 1.0, 2.0]))
    assert torch.equal(layer(support), rank_mask(boosted_ranks(support, layer.boost), 2.0))
    assert torch.equal(layer.mask(support), layer(support))


def test_a_batch_is_counted_after_it_was_masked():
    """The boost that a batch earns is for the next one."""
    layer, support = RankMask(2, boost_every=1, boost_step=1.0, frequencies=(0.4, 0.6)), torch.tensor([[3.0, 2.0]])
    assert layer(support).tolist() == [[1.0, 0.0]]
    assert state(layer) == {"frequency": [1.0, 0.0], "boost": [1.0, 2.0], "n_batches": 1}
    assert layer(support).tolist() == [[0.0, 1.0]]


def test_statistics_stand_still_in_evaluation_and_when_only_looked_at(rng):
    layer = RankMask(4, **RULE)
    for _ in range(3):
        layer(biased_support(8, rng))
    before = state(layer)
    layer.mask(biased_support(8, rng))
    layer.eval()
    layer(biased_support(8, rng))
    assert state(layer) == before
    layer.train()
    layer(biased_support(8, rng))
    assert state(layer) != before


@pytest.mark.parametrize("rule", [RULE, STEERED])
def test_statistics_come_back_from_a_file_and_go_on(rule, rng):
    whole, file = RankMask(4, **rule), io.BytesIO()
    batches = [biased_support(8, rng) for _ in range(7)]
    for support in batches[:3]:
        whole(support)
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = RankMask(4, **rule)
    resumed.load_state_dict(torch.load(file))
    assert state(resumed) == state(whole)
    for support in batches[3:]:
        assert torch.equal(whole(support), resumed(support))
    assert state(resumed) == state(whole)


def test_a_capsule_that_never_wins_is_boosted_until_it_does(rng):
    layer, last = RankMask(4, boost_every=5, decay=0.9, frequencies=(0.1, 0.4)), []
    for _ in range(200):
        last.append(layer(biased_support(16, rng))[:, 3] == 1)
    early, late = (torch.stack(part).double().mean().item() for part in (last[:20], last[-100:]))
    assert early == 0 and late > 0.08
    assert layer.boost[3] > 1.8 > layer.boost[:3].max()


def test_steered_it_wins_its_share(rng):
    """It comes to win as often as the others, and evaluation leaves the boosts alone."""
    layer, last = RankMask(4, **STEERED), []
    for _ in range(400):
        last.append(layer(biased_support(16, rng))[:, 3] == 1)
    early, late = (torch.stack(part).double().mean().item() for part in (last[:10], last[-100:]))
    assert early == 0 and 0.2 < late < 0.3
    assert layer.boost[3] > 1.8 > layer.boost[:3].max() and layer.boost.min() == 1
    before = state(layer)
    layer.eval()(biased_support(16, rng))
    assert state(layer) == before


def test_without_boosting_it_never_wins(rng):
    layer = RankMask(4, boost_every=5, boost_step=0.0, frequencies=(0.1, 0.4))
    masks = torch.cat([layer(biased_support(16, rng)) for _ in range(200)])
    assert not (masks[:, 3] == 1).any()
    assert layer.frequency[3] == 0 and (layer.boost == 1).all()


def test_support_and_statistics_get_no_gradient(rng):
    support = torch.rand(3, 4, generator=rng, requires_grad=True)
    layer = RankMask(4)
    assert not layer(support).requires_grad
    assert not any(buffer.requires_grad for buffer in layer.buffers())


@pytest.mark.parametrize(("mode", "rule"), [("train", RULE), ("eval", RULE), ("train", STEERED)])
def test_it_compiles_whole_with_its_statistics(mode, rule, fresh_dynamo, rng):
    eager, compiled = RankMask(4, **rule).train(mode == "train"), RankMask(4, **rule).train(mode == "train")
    program = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    addresses = [buffer.data_ptr() for buffer in compiled.buffers()]
    for _ in range(5):
        support = biased_support(8, rng)
        assert torch.equal(program(support), eager(support))
    assert state(compiled) == state(eager)
    assert (eager.n_batches == 5) == (mode == "train")
    assert [buffer.data_ptr() for buffer in compiled.buffers()] == addresses  # a captured step would write there


@pytest.mark.parametrize("shape", [(3,), (2, 5), (4, 1), ()])
def test_other_numbers_of_capsules_are_refused(shape):
    with pytest.raises(
        ValueError, match=re.escape(f"RankMask expects the support of 4 capsules, [..., 4]; got {list(shape)}")
    ):
        RankMask(4)(torch.ones(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequencies": (0.2, 0.1)}, r"frequencies are \(at least, at most\) within 0 and 1; got \(0.2, 0.1\)"),
        ({"frequencies": (-0.1, 0.1)}, "within 0 and 1"),
        ({"frequencies": (4, 10)}, "within 0 and 1"),
        ({"boost_every": 0}, "1 or more; got boost_every=0"),
        ({"gain": -0.1}, "would boost those that win most; give 0, for steps, or more; got -0.1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RankMask(4, **options)


def test_it_prints_what_it_is():
    assert repr(RankMask(16)) == "RankMask(16, sharpness=12, frequencies=0.04 to 0.1, boost=0.1 every 50)"
    assert repr(RankMask(16, gain=0.02)) == "RankMask(16, sharpness=12, gain=0.02)"


def test_a_model_hands_its_rule_to_its_mask():
    rules = {"boost_step": 0.02}, {"boost_gain": 0.02}
    stepped, steered = (SparseCaps((1, 8, 8), **SMALL, **rule).mask.rule for rule in rules)
    assert (stepped["step"], stepped["gain"]) == (0.02, 0)
    assert (steered["step"], steered["gain"]) == (0.1, 0.02)


# several processes


def learn(model: nn.Module, images: torch.Tensor, n_steps: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    for _ in range(n_steps):
        optimiser.zero_grad()
        # a wrapped model must be called itself; the decoder stands behind it
        reconstruction_loss(inner.reconstruct(model(images).poses), images).mean().backward()
        optimiser.step()


def one_of_two(rank: int, store: str, images: torch.Tensor, out: str, compiled: bool) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    own = images.chunk(2)[rank]
    layers = RankMask(4, **RULE), RankMask(4, **STEERED)
    for layer in layers:
        program = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
        for part in own.flatten(1)[:, :4].split(2):
            program(part)
    torch.manual_seed(0)
    model = SparseCaps((1, 8, 8), **SMALL, **RULE)
    learn(DistributedDataParallel(model, find_unused_parameters=False), own, 4)
    torch.save((*map(state, layers), state(model.mask)), f"{out}/{rank}")
    distributed.destroy_process_group()
    # The wrapper keeps the group's threads alive, and one that lets go of a tensor while Python ends aborts the
    # process.
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_count_as_one_would(compiled, tmp_path, rng):
    """Each sees half of every batch; their statistics are equal, and those of one process that sees all of it."""
    images = torch.rand(12, 1, 8, 8, generator=rng)
    multiprocessing.spawn(one_of_two, (str(tmp_path / "store"), images, str(tmp_path), compiled), nprocs=2)
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert first == second
    layers = RankMask(4, **RULE), RankMask(4, **STEERED)
    for parts in zip(*(half.flatten(1)[:, :4].split(2) for half in images.chunk(2)), strict=True):
        for layer in layers:
            layer(torch.cat(parts))
    torch.manual_seed(0)
    model = SparseCaps((1, 8, 8), **SMALL, **RULE)
    learn(model, images, 4)
    assert first == (*map(state, layers), state(model.mask))
    for rule, both in zip((RULE, STEERED), first, strict=False):
        alone = RankMask(4, **rule)
        for part in images.chunk(2)[0].flatten(1)[:, :4].split(2):
            alone(part)
        assert both["boost"] != alone.boost.tolist()  # half of the batch alone would be counted otherwise
