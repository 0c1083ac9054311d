"""Exported files answer as the model does, for any number of images; every model of the library can be exported."""

import json
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.data.augment import Crop, Standardise, as_seen
from torchcaps.integrations.export import (
    BATCHES,
    TOLERANCE,
    Plain,
    _differences,
    _kept,
    export_onnx,
    export_program,
    plan,
    to_onnx,
)
from torchcaps.layers import Capsules, Dynamic, SelfRouting
from torchcaps.models import MODELS, SENTENCE_MODELS, CapsNet
from torchcaps.papers import RECIPES
from torchcaps.train.recipe import Run

SMOKE = [name for name in RECIPES if name.startswith("smoke/") and "pairs" not in name and "mixup" not in name]
# the others take seconds each; an ONNX file is made of a program, so the capsules' program is tested by theirs
FAST_PROGRAM, FAST_ONNX = "smoke/baseline", "smoke/capsnet-plain"


def made(name: str) -> tuple[torch.nn.Module, Run]:
    run = RECIPES[name].make()
    return run.build().eval(), run


@pytest.fixture(scope="module")
def onnxruntime():
    for needed in ("onnx", "onnxscript"):
        pytest.importorskip(needed, reason="pip install 'torchcaps[export]'")
    return pytest.importorskip("onnxruntime", reason="pip install 'torchcaps[export]'")


def test_a_tuned_model_is_exported_by_what_it_tells_of_itself(tmp_path):
    model = torchcaps.load("capsnet-digits", n_classes=3)
    exported = export_program(model, model.about["run"], str(tmp_path / "net.pt2"))
    loaded = torch.export.load(exported.path).module()
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(loaded(images)[0], model(images).activity, rtol=0, atol=TOLERANCE)


def test_a_program_that_returns_capsules_can_be_saved(tmp_path):
    """By torch.export alone, from a user's own code."""
    model, images = CapsNet((1, 16, 16), 3, channels=4, kernel=5, n_types=2, primary_kernel=5), torch.rand(2, 1, 16, 16)
    torch.export.save(torch.export.export(model.eval(), (images,)), tmp_path / "net.pt2")
    said = torch.export.load(tmp_path / "net.pt2").module()(images)
    assert isinstance(said, Capsules)
    torch.testing.assert_close(said.poses, model(images).poses)


def test_every_model_of_the_library_is_among_these():
    assert {RECIPES[name].make().model for name in SMOKE} == {*MODELS, *SENTENCE_MODELS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == FAST_PROGRAM else pytest.mark.slow) for name in SMOKE]
)
def test_a_program_answers_as_the_model_does(name, tmp_path):
    model, run = made(name)
    exported = export_program(model, run, tmp_path / "net.pt2")
    assert exported.largest <= TOLERANCE and exported.n_pictures == sum(BATCHES)
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    inputs = plan(model, run).examples[-1]
    said = loaded(*inputs)
    assert said[0].shape[0] == BATCHES[-1]


@pytest.mark.parametrize("name", ["smoke/capsnet", "smoke/stackedcaps"])
def test_a_decoder_stays_behind_and_the_model_is_left_as_it_is(name):
    model, run = made(name)
    before = {key: tensor.clone() for key, tensor in model.train().state_dict().items()}
    exported = {key.removeprefix("model.") for key in plan(model, run).module.state_dict()}
    dropped = before.keys() - exported
    assert exported < before.keys() and dropped and all("decoder." in key for key in dropped)
    assert model.training and model.decoder is not None
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_model_that_cannot_be_copied_is_exported_as_it_is():
    model, run = made("smoke/baseline")
    model.kept = next(model.parameters()) * 2
    with pytest.raises(RuntimeError, match="deepcopy"):
        deepcopy(model)
    assert plan(model, run).module.model is model


def test_an_onnx_file_names_its_axes_and_classes_and_answers_as_the_model_does(tmp_path, onnxruntime):
    """One model; tests/peers has all of them."""
    model, run = made(FAST_ONNX)
    exported = export_onnx(model, run, tmp_path / "net.onnx", ("one", "two"))
    assert exported.largest <= TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    what = plan(model, run)
    assert [one.name for one in session.get_inputs()] == list(what.names)
    assert [one.name for one in session.get_outputs()] == list(what.outputs)
    assert {one.shape[0] for one in [*session.get_inputs(), *session.get_outputs()]} == {"batch"}
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["one", "two"]
    inputs = plan(model, run).examples[-1]
    said = session.run(None, {key: tensor.numpy() for key, tensor in zip(what.names, inputs, strict=True)})
    with torch.no_grad():
        off = _differences(what.module(*inputs), tuple(map(torch.from_numpy, said)))
    assert (off <= TOLERANCE).double().mean() >= (0.9 if what.ranks else 1)


@pytest.mark.slow
@pytest.mark.parametrize("routing", [Dynamic(batch_norm=True), SelfRouting(bias=True, batch_norm=True)])
def test_poses_are_normalised_by_running_statistics_in_onnx(tmp_path, onnxruntime, routing):
    run = RECIPES["smoke/routing-net"].make()
    run = replace(run, model_args=run.model_args | {"routing": routing})
    model = run.build()
    model.calibrate(torch.rand(16, *run.sizes()[0]))
    assert export_onnx(model.eval(), run, tmp_path / "net.onnx").largest <= TOLERANCE


def test_what_evaluation_does_to_a_picture_is_part_of_the_file():
    """Bytes through the library's own way, and the same images as numbers in 0..1 through the exported one."""
    augment = Crop(12), Standardise()
    pictures = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (seen,) = Plain(torch.nn.Identity(), augment)(pictures.float() / 255)
    torch.testing.assert_close(seen, as_seen(pictures, augment))
    assert seen.shape[-1] == 12


def test_a_file_that_differs_is_not_written(tmp_path):
    model, run = made("smoke/baseline")
    what = plan(model, run)

    def wrong(*inputs):
        (said,) = what.module(*inputs)
        said[0, 0] += 2 * TOLERANCE
        return (said,)

    with pytest.raises(ValueError, match=r"was not written: on 3 of 16 inputs .* by more than 0.0001"):
        _kept(tmp_path / "net", b"", what, wrong)
    assert not (tmp_path / "net").exists()
    with pytest.raises(ValueError, match="on 16 of 16 inputs"):
        _kept(tmp_path / "net", b"", what, lambda *inputs: (what.module(*inputs)[0] * float("nan"),))


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"onnx is not installed; pip install 'torchcaps\[export\]'"):
        export_onnx(*made("smoke/baseline"), tmp_path / "net.onnx")


@pytest.mark.parametrize("descending", [True, False])
def test_equal_numbers_keep_their_order_in_onnx(onnxruntime, rng, descending):
    """As in PyTorch's stable sort, by which a ladder orders the capsules that it keeps."""

    class Ordered(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return tuple(x.sort(dim=-1, descending=descending, stable=True))

    x = torch.randint(4, (5, 33), generator=rng).float()
    model = to_onnx(torch.export.export(Ordered(), (x,)), ["x"], ["values", "indices"])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for found, wanted in zip(session.run(None, {"x": x.numpy()}), Ordered()(x), strict=True):
        assert torch.equal(torch.from_numpy(found), wanted)
