"""`torchcaps bench predict` times every way to run a model, and only those that agree."""

import io
import re

import pytest
import torch
from rich.console import Console

from torchcaps.bench import predict
from torchcaps.cli.bench import _subject
from torchcaps.ops import convolution, convolve

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(predict, "BATCHES", (1, 3))


def printed(*names: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    predict.bench_predict([_subject(name, CPU) for name in names], CPU, 1, console)
    return console.file.getvalue()


@pytest.fixture
def eager_only(monkeypatch):
    monkeypatch.setattr(predict, "WAYS", {"cpu": ("eager",)})


def test_a_model_gets_a_time_for_every_batch(eager_only):
    text = printed("capsnet-digits")
    (row,) = [line for line in text.splitlines() if "capsnet-digits" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:2] == ["capsnet-digits", "eager"] and len(cells) == 6
    assert all(float(cell.replace(",", "")) > 0 for cell in cells[2:])


def test_a_way_that_predicts_otherwise_gets_no_time(eager_only, monkeypatch):
    wrong = lambda subject, *rest: lambda images: [1.01 * part for part in subject.module(images)]  # noqa: E731
    monkeypatch.setitem(predict._MAKERS, "eager", wrong)
    text = printed("capsnet-digits")
    assert "capsnet-digits eager batch 1: wrong: off by " in text and "batch 3:" not in text


class Doubled(torch.nn.Module):
    """Two outputs."""

    def forward(self, images):
        return [2 * images, images[:, :1].clone()]


@pytest.mark.parametrize("last", [torch.nan, torch.inf, 1.0])
def test_a_number_of_the_last_output_that_is_off_is_wrong(last):
    images, model = torch.rand(12, 3), Doubled()
    assert predict._why_wrong(model(images), model, images) == ""
    for image in (0, 11):  # the first is compared with float64, the last with eager execution
        found = model(images)
        found[1][image] = last
        words = {0: "from float64", 11: "from eager execution"}[image]
        assert re.match(f"wrong: off by (nan|inf|[0-9.e+-]+) {words}", predict._why_wrong(found, model, images))


@pytest.mark.parametrize("found", [torch.zeros(2, 3), torch.zeros(2)], ids=str)
def test_another_shape_is_wrong(found):
    images = torch.rand(2, 3)
    assert "expected [[2, 3], [2, 1]]" in predict._why_wrong([torch.zeros(2, 3), found], Doubled(), images)
    assert "expected [[2, 3], [2, 1]]" in predict._why_wrong([torch.zeros(2, 3)], Doubled(), images)


class Convolved(torch.nn.Module):
    """Sum of as many pixels as a kernel has, 1 each."""

    def __init__(self, op=torch.conv2d):
        super().__init__()
        self.op = op

    def forward(self, images):
        return [self.op(images, weight=images.new_ones(1, 1, 4, 4)).flatten(1)]


def test_numbers_of_tf32_have_ten_bits_behind_the_leading_one():
    step = 2.0**-10
    found = predict._to_tf32(torch.tensor([1 + step, 1 + 0.4 * step, 1 + step / 2, -3 - step, 0.0, 2**-100 * 1.3]))
    assert found[:-1].tolist() == [1 + step, 1.0, 1 + step, -3 - 2 * step, 0.0]
    assert abs(found[-1] / (2**-100 * 1.3) - 1) < step / 2


@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("op", [torch.conv2d, convolve], ids=["conv2d", "convolve"])
def test_where_convolutions_round_to_tf32_a_way_may_err_twice_as_much(op, patches, monkeypatch):
    """A pixel is 0.4 steps of TF32 beyond 1, a step is 1/1024, and every sum has 16 pixels.

    `convolve` on a stand-in for CUDA multiplies patches.
    """
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: patches)
    step = 2.0**-10
    images, model, error = torch.full((2, 1, 4, 4), 1 + 0.4 * step), Convolved(op), 16 * 0.4 * step
    right = model(images)[0]
    assert "allowed 1.0e-03" in predict._why_wrong([right - error], model, images)
    monkeypatch.setattr(predict, "_may_round", lambda device: True)
    assert predict._why_wrong([right - 1.9 * error], model, images) == ""
    assert "allowed 1.3e-02" in predict._why_wrong([right - 2.1 * error], model, images)
    large = 64 * images  # rounds 64 times as far
    assert "allowed 2.0e-02" in predict._why_wrong([model(large)[0] - 64 * error], model, large)


@pytest.mark.parametrize("op", [torch.conv2d, torch.nn.functional.linear], ids=["conv2d", "linear"])
@pytest.mark.parametrize("n_positional", [0, 1, 2])
def test_images_and_weights_of_convolutions_alone_are_rounded(op, n_positional):
    """By whatever argument they come."""
    off = 1 + 0.4 * 2.0**-10
    shape = (2, 1, 4, 4) if op is torch.conv2d else (2, 4)
    given = {"input": torch.full(shape, off), "weight": torch.full(shape, off), "bias": torch.full((2,), off)}
    positional, keywords = [*given.values()][:n_positional], dict([*given.items()][n_positional:])
    with predict._ConvolutionsInTF32():
        found = op(*positional, **keywords)
    rounded = given | ({name: torch.ones(shape) for name in ("input", "weight")} if op is torch.conv2d else {})
    assert torch.equal(found, op(**rounded))


def test_eager_execution_is_no_measure(monkeypatch):
    """A model that errs in float32 itself, by more than convolutions make."""
    monkeypatch.setattr(predict, "_may_round", lambda device: True)
    images, wrong = torch.rand(2, 1, 4, 4), Convolved()
    wrong.register_forward_hook(lambda module, given, out: [out[0] + 0.5 * (out[0].dtype == torch.float32)])
    assert "off by 5.0e-01 from float64" in predict._why_wrong(wrong(images), wrong, images)


def test_a_way_that_cannot_be_made_says_why_and_an_error_of_a_model_is_one(eager_only, monkeypatch):
    def refuse(*args):
        raise ValueError("needs onnxruntime")

    monkeypatch.setitem(predict._MAKERS, "eager", refuse)
    assert "eager batch 1: needs onnxruntime" in printed("capsnet-digits")
    monkeypatch.setitem(predict._MAKERS, "eager", lambda *args: refuse)
    with pytest.raises(ValueError, match="needs onnxruntime"):
        printed("capsnet-digits")


def test_a_batch_that_would_take_too_long_is_left_out(eager_only, monkeypatch):
    monkeypatch.setattr(predict, "LONGEST_S", 0.0)
    assert re.search(
        r"capsnet-digits eager batch 3: left out: about \d+ s a call, by the smaller", printed("capsnet-digits")
    )


def test_processor_time_is_for_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ValueError, match=r"only on a CPU with one thread, got .*; set OMP_NUM_THREADS=1"):
        predict.bench_predict([], CPU, 1, Console(file=io.StringIO()), cpu_time=True)


@pytest.mark.slow
def test_onnx_runtime_agrees_and_is_timed():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    text = printed("capsnet-digits")
    (row,) = [line for line in text.splitlines() if "onnx " in line]
    assert "-" not in [cell.strip() for cell in row.split("│")]
