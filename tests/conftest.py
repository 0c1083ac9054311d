import contextlib
import gc
import importlib
import os
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch

# every exception has its reason
ALLOWED_WARNINGS = {
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning": "PyTorch's own, while it imports inductor",
    "ignore:.*[Dd]istutils": "setuptools and distutils quarrel while inductor looks for a compiler and while pip is looked for",
    "ignore:TensorFloat32 tensor cores for float32:UserWarning": "inductor's advice on a GPU; float32 shall stay float32",
    "ignore:\\s*Online softmax is disabled:UserWarning": "inductor's notice that a softmax over few numbers takes another way",
    "ignore:.*does not have a deterministic implementation:UserWarning": "some CUDA kernels; the fixture below is after the NaN fill",
    "ignore:.*should not be instantiated:DeprecationWarning": "PyTorch's compiler, of every autograd function that it meets",
}


def pytest_configure(config):
    # the same number of threads in every run of a test, here and in processes that it starts: none is measured
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    # without it cuBLAS warns at every product under deterministic algorithms
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # inductor needs it; imported in the middle of a run it quarrels with whoever imported distutils before
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("torch.utils.cpp_extension")
    # later lines win, so the exceptions stand behind the rule
    config.addinivalue_line("filterwarnings", "error")
    for line in ALLOWED_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing that collecting makes is garbage: neither look for it then, nor walk over it in every later search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def rng() -> torch.Generator:
    """The only source of random numbers in a test that needs any."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def deterministic():
    """Fresh memory is filled with NaN, so an output that nobody wrote shows; modules start from the same weights."""
    torch.default_generator.manual_seed(0)
    # without a GPU PyTorch would note for later, with a whole traceback, that it was asked to seed one
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture(scope="session", autouse=True)
def one_commit():
    """The code under test does not change meanwhile: git is asked once, not three times for every run and result."""
    from torchcaps.runtime import environment

    home, ask = Path(environment.__file__).parents[1], environment._git
    once = cache(ask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "_git", lambda folder, *words: (once if folder == home else ask)(folder, *words))
        yield


@pytest.fixture(scope="module")
def offline_hub():
    """Hugging Face's mixin without the network: whoever asks for it fails."""
    pytest.importorskip("huggingface_hub", reason="pip install 'torchcaps[hub]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.hub_mixin.hf_hub_download", None)
        yield


@pytest.fixture
def fresh_dynamo():
    """Nothing compiled before counts towards this test's recompile limit."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_files_at_hand(tmp_path, monkeypatch) -> Path:
    """An empty cache, which it returns, no folder of data, and a way to 127.0.0.1 past any proxy."""
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def same_tables():
    """Remove what a test adds to the tables of data sets and encoders."""
    # here: kernels are tested in an environment without some of what data need
    from torchcaps.data import DATASETS
    from torchcaps.data.sources.encoders import ENCODERS

    before = [(table, dict(table)) for table in (DATASETS, ENCODERS)]
    yield
    for table, content in before:
        table.clear()
        table.update(content)
