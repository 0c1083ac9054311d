"""Proves that ONNX Runtime gives the answers of every model of the registry, for batch sizes the export never saw."""

import pytest
import torch

from torchcaps.data import info
from torchcaps.integrations.export import BATCHES, TIES, export_onnx, plan
from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.papers import RECIPES

# every model, some in several forms; pairs and mixup change the training alone
SMOKE = [name for name in RECIPES if name.startswith("smoke/") and "pairs" not in name and "mixup" not in name]
ASKED = (3, 8, 21)
ALLOWED = 1e-4


def test_every_model_of_the_library_is_among_these():
    models = {RECIPES[name].make().model for name in SMOKE}
    assert models == {*MODELS, *SENTENCE_MODELS} and len(models) == 17 <= len(SMOKE)
    assert not {*ASKED} & {*BATCHES}


def questions(run, batch: int, rng: torch.Generator) -> tuple[torch.Tensor, ...]:
    about = info(run.data)
    if about.kind != "sentences":
        return (torch.rand(batch, *about.shape, generator=rng),)
    present = torch.ones(batch, 4)
    present[::2, -1] = 0.0  # padding
    return torch.randn(batch, 4, *about.shape[1:], generator=rng), present


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SMOKE)
def test_onnx_runtime_answers_as_the_model_does(recipe, tmp_path, rng):
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(needed, reason="pip install 'torchcaps[export]'")
    from onnxruntime import InferenceSession

    run = RECIPES[recipe].make()
    model = run.build().eval()
    export_onnx(model, run, tmp_path / "net.onnx")
    session = InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    what, n_wrong = plan(model, run), 0
    for batch in ASKED:
        inputs = questions(run, batch, rng)
        said = session.run(None, {name: x.numpy() for name, x in zip(what.names, inputs, strict=True)})
        with torch.no_grad():
            wanted = what.module(*inputs)
        for got, exact in zip(map(torch.from_numpy, said), wanted, strict=True):
            assert got.shape == exact.shape and got.dtype == exact.dtype and len(got) == batch
        off = [
            (torch.from_numpy(got) - exact).abs().flatten(1).amax(1) for got, exact in zip(said, wanted, strict=True)
        ]
        n_wrong += int((torch.stack(off).amax(0) > ALLOWED).sum())
    # rounding may swap two capsules of equal rank
    assert n_wrong <= (TIES * sum(ASKED) if what.ranks else 0)
