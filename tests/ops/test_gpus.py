"""Tiles by kind of GPU, and where the compiled reference is taken instead."""

import threading
from types import SimpleNamespace

import pytest
import torch

from torchcaps.ops import backend, dynamic_routing_backend, gpus
from torchcaps.ops.backend import cannot_compile, cannot_run_kernels
from torchcaps.ops.dynamic import triton_op
from torchcaps.ops.dynamic.triton_launch import Sizes
from torchcaps.ops.gpus import LARGE, MIDDLE, SMALL, forced_tiles, table_for, tiles_on

KB = 1024


@pytest.mark.parametrize(
    ("capability", "shared", "table"),
    [
        ((8, 0), 163 * KB, MIDDLE),
        ((8, 6), 99 * KB, SMALL),
        ((8, 7), 163 * KB, MIDDLE),
        ((8, 9), 99 * KB, SMALL),
        ((12, 0), 99 * KB, SMALL),
    ],
)
def test_a_gpu_gets_the_largest_tiles_that_fit_and_programs_for_its_multiprocessors(capability, shared, table):
    assert table_for(capability, shared, 46) == table._replace(multiprocessors=46)


@pytest.mark.parametrize(("capability", "multiprocessors"), [((9, 0), 132), ((10, 0), 148)])
def test_hopper_and_blackwell_have_one_table_whatever_their_size(capability, multiprocessors):
    assert table_for(capability, 227 * KB, multiprocessors) is LARGE


def test_what_is_too_old_or_too_small_is_refused_with_the_reason():
    assert table_for((7, 5), 64 * KB, 40) == (
        "needs a GPU of compute capability 8.0 or higher, this one has 7.5; use a newer one"
    )
    assert "needs 101,376 bytes of shared memory for a program, this GPU has 65,536" in table_for((8, 8), 64 * KB, 40)


@pytest.fixture
def card(monkeypatch):
    """Pretend that there is a GPU of these properties."""

    def of(major: int, minor: int, shared: int) -> SimpleNamespace:
        about = SimpleNamespace(
            major=major, minor=minor, shared_memory_per_block_optin=shared, multi_processor_count=40
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(backend, "HAS_TRITON", True)
        monkeypatch.setattr("torchcaps.ops.backend.find_spec", lambda name: True)
        for function in (gpus._found, gpus.too_old_to_compile):
            function.cache_clear()
        return SimpleNamespace(device=torch.device("cuda:0"))

    yield of
    for function in (gpus._found, gpus.too_old_to_compile):
        function.cache_clear()


def test_kernels_run_since_ampere_and_older_gpus_hear_why_not(card):
    assert cannot_run_kernels(card(8, 6, 99 * KB)) is None
    assert tiles_on(torch.device("cuda:0")) == SMALL._replace(multiprocessors=40)
    assert "8.0 or higher, this one has 7.5" in cannot_run_kernels(card(7, 5, 64 * KB))


def test_pascal_is_too_old_for_the_compiler_too(card):
    assert cannot_compile(card(7, 5, 64 * KB)) is None
    assert "7.0 or higher, this one has 6.1" in cannot_compile(card(6, 1, 48 * KB))


def test_amd_is_refused(card, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert "is tuned for NVIDIA GPUs" in cannot_run_kernels(card(9, 0, 64 * KB))


def test_forced_tiles_hold_in_other_threads_and_end():
    seen = []
    with forced_tiles(SMALL):
        thread = threading.Thread(target=lambda: seen.append(tiles_on(torch.device("cpu"))))
        thread.start()
        thread.join()
    assert seen == [SMALL]
    assert tiles_on(torch.device("cpu")) is LARGE


def sizes(tiles, low, d_in=8, d_out=16, n_in=1152, batch=128, narrow=False):
    poses, weight = torch.empty(batch, n_in, d_in, device="meta"), torch.empty(n_in, 10, d_in, d_out, device="meta")
    found = Sizes.of(poses, weight, 10, low, tiles, narrow)
    return found.BB, found.IB, found.blocks, found.chunks


def test_the_tiles_of_an_h200_stay_what_was_measured():
    """Recorded speeds, and results to the bit, are theirs."""
    assert sizes(LARGE, True) == (64, 8, 8, 18)
    assert sizes(LARGE, True, narrow=True) == (64, 4, 15, 20)
    assert sizes(LARGE, False) == (64, 4, 15, 20)
    assert sizes(LARGE, True, 64, 64, n_in=33) == (64, 1, 2, 17)
    assert sizes(LARGE, False, 64, 64, n_in=33) == (16, 1, 7, 5)
    assert (LARGE.wide_warps, LARGE.weight_stages, LARGE.channels) == (4, 3, 256)


def test_small_gpus_have_smaller_tiles_of_wide_poses():
    assert sizes(SMALL, True, 64, 64, n_in=33)[0] == sizes(MIDDLE, True, 64, 64, n_in=33)[0] == 32


def problem(batch=32, n_in=4608, dtype=torch.float32, grad=True):
    weight = torch.empty(n_in, 10, 8, 16, dtype=dtype, device="meta", requires_grad=grad)
    defaults = {"bias": None, "n_iters": 3, "prior": None, "couplings": "softmax", "detach": False}
    return {"poses": torch.empty(batch, n_in, 8, dtype=dtype, device="meta"), "weight": weight} | defaults


@pytest.fixture
def no_autocast(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: False)  # it does not know the meta device


def test_float32_kernels_lose_where_they_were_measured_to(no_autocast):
    assert triton_op.loses(**problem())
    assert not triton_op.loses(**problem(batch=128, n_in=1152))


def test_a_bias_that_alone_is_trained_counts(no_autocast):
    bias = torch.empty(10, 16, device="meta")
    assert not triton_op.loses(**problem(grad=False) | {"bias": bias})
    assert triton_op.loses(**problem(grad=False) | {"bias": bias.clone().requires_grad_()})


@pytest.mark.parametrize(
    "change",
    [
        problem(dtype=torch.bfloat16),
        problem(grad=False),
        problem(n_in=18_432),
        {"n_iters": 1},
        {"couplings": "uniform"},
        {"weight": torch.empty(32, 10, 8, 16, device="meta", requires_grad=True)},
    ],
    ids=["bfloat16", "no gradient", "many votes", "one iteration", "uniform", "shared transforms"],
)
def test_float32_kernels_stay_where_nothing_says_that_they_lose(no_autocast, change):
    assert not triton_op.loses(**problem() | change)


def test_auto_takes_the_faster_and_a_name_is_obeyed(no_autocast, monkeypatch):
    monkeypatch.setattr(triton_op, "cannot_multiply", lambda tensor: None)
    monkeypatch.setitem(backend.AUTO, "meta", ("triton", "compiled"))
    monkeypatch.setattr("torchcaps.ops.backend.find_spec", lambda name: True)
    few, many = problem(), problem(batch=128, n_in=1152)
    assert dynamic_routing_backend(**few) == "compiled"
    assert dynamic_routing_backend(**few, compiling=True) == "reference"
    assert dynamic_routing_backend(**few, backend="triton") == "triton"
    assert dynamic_routing_backend(**many) == dynamic_routing_backend(**many, compiling=True) == "triton"


def test_auto_keeps_the_slower_kernels_where_nothing_compiles(no_autocast, monkeypatch):
    monkeypatch.setattr(triton_op, "cannot_multiply", lambda tensor: None)
    monkeypatch.setitem(backend.AUTO, "meta", ("triton",))
    assert dynamic_routing_backend(**problem()) == "triton"
