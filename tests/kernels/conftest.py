"""The kernels, on whatever is there: an NVIDIA GPU, or Triton's interpreter on CPU tensors (TRITON_INTERPRET=1).

Compiling ahead of time needs neither, but not the interpreter: those tests start a process of their own.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
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


@contextmanager
def quick_interpreter() -> Iterator[list[tuple]]:
    """Save a third of the interpreter's time: it prepares its language anew at every call of a device function, although
    the kernel that calls it did so, and makes the types of numpy and of a shape over and over.

    Yields what it replaced: owner, name and original.
    """
    from triton import language
    from triton.runtime import interpreter

    prepare, look_up, known = interpreter._patch_lang, interpreter._get_np_dtype, {}
    type_of = language.core._type_for_tuple_values
    type_of_shape = cache(type_of)

    @cache
    def languages(function) -> list:
        return [one for one in (language, language.core) if any(one is each for each in function.__globals__.values())]

    def prepare_once(function):
        plain = any(language.core.is_builtin(one.load) for one in languages(function))
        return prepare(function) if plain else interpreter._LangPatchScope()

    def dtype_of(kind):
        scalar = kind.scalar
        if scalar.name not in known:
            known[scalar.name] = look_up(scalar)
        return known[scalar.name]

    def type_of_tuple(values, fields=None):
        if fields is None and all(type(value) is int for value in values):
            return type_of_shape(tuple(values))
        return type_of(values, fields)

    replaced = [
        (language.core, "_type_for_tuple_values", type_of, type_of_tuple),
        (interpreter, "_patch_lang", prepare, prepare_once),
        (interpreter, "_get_np_dtype", look_up, dtype_of),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, _, quick in replaced:
            patch.setattr(owner, name, quick)
        yield [(owner, name, original) for owner, name, original, _ in replaced]


@pytest.fixture(scope="session", autouse=True)
def quick():
    with quick_interpreter() if INTERPRETED else nullcontext() as replaced:
        yield replaced


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
