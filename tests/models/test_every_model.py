"""Every model of capsules: one capsule per class, files, torch.compile, export, low precision."""

import io

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules
from torchcaps.models import (
    MODELS,
    CapsNet,
    DeepCapsNet,
    EfficientCapsNet,
    EMCapsNet,
    InvertedCapsNet,
    LCapsNet,
    MatrixCapsNet,
    RoutingNet,
    SparseCaps,
    StackedCaps,
    SupervisedCaps,
)

SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "d_class": 6, "hidden": (16, 8)}
SMALL_NET = {name: size for name, size in SMALL.items() if name != "d_class"}
SMALL_LADDER = {name: size for name, size in SMALL_NET.items() if name != "hidden"}
# how to build a small one of every model, for images of 1x12x12, or `LARGER` ones, and three classes
REGISTRY = {
    "capsnet": lambda **options: CapsNet((1, 12, 12), 3, **SMALL | options),
    "em-capsnet": lambda reconstruction=None: EMCapsNet(
        (1, 12, 12), 3, channels=8, strides=(1, 2), n_types=2, n_parts=4
    ).eval(),
    "lcapsnet": lambda reconstruction=None: LCapsNet((1, 12, 12), 3, n_kept=4, d_class=6, **SMALL_LADDER),
    "sparsecaps": lambda reconstruction=None: SparseCaps((1, 12, 12), n_latent=3, d_latent=6, **SMALL_NET).eval(),
    "supcaps": lambda **options: SupervisedCaps((1, 12, 12), 3, **SMALL | options),
    "deep-capsnet": lambda **options: DeepCapsNet((1, 12, 12), 3, n_hidden=4, **SMALL | options),
    "routing-net": lambda reconstruction=None: RoutingNet((1, 12, 12), 3, channels=8, n_types=2, n_parts=4).eval(),
    "stackedcaps": lambda reconstruction=None: StackedCaps(
        (1, 12, 12), n_latent=3, d_latent=6, n_layers=2, **SMALL_NET
    ).eval(),
    # soft assignments: the paper's turn roundings of bfloat16 into other assignments
    "matrix-capsnet": lambda reconstruction=None: MatrixCapsNet(
        (1, 17, 17), 3, channels=8, n_types=(2, 3, 2), density_power=0.1
    ),
    "efficient-capsnet": lambda reconstruction=True: EfficientCapsNet(
        (1, 12, 12), 3, channels=(8, 8, 8, 16), d_class=6, hidden=(16, 8), reconstruction=reconstruction
    ).eval(),
    "inverted-capsnet": lambda reconstruction=None: InvertedCapsNet(
        (1, 12, 12), 3, channels=(4, 8), n_types=3, n_conv=1
    ).eval(),
}
LARGER = {"matrix-capsnet": 17}  # the paper's strides leave nothing of less
ELSEWHERE = {
    "baseline",
    "pooled-net",
    "experts",
    "rbm",
}  # no capsules for classes; the last two learn part by part, most of it without gradients


def images_for(name: str, n: int = 2, rng: torch.Generator | None = None) -> torch.Tensor:
    size = LARGER.get(name, 12)
    return torch.rand(n, 1, size, size, generator=rng)


def test_every_model_is_in_the_table():
    assert set(REGISTRY) == set(MODELS) - ELSEWHERE, "give a new model of capsules its line in REGISTRY"
    assert all(issubclass(model, nn.Module) for model in MODELS.values())


@pytest.mark.parametrize("name", REGISTRY)
def test_every_model_makes_one_capsule_per_class(name):
    capsules = REGISTRY[name]()(images_for(name))
    assert isinstance(capsules, Capsules)
    assert capsules.poses.shape[:2] == capsules.activity.shape == (2, 3)
    assert capsules.activity.isfinite().all()


@pytest.mark.parametrize("name", REGISTRY)
def test_every_model_comes_back_from_a_file(name, rng):
    images, file = images_for(name, rng=rng), io.BytesIO()
    model, other = REGISTRY[name](), REGISTRY[name]()
    assert not torch.equal(model(images).poses, other(images).poses)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(model(images).poses, other(images).poses)


def some(*quick: str) -> list:
    """These of the models at once; the others take seconds each."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in REGISTRY]


@pytest.mark.parametrize("name", some("capsnet"))  # EM: tests/ops; ladders and masks: test_lcapsnet, test_sparsecaps
def test_every_model_compiles_whole(name, fresh_dynamo, rng):
    model, images = REGISTRY[name](), images_for(name, rng=rng)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))
    parameters = [p for name, p in model.named_parameters() if "decoder" not in name]
    results = [torch.autograd.grad(f(images).activity.square().sum(), parameters) for f in (compiled, model)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", some("capsnet"))  # the others as files of ONNX: integrations/test_export
def test_every_model_exports_with_a_free_batch_axis(name, rng):
    class Poses(nn.Module):
        """A saved program returns plain tensors: it must load where torchcaps is not installed."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, images):
            return tuple(self.model(images))

    model, file = Poses(REGISTRY[name](reconstruction=False)), io.BytesIO()
    program = torch.export.export(model, (images_for(name),), dynamic_shapes=({0: torch.export.Dim("b")},))
    torch.export.save(program, file)
    file.seek(0)
    images = images_for(name, 5, rng)
    torch.testing.assert_close(torch.export.load(file).module()(images), model(images))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_model_runs_under_autocast_and_in_bfloat16(name, rng):
    model, images = REGISTRY[name](), images_for(name, rng=rng)
    plain = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(images)
    assert mixed.poses.dtype == mixed.activity.dtype == torch.float32
    size = max(1.0, plain.poses.square().mean().sqrt().item())
    torch.testing.assert_close(mixed.poses, plain.poses, rtol=0, atol=0.03 * size)
    half = model.bfloat16()(images.bfloat16())
    assert half.poses.dtype == torch.bfloat16
    torch.testing.assert_close(half.poses.float(), plain.poses, rtol=0, atol=0.1 * size)
