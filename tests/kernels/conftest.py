"""The kernels, on whatever is there: an NVIDIA GPU, or Triton's interpreter on CPU tensors (TRITON_INTERPRET=1).

Compiling ahead of time needs neither, but not the interpreter: those tests start a process of their own.
"""

import os
import zlib
from pathlib import Path

import pytest
import torch
from problems import INTERPRETED, ON_GPU

# the interpreter makes a loop's bound a number in a way that numpy 2.4 refuses
BOUND = "Conversion of an array with ndim > 0 to a scalar"
collect_ignore_glob = [] if ON_GPU or INTERPRETED else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(
                pytest.mark.gpu if ON_GPU else pytest.mark.filterwarnings(f"ignore:{BOUND}:DeprecationWarning")
            )


@pytest.fixture
def device() -> str:
    return "cuda" if ON_GPU else "cpu"


@pytest.fixture
def gpu_only() -> None:
    """For sizes that would take the interpreter minutes, and for its bfloat16, which is wrong."""
    if not ON_GPU:
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture
def rng(request) -> torch.Generator:
    """Every test has numbers of its own, the same in every run: a budget is exceeded by chance in one of many draws."""
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def fresh() -> int:
    """A seed that nobody has met before; a failure names it."""
    return int.from_bytes(os.urandom(4))
