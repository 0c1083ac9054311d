"""Input that every model refuses: each message says what was wanted, what came and what to do."""

import re

import pytest
import torch

from torchcaps.models import (
    MODELS,
    SENTENCE_MODELS,
    CapsNet,
    CapsuleHead,
    EfficientCapsNet,
    InvertedCapsNet,
    MatrixCapsNet,
    PooledNet,
    RoutingNet,
)

EVERY = MODELS | SENTENCE_MODELS
IMAGE = (1, 28, 28)


def built(name: str) -> torch.nn.Module:
    """On no device: large networks take no time, and nothing is computed before a refusal."""
    with torch.device("meta"):
        return MODELS[name]((1, 96, 96) if name == "em-capsnet" else IMAGE, 10)


def refuses(call, *parts: str) -> None:
    with pytest.raises(ValueError, match=".*".join(map(re.escape, parts))):
        call()


def test_all_models_are_found():
    assert len(MODELS) >= 9 and len(SENTENCE_MODELS) >= 2


@pytest.mark.parametrize("n_classes", [0, -3, 2.5, None])
@pytest.mark.parametrize("name", EVERY)
def test_a_number_of_classes_is_at_least_one(name, n_classes):
    who = EVERY[name].__name__
    wanted = f"{who}: n_classes must be a whole number of at least 1, got {n_classes}"
    refuses(lambda: EVERY[name](n_classes=n_classes), wanted)


@pytest.mark.parametrize(
    "image, hint", [((28, 28), "(1, 28, 28) for grey images"), (28, "(1, 28, 28)"), ((0, 28, 28), "(1, 28, 28)")]
)
@pytest.mark.parametrize("name", MODELS)
def test_an_image_has_channels_height_and_width(name, image, hint):
    who = MODELS[name].__name__
    refuses(lambda: MODELS[name](image, 10), f"{who}: image must be (channels, height, width), got {image}; give", hint)


@pytest.mark.parametrize(
    "model, name, size, wanted",
    [
        (EfficientCapsNet, "channels", (32, 64), "4 whole numbers"),
        (EfficientCapsNet, "d_primary", 0, "a whole number"),
        (MatrixCapsNet, "n_types", (8, 8), "3 whole numbers"),
        (MatrixCapsNet, "n_types", (8, 0, 8), "3 whole numbers"),
        (MatrixCapsNet, "n_iters", 0, "a whole number"),
        (InvertedCapsNet, "channels", (16,), "2 whole numbers"),
        (InvertedCapsNet, "n_types", 0, "a whole number"),
        (RoutingNet, "channels", 0, "a whole number"),
        (PooledNet, "n_features", 0, "a whole number"),
    ],
)
def test_sizes_are_whole_numbers_of_at_least_one(model, name, size, wanted):
    refuses(lambda: model(**{name: size}), f"{model.__name__}: {name} must be {wanted} of at least 1, got {size}")


def test_layers_on_a_grid_are_none_or_more():
    refuses(lambda: InvertedCapsNet(n_conv=-1), "InvertedCapsNet: n_conv must be 0 or more", "got -1")


def test_a_head_on_a_transformer_refuses_no_classes_too():
    refuses(lambda: CapsuleHead(torch.nn.Linear(1, 1), 0), "CapsuleHead: n_classes must be", "got 0")


@pytest.mark.parametrize(
    "dtype, hint",
    [
        (torch.uint8, "give images.float() / 255"),
        (torch.float16, "give images.to(torch.float32)"),
        (torch.float64, "give images.to(torch.float32)"),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_images_have_the_dtype_of_the_weights(name, dtype, hint):
    model = built(name)
    images = torch.zeros(2, *((1, 96, 96) if name == "em-capsnet" else IMAGE), dtype=dtype, device="meta")
    who = type(model).__name__
    refuses(lambda: model(images), f"{who} expects images of torch.float32, as its weights are, got {dtype}; ", hint)


@pytest.mark.parametrize(
    "shape, hint",
    [
        ((2, 3, 28, 28), "build {who}((3, 28, 28), ...)"),
        ((2, 28, 28, 1), "channels come first: images.permute(0, 3, 1, 2)"),
        ((28, 28), "give a batch of images"),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_images_of_another_shape_are_refused_with_a_way_out(name, shape, hint):
    model = built(name)
    who = type(model).__name__
    images = torch.zeros(shape, device="meta")
    refuses(lambda: model(images), f"{who} expects images [b, 1, ", f"got {list(shape)}; ", hint.format(who=who))


def test_a_missing_axis_is_named():
    model = built("capsnet")
    refuses(lambda: model(torch.zeros(1, 28, 28, device="meta")), "add the batch axis: images.unsqueeze(0)")
    refuses(lambda: model(torch.zeros(5, 28, 28, device="meta")), "add the channel axis: images.unsqueeze(1)")


def test_a_missing_batch_axis_is_named_where_any_size_will_do():
    refuses(lambda: built("em-capsnet")(torch.zeros(1, 64, 80, device="meta")), "images.unsqueeze(0)")


@pytest.mark.parametrize("image, first", [((28, 28, 1), "(1, 28, 28)"), ((240, 320, 3), "(3, 240, 320)")])
@pytest.mark.parametrize("name", MODELS)
def test_channels_come_first(name, image, first):
    refuses(lambda: MODELS[name](image, 10), f"got {image}; channels come first: give {first}")


@pytest.mark.parametrize("name", MODELS)
def test_an_array_is_no_tensor(name):
    images = torch.zeros(2, 1, 28, 28).numpy()
    refuses(lambda: built(name)(images), "expects images as a torch.Tensor, got numpy.ndarray", "torch.from_numpy(")


@pytest.mark.parametrize("name", SENTENCE_MODELS)
def test_an_array_of_embeddings_is_no_tensor(name):
    embeddings = torch.zeros(2, 4, 2, 8).numpy()
    refuses(lambda: SENTENCE_MODELS[name](2, 8, 3)(embeddings), "expects embeddings as a torch.Tensor", "numpy.ndarray")


def test_sentences_of_another_dtype_are_refused():
    model = SENTENCE_MODELS["pooled-sentences"](2, 8, 3)
    refuses(
        lambda: model(torch.zeros(2, 4, 2, 8).half()),
        "PooledSentences expects embeddings of torch.float32",
        "got torch.float16",
    )
    model = SENTENCE_MODELS["em-sentences"](2, 8, 3, depth=False)
    refuses(
        lambda: model(torch.zeros(2, 4, 2, 8).half()),
        "EMSentenceNet expects embeddings of torch.float32",
        "got torch.float16",
    )


def test_autocast_and_a_converted_model_take_other_dtypes():
    small = {"channels": 4, "kernel": 3, "n_types": 2, "primary_kernel": 3, "reconstruction": False}
    model = CapsNet((1, 8, 8), 2, **small)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.rand(2, 1, 8, 8).bfloat16()).activity.isfinite().all()
    assert model.double()(torch.rand(2, 1, 8, 8).double()).activity.dtype == torch.float64
