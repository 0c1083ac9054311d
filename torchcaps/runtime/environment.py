"""The machine around a run: device, folders, signals, numerics, versions, and the commit that ran."""

import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

# Seconds. A cluster that ends a job tells every process of it, and torchrun or a sweep then tells its own once more: that is one signal.
SAME_SIGNAL = 1.0


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return pick_device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N; got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for and this PyTorch sees none; use --device cpu, or install a CUDA build")
    here, own = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))  # torchrun's
    if device.type == "cuda" and here > 1:
        if device.index is not None:
            raise ValueError(f"{here} processes of this machine were all told {name}; use --device cuda, and each takes its own")
        return torch.device("cuda", own % torch.cuda.device_count())
    if (device.index or 0) >= max(torch.cuda.device_count(), 1):
        raise ValueError(f"device {name} was asked for and there are {torch.cuda.device_count()}; use a smaller number")
    return device


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # under a name that no other process takes: a sweep's all look at one folder
    except OSError as error:
        raise ValueError(f"cannot write to {out} ({error.strerror}); choose another folder with --out") from error


def peak_memory(device: torch.device) -> int:
    """Bytes: of the device's allocator on CUDA, of the whole process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere


@contextmanager
def algorithms(deterministic: bool, device: torch.device) -> Iterator[None]:
    """On this device, kernels that repeat to the bit, or the fastest ones; put back afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    if deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    try:
        # streams and generators are those of the current device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def noted_signals(which: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[list[int]]:
    """SIGINT and SIGTERM, or others, are noted, and the loop leaves after the step it is in. A later one leaves at once."""
    caught: list[int] = []
    before, first = {}, 0.0

    def note(signum: int, frame: object) -> None:
        nonlocal first
        if not caught:
            caught.append(signum)
            first = time.monotonic()
        elif time.monotonic() - first > SAME_SIGNAL:
            raise KeyboardInterrupt

    try:
        for each in which:
            before[each] = signal.signal(each, note)
    except ValueError:
        pass  # not the main thread: signals stay with whoever owns it
    try:
        yield caught
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Whatever draws from PyTorch's default generators (initial weights, dropout) draws from this seed, inside only."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def made_by(device: torch.device) -> dict[str, Any]:
    """Who makes a result: device, versions, commit."""
    return {"device": device_name(device), "versions": versions(), **commit()}


def commit() -> dict[str, Any]:
    """The commit of this code and whether files differ from it.

    A copy without .git says so by TORCHCAPS_COMMIT (and TORCHCAPS_DIRTY=1 if it was changed).
    """
    if named := os.environ.get("TORCHCAPS_COMMIT"):
        return {"commit": named, "dirty": os.environ.get("TORCHCAPS_DIRTY", "0") == "1"}
    here = Path(__file__).parents[1]  # the package
    try:
        _git(here, "ls-files", "--error-unmatch", "__init__.py")  # fails where we are a guest in another project's repository
        head = _git(here, "rev-parse", "HEAD")
        # what decides a result is the package; notes, result files and released weights do not
        return {"commit": head, "dirty": bool(_git(here, "status", "--porcelain", "--", ".", ":(exclude)pretrained/weights"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "dirty": True}


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()
