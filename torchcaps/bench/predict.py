"""Benchmark of prediction: trained models at several batch sizes, by each way to run them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchcaps.bench.memory import free
from torchcaps.bench.timing import Clock, Timed, here, print_table, timed
from torchcaps.ops import convolve
from torchcaps.runtime.environment import algorithms

BATCHES = (1, 32, 1024)
WAYS = {"cpu": ("eager", "onnx"), "cuda": ("eager", "compiled", "graph")}
LONGEST_S = 5.0  # seconds of one call, as foreseen from the smaller batch, beyond which it is left out
SECONDS = 2.0  # of one measurement
TOLERANCE = 1e-3  # of scores and poses, between a way and float64
# cuDNN chooses by shape and layout which convolutions round to TF32, so that eager execution is no measure. A way may
# err ROUNDINGS times as much as with all of them rounded: with only some of them rounded it may err more than with all,
# in a trial on EM routing 1.6 times as much (its output was not kept).
ROUNDINGS = 2
LARGEST = 2e-2  # allowed at most, three times what EM routing needs: beyond it a comparison says nothing
CHECKED = 8  # images of a batch that are compared with float64
NO_MEMORY = "ran out of memory"
Predict = Callable[[Tensor], object]
Say = Callable[[str], object]


class Subject(NamedTuple):
    """Trained model to measure."""

    name: str
    module: nn.Module  # images -> tuple of tensors
    shape: tuple[int, ...]  # of one image
    export: Callable[[Path], object]  # writes it as an ONNX file


class Row(NamedTuple):
    """Time of one model, batch and way, or the reason why there is none."""

    model: str
    way: str
    batch: int
    time: Timed | None = None
    missing: str = ""

    def __str__(self) -> str:
        said = f"{self.time.ms:.3f} ms" if self.time else self.missing
        return f"{self.model} {self.way} batch {self.batch}: {said}"


def bench_predict(
    subjects: Iterable[Subject],
    device: torch.device,
    repeats: int,
    console: Console,
    cpu_time: bool = False,
    say: Say = lambda text: None,
) -> None:
    """Measure the prediction of models on random images and print a table.

    `cpu_time`: the processor's time instead of the clock's, for one thread of a busy machine.
    """
    if cpu_time and (device.type != "cpu" or torch.get_num_threads() > 1):
        wanted = "the processor's time says how long a call takes only on a CPU with one thread"
        raise ValueError(f"{wanted}, got {here(device)}; set OMP_NUM_THREADS=1 and --device cpu")
    clock = time.process_time if cpu_time else time.perf_counter
    rows = []
    with algorithms(False, device):
        for subject in subjects:
            for row in _rows(subject, device, repeats, clock):
                rows.append(row)
                say(str(row))
    of = "processor time, " if cpu_time else ""
    about = f"{here(device)}; {of}medians of at most {repeats} calls, images in 0..1 on the device already, float32"
    console.print(about, highlight=False, soft_wrap=True)
    print_table(console, _table(rows))
    for row in rows:
        if row.missing:
            console.print(str(row), highlight=False, markup=False, soft_wrap=True)


def _rows(subject: Subject, device: torch.device, repeats: int, clock: Clock) -> Iterator[Row]:
    rng = torch.Generator().manual_seed(0)
    with TemporaryDirectory() as folder:
        for way in WAYS[device.type]:
            done = None
            for batch in BATCHES:
                foreseen = done.time.ms * batch / done.batch / 1000 if done else 0.0
                row = Row(subject.name, way, batch)
                if foreseen > LONGEST_S:
                    yield row._replace(missing=f"left out: about {foreseen:.0f} s a call, by the smaller batch")
                    break
                images = torch.rand(batch, *subject.shape, generator=rng).to(device)
                done = _measured(row, subject, images, Path(folder), repeats, clock)
                yield done
                if done.time is None:
                    break
            free(device)


def _measured(row: Row, subject: Subject, images: Tensor, folder: Path, repeats: int, clock: Clock) -> Row:
    try:
        predict = _MAKERS[row.way](subject, images, folder)
    except torch.OutOfMemoryError:
        return row._replace(missing=NO_MEMORY)
    except ValueError as refused:  # no onnxruntime
        return row._replace(missing=str(refused))
    try:
        with torch.inference_mode():
            if wrong := _why_wrong(predict(images), subject.module, images):
                return row._replace(missing=wrong)
            return row._replace(time=timed(lambda: predict(images), images.device, repeats, SECONDS, clock))
    except torch.OutOfMemoryError:
        return row._replace(missing=NO_MEMORY)


def _why_wrong(found: Sequence[Tensor], module: nn.Module, images: Tensor) -> str:
    """Compare the first predictions with float64, all with eager execution, and say what is wrong; "" if nothing is."""
    eager = module(images)
    if (shapes := [list(part.shape) for part in found]) != (wanted := [list(part.shape) for part in eager]):
        return f"wrong: outputs of shapes {shapes}, expected {wanted}"
    wide, few = deepcopy(module).double(), images[:CHECKED].double()
    exact = wide(few)
    off, allowed = _error(found, exact), TOLERANCE
    if _may_round(images.device):
        with _ConvolutionsInTF32():
            allowed = min(max(TOLERANCE, ROUNDINGS * _error(wide(few), exact)), LARGEST)
    if not off <= allowed:
        return f"wrong: off by {off:.1e} from float64, allowed {allowed:.1e}"
    apart = _error(found, eager)
    return "" if apart <= 2 * allowed else f"wrong: off by {apart:.1e} from eager execution, allowed {2 * allowed:.1e}"


def _may_round(device: torch.device) -> bool:
    """Whether convolutions in float32 may round to TF32."""
    return device.type == "cuda" and torch.backends.cudnn.allow_tf32


class _ConvolutionsInTF32(TorchFunctionMode):
    """Region in which images and weights of every convolution are rounded to TF32, and nothing else is.

    `convolve` may multiply the patches of the few images in float64, which are not rounded, where a large batch in
    float32 runs `conv2d`.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.conv2d, convolve):
            args = tuple(_to_tf32(x) if place < 2 else x for place, x in enumerate(args))
            kwargs = {name: _to_tf32(x) if name in ("input", "weight") else x for name, x in kwargs.items()}
        return function(*args, **kwargs)


def _to_tf32(x: Tensor) -> Tensor:
    """Round to 10 bits behind the leading one, halves away from zero."""
    bits = x.float().view(torch.int32)
    return ((bits + (1 << 12)) >> 13 << 13).view(torch.float32).to(x.dtype)


def _error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Compute the largest difference in as many images as `exact` has; NaN if there is one."""
    each = [(one[: len(other)].cpu() - other.cpu()).abs().max() for one, other in zip(found, exact, strict=True)]
    return torch.stack(each).max().item()  # unlike Python's, it keeps a NaN wherever it stands


def _eager(subject: Subject, images: Tensor, folder: Path) -> Predict:
    return subject.module


def _compiled(subject: Subject, images: Tensor, folder: Path) -> Predict:
    torch._dynamo.reset()  # otherwise a second batch size compiles for any, which is slower
    return torch.compile(subject.module, dynamic=False)


def _graph(subject: Subject, images: Tensor, folder: Path) -> Predict:
    """Record the compiled model as one CUDA graph for these images; it predicts them alone."""
    compiled = _compiled(subject, images, folder)
    side = torch.cuda.Stream(images.device)
    side.wait_stream(torch.cuda.current_stream(images.device))
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(2):
                compiled(images)
        torch.cuda.current_stream(images.device).wait_stream(side)
        with torch.cuda.graph(graph):
            outputs = compiled(images)

    def replay(same: Tensor) -> Sequence[Tensor]:
        graph.replay()
        return outputs

    return replay


def _onnx(subject: Subject, images: Tensor, folder: Path) -> Predict:
    """Run the exported file with ONNX Runtime on as many threads as PyTorch has."""
    path = folder / f"{subject.name}.onnx"
    if not path.exists():
        subject.export(path)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda same: tuple(map(torch.from_numpy, session.run(None, {given.name: same.numpy()})))


_MAKERS = {"eager": _eager, "compiled": _compiled, "graph": _graph, "onnx": _onnx}


def _table(rows: Sequence[Row]) -> Table:
    lines = Table("model", "way", *(f"{what}, batch {batch}" for batch in BATCHES for what in ("ms", "images/s")))
    found = {(row.model, row.way, row.batch): row.time for row in rows}
    for model, way in dict.fromkeys((row.model, row.way) for row in rows):
        cells = []
        for batch in BATCHES:
            ms = found[model, way, batch].ms if found.get((model, way, batch)) else None
            cells += ["-", "-"] if ms is None else [f"{ms:,.2f}", f"{1000 * batch / ms:,.0f}"]
        lines.add_row(model, way, *cells)
    return lines
