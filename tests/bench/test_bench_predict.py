"""`torchcaps bench predict` times every way to run a model, and only those that agree."""

import io
import re

import pytest
import torch
from rich.console import Console

from torchcaps.bench import predict
from torchcaps.cli.bench import _subject

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


@pytest.mark.parametrize("last", [torch.tensor([[0.0], [torch.nan]]), torch.zeros(1, 1), torch.zeros(2)], ids=str)
def test_nan_in_the_last_output_and_another_shape_are_wrong(last):
    good = torch.rand(2, 3)
    assert predict._difference([good, torch.zeros(2, 1)], [good, torch.zeros(2, 1)]) == 0
    assert predict._difference([good, last], [good, torch.zeros(2, 1)]) == torch.inf
    assert predict._difference([last, good], [torch.zeros(2, 1), good]) == torch.inf
    assert predict._difference([good], [good, good]) == torch.inf


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
