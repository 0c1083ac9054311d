"""Trained models as files that need no torchcaps: ONNX, and PyTorch's own exported program (.pt2).

| of | inputs | outputs |
|---|---|---|
| images | `images` [batch, c, h, w], float32 in 0..1, of the size of the data | `scores` [batch, classes]; `poses` [batch, capsules, ...] |
| sentences | `embeddings` [batch, tokens, layers, numbers], `present` [batch, tokens] | the same |

The number of images is free, of sentences the number of tokens too. What evaluation does to an image (a crop of the middle, a
standardisation) is part of the file. `scores` are what the classes are told apart by: lengths of capsules, scores of EM routing, or
logits; a network without capsules has no `poses`. A file is compared with the model on pictures of three batch sizes before it is kept.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data import info
from torchcaps.data.augment import Augmentation
from torchcaps.layers import Capsules, RankMask
from torchcaps.models import LCapsNet
from torchcaps.runtime.files import write_whole
from torchcaps.train.recipe import Run

TOLERANCE = 1e-4
BATCHES = (1, 2, 13)
TIES = 0.1  # share of the pictures that a model which ranks capsules may answer otherwise: two that are alike change places by rounding
N_TOKENS = (3, 5, 7)
INSTALL = "pip install 'torchcaps[export]'"


class Exported(NamedTuple):
    path: Path
    largest: float  # difference from the model, over all pictures that agree
    n_pictures: int
    n_ties: int  # pictures on which capsules of equal rank changed places


class Plain(nn.Module):
    """The model with evaluation's own treatment of images, from tensors to a tuple of tensors."""

    def __init__(self, model: nn.Module, augment: tuple[Augmentation, ...] = ()) -> None:
        super().__init__()
        self.model, self.augment = model, augment

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        for augmentation in self.augment:
            images = augmentation.fixed(images)
        for augmentation in self.augment:
            images = augmentation.finish(images)
        return _parts(self.model(images))


class PlainSentences(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embeddings: Float[Tensor, "b n l m"], present: Float[Tensor, "b n"]) -> tuple[Tensor, ...]:
        return _parts(self.model(embeddings, present))


def _parts(said: Capsules | Tensor) -> tuple[Tensor, ...]:
    return (said.activity, said.poses) if isinstance(said, Capsules) else (said,)


class Plan(NamedTuple):
    """What is exported, and examples of what goes in."""

    module: nn.Module
    examples: list[tuple[Tensor, ...]]
    names: tuple[str, ...]
    free: dict[str, dict[int, Any]]
    outputs: tuple[str, ...]
    ranks: bool


def plan(model: nn.Module, run: Run) -> Plan:
    about, rng = info(run.data), torch.Generator().manual_seed(0)
    batch = torch.export.Dim("batch")
    if about.kind == "sentences":
        module: nn.Module = PlainSentences(model)
        sizes = zip(BATCHES, N_TOKENS, strict=True)
        examples = [(torch.randn(b, n, *about.shape[1:], generator=rng), torch.ones(b, n)) for b, n in sizes]
        for _, present in examples[1:]:
            present[0, -1] = 0.0  # padding
        free = {"embeddings": {0: batch, 1: torch.export.Dim("tokens")}}
        free["present"] = dict(free["embeddings"])
    else:
        module = Plain(model, run.augment)
        examples = [(torch.rand(b, *about.shape, generator=rng),) for b in BATCHES]
        free = {"images": {0: batch}}
    module = module.cpu().eval()
    with torch.no_grad():
        n_out = len(module(*examples[0]))
    ranks = any(isinstance(part, RankMask | LCapsNet) for part in module.modules())
    return Plan(module, examples, tuple(free), free, ("scores", "poses")[:n_out], ranks)


def export_program(model: nn.Module, run: Run, path: Path) -> Exported:
    """A file for `torch.export.load(path).module()(images)`."""
    what = plan(model, run)
    content = io.BytesIO()
    with _quietly():
        torch.export.save(_program(what), content)
        loaded = torch.export.load(io.BytesIO(content.getvalue())).module()
    return _kept(path, content.getvalue(), what, lambda *inputs: loaded(*inputs))


def export_onnx(model: nn.Module, run: Run, path: Path, classes: tuple[str, ...] = ()) -> Exported:
    """A file for any ONNX runtime; its metadata name the classes."""
    onnxruntime = _need("onnx", "onnxscript", "onnxruntime")
    what = plan(model, run)
    made = to_onnx(_program(what), what.names, what.outputs)
    _name_axes(made, what)
    for key, value in (("made_by", "torchcaps"), ("classes", json.dumps(classes)), ("model", run.model)):
        made.metadata_props.add(key=key, value=value)
    content = made.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    asked = [given.name for given in session.get_inputs()]
    assert asked == list(what.names), asked

    def run_it(*inputs: Tensor) -> tuple[Tensor, ...]:
        said = session.run(list(what.outputs), {name: tensor.numpy() for name, tensor in zip(what.names, inputs, strict=True)})
        return tuple(map(torch.from_numpy, map(np.asarray, said)))

    return _kept(path, content, what, run_it)


def to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The program as ONNX holds models, not compared with anything yet."""
    _need("onnx", "onnxscript")
    with _quietly():
        return torch.onnx.export(program, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)).model_proto


def _need(*modules: str) -> Any:
    """The last of these, once all are imported."""
    try:
        return [import_module(name) for name in modules][-1]
    except ImportError as error:
        wanted = "ONNX files are written by onnxscript and checked by onnxruntime"
        raise ValueError(f"{wanted}, and {error.name} is not installed; {INSTALL}") from error


def _program(what: Plan) -> torch.export.ExportedProgram:
    # the middle example: an axis of 1 would be taken for a constant
    with torch.no_grad():
        return torch.export.export(what.module, what.examples[1], dynamic_shapes=what.free)


def _kept(path: Path, content: bytes, what: Plan, answer: Callable[..., tuple[Tensor, ...]]) -> Exported:
    """Compare, and write only what agrees."""
    with torch.no_grad():
        each = torch.cat([_differences(what.module(*inputs), answer(*inputs)) for inputs in what.examples])
    off = int((~(each <= TOLERANCE)).sum())  # not-a-number is off too
    if off > (TIES * len(each) if what.ranks else 0):
        raise ValueError(
            f"{path} was not written: on {off} of {len(each)} inputs it would differ from the model by more than {TOLERANCE:g} "
            f"(by {each.max():.1e} at most); report it, with the versions of torch and onnxruntime"
        )
    write_whole(path, content)
    return Exported(path, each[each <= TOLERANCE].max().item(), len(each), off)


def _differences(wanted: tuple[Tensor, ...], got: tuple[Tensor, ...]) -> Float[Tensor, "b"]:
    """The largest of every input."""
    assert [part.shape for part in wanted] == [part.shape for part in got], [list(part.shape) for part in got]
    return torch.stack([(one - other).abs().flatten(1).amax(1) for one, other in zip(wanted, got, strict=True)]).amax(0)


def _name_axes(made: Any, what: Plan) -> None:
    """`batch` and `tokens` instead of the symbols that the exporter made up."""
    for given in made.graph.input:
        for axis, dim in what.free[given.name].items():
            given.type.tensor_type.shape.dim[axis].dim_param = dim.__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks about packages that are not needed, and PyTorch's about itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
