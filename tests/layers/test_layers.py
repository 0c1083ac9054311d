import io
import re

import pytest
import torch
from torch import nn

import torchcaps.layers
from torchcaps.layers import (
    CapsuleLayer,
    Capsules,
    ConvMatrixCapsules,
    ConvRoutedCapsules,
    Decoder,
    EMCapsules,
    InvertedCapsules,
    LazyRoutedCapsules,
    MatrixCapsules,
    PrimaryCapsules,
    RoutedCapsules,
    SelfAttentionCapsules,
    SelfRoutedCapsules,
)
from torchcaps.layers.autoencoder import ConvAutoencoder
from torchcaps.layers.code_nets import CodeNets
from torchcaps.layers.experts import ExpertCapsules
from torchcaps.layers.ladder import LadderCapsules
from torchcaps.ops import margin_loss

LAYERS = {
    "PrimaryCapsules": (lambda: PrimaryCapsules(3, n_types=2, d_out=4, kernel=3), (torch.Size([2, 3, 7, 9]),)),
    "RoutedCapsules": (lambda: RoutedCapsules(6, 3, 4, 5, learn_prior=True), (torch.Size([2, 6, 4]),)),
    "ConvRoutedCapsules": (lambda: ConvRoutedCapsules((3, 3), 2, 3, 4, 5, kernel=2), (torch.Size([2, 18, 4]),)),
    "EMCapsules": (lambda: EMCapsules(6, 3, 2, 4, 5), (torch.Size([2, 6, 2, 4]),)),
    "MatrixCapsules": (lambda: MatrixCapsules(6, 3, 2, 4, 5), (torch.Size([2, 6, 2, 4]),)),
    "ConvMatrixCapsules": (lambda: ConvMatrixCapsules((3, 3), 2, 3, 2, 4, 5, kernel=2), (torch.Size([2, 18, 2, 4]),)),
    "SelfAttentionCapsules": (lambda: SelfAttentionCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "SelfRoutedCapsules": (
        lambda: SelfRoutedCapsules(6, 3, 4, 5, bias=True, batch_norm=True),
        (torch.Size([2, 6, 4]),),
    ),
    "InvertedCapsules": (lambda: InvertedCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "LazyRoutedCapsules": (lambda: LazyRoutedCapsules(6, 3, 4, 5, normalise=False), (torch.Size([2, 6, 4]),)),
    "CapsuleLayer": (lambda: CapsuleLayer(6, 3, 4, 8, "em"), (torch.Size([2, 6, 4]),)),
    "CodeNets": (lambda: CodeNets(6, (8, 5), 3, n_active=2), (torch.Size([2, 6]),)),
    "LadderCapsules": (lambda: LadderCapsules(6, 3, 4, 5, n_kept=2), (torch.Size([2, 6, 4]),)),
    "ConvAutoencoder": (
        lambda: ConvAutoencoder((1, 8, 9), channels=3, kernel=3, dropped=0.0),
        (torch.Size([2, 1, 8, 9]),),
    ),
    "ExpertCapsules": (lambda: ExpertCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "Decoder": (lambda: Decoder(3, 4, (1, 5, 6), hidden=(8, 7)), (torch.Size([2, 3, 4]), torch.Size([2, 3]))),
}


WITHOUT_WEIGHTS = {"RankMask"}  # nothing to draw and nothing to differentiate: tests/layers/test_rank_mask.py


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [part for part in result if part is not None]


def test_every_layer_is_in_the_table():
    public = {name: getattr(torchcaps.layers, name) for name in torchcaps.layers.__all__}
    found = {name for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, nn.Module)}
    assert found == set(LAYERS) | WITHOUT_WEIGHTS, "give a new layer its line in LAYERS"


@pytest.mark.parametrize("name", LAYERS)
def test_state_comes_back_from_a_file(name, rng):
    make, shapes = LAYERS[name]
    inputs = [torch.rand(shape, generator=rng) for shape in shapes]
    layer, other, file = make(), make(), io.BytesIO()
    assert not torch.equal(tensors(layer(*inputs))[0], tensors(other(*inputs))[0])
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(tensors(layer(*inputs))[0], tensors(other(*inputs))[0])


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_reaches_every_parameter(name, rng):
    make, shapes = LAYERS[name]
    layer = make()
    found = tensors(layer(*(torch.rand(shape, generator=rng) for shape in shapes)))[:2]  # poses, and activity if any
    sum(part.square().sum() for part in found).backward()
    assert {n for n, p in layer.named_parameters() if p.grad is None or not p.grad.any()} == set()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_float64_runs_through(name, rng):
    make, shapes = LAYERS[name]
    result = make().double()(*(torch.rand(shape, generator=rng, dtype=torch.float64) for shape in shapes))
    assert all(x.dtype == torch.float64 for x in tensors(result))


def test_capsules_of_poses_have_their_lengths_as_activity():
    capsules = Capsules.of(torch.tensor([[[3.0, 4.0], [0.0, 0.5]]]))
    torch.testing.assert_close(capsules.activity, torch.tensor([[5.0, 0.5]]))
    assert Capsules.of(capsules) is capsules


DENSE = [RoutedCapsules, EMCapsules, MatrixCapsules, SelfAttentionCapsules, SelfRoutedCapsules, InvertedCapsules]


DENSE += [LazyRoutedCapsules, LadderCapsules, ExpertCapsules, CapsuleLayer]


LOCAL = [ConvRoutedCapsules, ConvMatrixCapsules]


@pytest.mark.parametrize("wrong", [0, -2, 2.5])
@pytest.mark.parametrize("name", ["n_in", "n_out", "d_in", "d_out"])
@pytest.mark.parametrize("layer", DENSE)
def test_a_layer_has_at_least_one_capsule_and_dimension(layer, name, wrong):
    sizes = {"n_in": 6, "n_out": 3, "d_in": 4, "d_out": 4} | {name: wrong}
    rows = {"rows": 2} if layer in (EMCapsules, MatrixCapsules) else {}
    message = f"{layer.__name__}: {name} must be a whole number of at least 1, got {wrong}"
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**sizes, **rows)


ITERATED = [RoutedCapsules, EMCapsules, MatrixCapsules, InvertedCapsules, LazyRoutedCapsules]


@pytest.mark.parametrize("layer", ITERATED)
def test_routing_has_at_least_one_iteration(layer):
    rows = {"rows": 2} if layer in (EMCapsules, MatrixCapsules) else {}
    with pytest.raises(ValueError, match=f"{layer.__name__}: n_iters must be a whole number of at least 1, got 0"):
        layer(n_in=6, n_out=3, d_in=4, d_out=4, n_iters=0, **rows)


@pytest.mark.parametrize("layer", LOCAL)
def test_local_routing_has_at_least_one_iteration(layer):
    with pytest.raises(ValueError, match=f"{layer.__name__}: n_iters must be a whole number of at least 1, got 0"):
        layer((6, 6), 8, 8, d_in=4, d_out=4, n_iters=0)


@pytest.mark.parametrize("grid, hint", [(6, "(6, 6)"), ((6,), "(6, 6)"), ((0, 6), "(6, 6)"), ((2, 3, 4), "(6, 6)")])
@pytest.mark.parametrize("layer", LOCAL)
def test_a_grid_is_rows_and_columns(layer, grid, hint):
    message = f"{layer.__name__}: grid must be (rows, columns) of at least 1, got {grid}; give such as {hint}"
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(grid, *((8, 8) if layer is ConvMatrixCapsules else (8, 8, 8, 8)))
    with pytest.raises(ValueError, match="n_out_types must be a whole number of at least 1, got 0"):
        layer((6, 6), 8, 0, d_in=4, d_out=4)


def test_layers_print_what_they_are():
    assert repr(PrimaryCapsules(3, 2, 4)) == "PrimaryCapsules(3, n_types=2, d_out=4, kernel=9, stride=2, share=1)"
    assert (
        repr(RoutedCapsules(6, 3, 4, 5, couplings="leaky")) == "RoutedCapsules(6x4 -> 3x5, n_iters=3, couplings=leaky)"
    )
    assert (
        repr(ConvRoutedCapsules((3, 3), 2, 3, 4, 5, kernel=2))
        == "ConvRoutedCapsules(18x4 -> 12x5, out_grid=(2, 2), n_iters=3)"
    )


def bars(n, rng):
    """Images of 12x12 with one bar, lying or standing, anywhere: which is it?"""
    labels, places = torch.arange(n) % 2, torch.randint(2, 10, (n,), generator=rng)
    pictures = 0.1 * torch.rand(n, 1, 12, 12, generator=rng)
    for picture, label, place in zip(pictures, labels, places, strict=True):
        picture[0, place] += 1 - label.float()
        picture[0, :, place] += label.float()
    return pictures, torch.nn.functional.one_hot(labels, 2).float()


def test_three_capsule_layers_on_top_of_each_other_learn(rng):
    model = nn.Sequential(
        PrimaryCapsules(1, n_types=4, d_out=4, kernel=5, stride=2),  # 4x4 places
        ConvRoutedCapsules((4, 4), 4, 3, 4, 6, kernel=3),  # 2x2 places
        RoutedCapsules(3 * 4, 2, 6, 8),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):  # batches of ten are too small to be split over threads
        pictures, present = bars(10, rng)
        loss = margin_loss(model(pictures).activity, present).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5]), losses
    pictures, present = bars(100, rng)
    assert (model(pictures).activity.argmax(-1) == present.argmax(-1)).float().mean() > 0.95
