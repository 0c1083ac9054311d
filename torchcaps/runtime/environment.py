"""Environment of a run: device, folders, signals, numerics, versions and commit."""

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

# seconds. A cluster signals every process of a job, and torchrun or a sweep then repeats the signal for its own
# processes: signals this close together count as one
SAME_SIGNAL = 1.0


def pick_device(name: str) -> torch.device:
    """Return the device named auto, cpu, cuda or cuda:N. Under torchrun, cuda is the GPU of the local rank."""
    if name == "auto":
        return pick_device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N; got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device cuda was asked for and this PyTorch sees none; use --device cpu, or install a CUDA build"
        )
    here, own = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))  # set by torchrun
    if device.type == "cuda" and here > 1:
        if device.index is not None:
            raise ValueError(
                f"{here} processes of this machine were all told {name}; use --device cuda, and each takes its own"
            )
        return torch.device("cuda", own % torch.cuda.device_count())
    if (device.index or 0) >= max(torch.cuda.device_count(), 1):
        raise ValueError(f"device {name} was asked for and there are {torch.cuda.device_count()}; use a smaller number")
    return device


def make_folder(out: Path) -> None:
    """Create a folder and check that it is writable."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # a unique name, since all processes of a sweep check the same folder
    except OSError as error:
        raise ValueError(f"cannot write to {out} ({error.strerror}); choose another folder with --out") from error


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the CUDA allocator, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS reports bytes, others kilobytes


@contextmanager
def algorithms(deterministic: bool, device: torch.device) -> Iterator[None]:
    """Select bit-reproducible or the fastest kernels on `device`; restore the settings on exit."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    if deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.benchmark = not deterministic
    try:
        # streams and generators belong to the current device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def noted_signals(which: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[list[int]]:
    """Collect signals in the yielded list, so that a loop can stop after its current step.

    A second signal, more than `SAME_SIGNAL` seconds later, raises KeyboardInterrupt at once.
    """
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
        pass  # only the main thread may set signal handlers
    try:
        yield caught
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's default generators (initialisation, dropout) inside the block; restore them on exit."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def versions() -> dict[str, str]:
    """Return the versions of Python, PyTorch and CUDA."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's architecture and thread count."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def device_in_words(name: str) -> str:
    """Return the name of a device as a sentence wants it; result files and checkpoints keep "1 threads"."""
    return re.sub(r"(?<= CPU, 1 )threads$", "thread", name)


def threads_of(name: str) -> int | None:
    """Read the thread count from the name of a CPU, as `device_name` writes it; None for a GPU."""
    found = re.search(r" CPU, (\d+) threads$", name)
    return int(found[1]) if found else None


def made_by(device: torch.device) -> dict[str, Any]:
    """Return the provenance of a result: device, versions, commit."""
    return {"device": device_name(device), "versions": versions(), **commit()}


def commit() -> dict[str, Any]:
    """Return the commit of this code and whether the package differs from it.

    A copy without .git sets TORCHCAPS_COMMIT, and TORCHCAPS_DIRTY=1 if it was changed.
    """
    if named := os.environ.get("TORCHCAPS_COMMIT"):
        return {"commit": named, "dirty": os.environ.get("TORCHCAPS_DIRTY", "0") == "1"}
    here = Path(__file__).parents[1]  # the package
    try:
        # fails if the package lies untracked in another project's repository
        _git(here, "ls-files", "--error-unmatch", "__init__.py")
        head = _git(here, "rev-parse", "HEAD")
        # only the code determines a result, not notes, result files, their means or released weights
        others = (":(exclude)pretrained/weights", ":(exclude)results/means.json")
        return {"commit": head, "dirty": bool(_git(here, "status", "--porcelain", "--", ".", *others))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "dirty": True}


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()
