"""Export of trained models to files that run without torchcaps: ONNX, and PyTorch's exported program (.pt2).

| data | inputs | outputs |
|---|---|---|
| images | `images` [batch, c, h, w], float32 in 0..1 | `scores` [batch, classes], `poses` [batch, capsules, ...] |
| sentences | `embeddings` [batch, tokens, layers, features], `present` [batch, tokens] | the same |

The batch size is dynamic, and so is the number of tokens. Images have the size of the data; the file includes the
evaluation transforms (centre crop, standardisation). `scores` are capsule lengths, scores of EM routing, or logits; a
network without capsules has no `poses`. Before a file is written, its outputs are compared with the model's on three
batch sizes.
"""

import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data import info
from torchcaps.data.augment import Augmentation
from torchcaps.layers import Capsules, Decoder, LadderCapsules, RankMask
from torchcaps.runtime.files import write_whole
from torchcaps.train.recipe import Run, stored_run

__all__ = ["Exported", "export_onnx", "export_program", "to_onnx"]

TOLERANCE = 1e-4
BATCHES = (1, 2, 13)
# Fraction of inputs on which a model that ranks capsules may differ: rounding can swap two capsules of equal rank.
TIES = 0.1
N_TOKENS = (3, 5, 7)
INSTALL = "pip install 'torchcaps[export]'"


class Exported(NamedTuple):
    """Written file, and its agreement with the model.

    Example:

        from pathlib import Path
        from torchcaps.train.recipe import Run
        run = Run(data="generated-16", model="capsnet", model_args={"channels": 8, "kernel": 5, "primary_kernel": 5})
        found = export_program(run.build(), run, Path("net.pt2"))
        found.path.name, found.largest < 1e-4  # ('net.pt2', True)
    """

    path: Path
    largest: float  # largest difference from the model, over the inputs that agree
    n_pictures: int
    n_ties: int  # inputs on which capsules of equal rank were swapped


class Plain(nn.Module):
    """Model with its evaluation transforms, from images to a tuple of tensors."""

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
    """Sentence model, from embeddings and mask to a tuple of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embeddings: Float[Tensor, "b n l m"], present: Float[Tensor, "b n"]) -> tuple[Tensor, ...]:
        return _parts(self.model(embeddings, present))


def _parts(said: Capsules | Tensor) -> tuple[Tensor, ...]:
    return (said.confidence, said.poses) if isinstance(said, Capsules) else (said,)


class Plan(NamedTuple):
    """Module to export, with example inputs, dynamic axes and output names."""

    module: nn.Module
    examples: list[tuple[Tensor, ...]]
    names: tuple[str, ...]
    free: dict[str, dict[int, Any]]
    outputs: tuple[str, ...]
    ranks: bool  # whether the model ranks capsules, see TIES


def plan(model: nn.Module, run: Run) -> Plan:
    """Wrap a model for export and generate random example inputs."""
    about, rng, model = info(run.data), torch.Generator().manual_seed(0), _answering(model)
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
    ranks = any(isinstance(part, RankMask | LadderCapsules) for part in module.modules())
    return Plan(module, examples, tuple(free), free, ("scores", "poses")[:n_out], ranks)


def _stored(run: Run | Mapping[str, Any]) -> Run:
    return run if isinstance(run, Run) else stored_run(run)


def _answering(model: nn.Module) -> nn.Module:
    """Copy a model for the CPU, without a decoder: an answer needs none, and a program would store it all the same."""
    try:
        copied = deepcopy(model)
    except RuntimeError:  # it holds outputs of its own, as old weight norms do: it is exported itself
        return model
    for part in list(copied.modules()):
        for name, child in part.named_children():
            if isinstance(child, Decoder):
                setattr(part, name, None)
    return copied


def export_program(model: nn.Module, run: Run | Mapping[str, Any], path: Path | str) -> Exported:
    """Write a .pt2 file, to be used as `torch.export.load(path).module()(images)`.

    `run`: what says how images are prepared, such as `model.about["run"]`.
    """
    run, path = _stored(run), Path(path)
    what = plan(model, run)
    content = io.BytesIO()
    with _quietly():
        torch.export.save(_program(what), content)
        loaded = torch.export.load(io.BytesIO(content.getvalue())).module()
    return _kept(path, content.getvalue(), what, lambda *inputs: loaded(*inputs))


def export_onnx(
    model: nn.Module, run: Run | Mapping[str, Any], path: Path | str, classes: tuple[str, ...] = ()
) -> Exported:
    """Write an ONNX file for any runtime, with the class names in its metadata. `run`: see `export_program`."""
    run, path = _stored(run), Path(path)
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
        said = session.run(
            list(what.outputs), {name: tensor.numpy() for name, tensor in zip(what.names, inputs, strict=True)}
        )
        return tuple(map(torch.from_numpy, map(np.asarray, said)))

    return _kept(path, content, what, run_it)


def to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Convert an exported program to an ONNX model, without comparing outputs."""
    _need("onnx", "onnxscript")
    with _quietly():
        return torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=list(outputs),
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        ).model_proto


def _stable_sort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    """Sort by ONNX's TopK, which leaves equal numbers in their order; PyTorch's exporter knows no stable sort."""
    from onnxscript import opset18 as op

    length = op.Reshape(op.Gather(op.Shape(x), op.Constant(value_int=dim)), op.Constant(value_ints=[1]))
    return op.TopK(x, length, axis=dim, largest=int(descending), sorted=1)


def _need(*modules: str) -> Any:
    """Import all of these modules and return the last one."""
    try:
        return [import_module(name) for name in modules][-1]
    except ImportError as error:
        wanted = "ONNX files are written by onnxscript and checked by onnxruntime"
        raise ValueError(f"{wanted}, and {error.name} is not installed; {INSTALL}") from error


def _program(what: Plan) -> torch.export.ExportedProgram:
    # the second example: an axis of size 1 would be exported as a constant
    with torch.no_grad():
        return torch.export.export(what.module, what.examples[1], dynamic_shapes=what.free)


def _kept(path: Path, content: bytes, what: Plan, answer: Callable[..., tuple[Tensor, ...]]) -> Exported:
    """Compare outputs with the model, and write the file only if they agree."""
    with torch.no_grad():
        each = torch.cat([_differences(what.module(*inputs), answer(*inputs)) for inputs in what.examples])
    off = int((~(each <= TOLERANCE)).sum())  # nan counts as a difference
    if off > (TIES * len(each) if what.ranks else 0):
        raise ValueError(
            f"{path} was not written: on {off} of {len(each)} inputs it would differ from the model by more than "
            f"{TOLERANCE:g} "
            f"(by {each.max():.1e} at most); report it, with the versions of torch and onnxruntime"
        )
    write_whole(path, content)
    return Exported(path, each[each <= TOLERANCE].max().item(), len(each), off)


def _differences(wanted: tuple[Tensor, ...], got: tuple[Tensor, ...]) -> Float[Tensor, "b"]:
    """Compute the largest absolute difference for every input."""
    assert [part.shape for part in wanted] == [part.shape for part in got], [list(part.shape) for part in got]
    return torch.stack([(one - other).abs().flatten(1).amax(1) for one, other in zip(wanted, got, strict=True)]).amax(0)


def _name_axes(made: Any, what: Plan) -> None:
    """Rename the dynamic axes to `batch` and `tokens` wherever the exporter wrote its own symbols."""
    axes = {given.name: given.type.tensor_type.shape.dim for given in made.graph.input}
    names = {axes[name][axis].dim_param: dim.__name__ for name, free in what.free.items() for axis, dim in free.items()}
    for part in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        for dim in part.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):  # a symbol, or a product of one such as "13*s34"
                dim.dim_param = re.sub(r"\w+", lambda symbol: names.get(symbol[0], symbol[0]), dim.dim_param)


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings and log messages of the exporter."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
