"""Tile sizes of the kernels by kind of GPU, chosen from its compute capability and its shared memory.

| table | shared memory of a program | compute capability | run on |
|---|---|---|---|
| `227 KB` | 232,448 bytes | 9.0, 10.0 | H200 (9.0) |
| `163 KB` | 166,912 bytes | 8.0, 8.7 | nothing yet: compiled for 8.0 |
| `99 KB` | 101,376 bytes | 8.6, 8.9, 12.0, 12.1 | nothing yet: compiled for 8.6, 8.9 and 12.0 |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import torch

OLDEST = (8, 0)  # Triton supports no older GPU, and tensor cores before it have no bfloat16

OLDEST_COMPILED = 7  # major number of the oldest that torch.compile's Triton code runs on


class Tiles(NamedTuple):
    """Tile sizes for one kind of GPU."""

    name: str
    shared: int  # bytes of shared memory that a program may have
    multiprocessors: int = 132  # sums over inputs, and a convolution's over taps, are cut into a few programs for each
    # dynamic routing: columns (input, dimension) and rows (images) of a tile, warps of a program
    columns: int = 64
    narrow_columns: int = 32  # in float32, and where three tiles are kept in registers
    rows: int = 64
    rows_float32: int = 64
    wide_rows: int = 64  # in bfloat16 where poses or transforms are wide
    wide_rows_float32: int = 16
    wide_warps: int = 4  # twice as many have twice the registers
    weight_stages: int = 3  # loads in flight for the weight's gradient, which has most tiles; fewer spill less
    channels: int = 256  # of a tile of the strided convolution


LARGE = Tiles("227 KB", 232_448)
MIDDLE = Tiles("163 KB", 166_912, multiprocessors=108, wide_rows=32, wide_warps=8, weight_stages=2)
SMALL = MIDDLE._replace(name="99 KB", shared=101_376, multiprocessors=84, rows_float32=32, channels=128)
TABLES = {tiles.name: tiles for tiles in (LARGE, MIDDLE, SMALL)}
_forced: list[Tiles] = []
_meta: ContextVar[torch.device | None] = ContextVar("device that tensors of meta stand for", default=None)


def table_for(capability: tuple[int, int], shared: int, multiprocessors: int) -> Tiles | str:
    """Choose the tiles for a GPU with these properties; a text says why there are none."""
    if capability < OLDEST:
        found = ".".join(map(str, capability))
        return f"needs a GPU of compute capability 8.0 or higher, this one has {found}; use a newer one"
    if capability[0] in (9, 10):
        # 132 multiprocessors, an H200's, whatever this GPU has: they cut the sums over inputs, and so decide the last
        # bits of results. Recorded speeds and runs are of that cut
        return LARGE
    for tiles in TABLES.values():
        if tiles.shared <= shared:
            return tiles._replace(multiprocessors=multiprocessors)
    return f"needs {SMALL.shared:,} bytes of shared memory for a program, this GPU has {shared:,}; use another"


@cache
def _found(index: int) -> Tiles | str:
    if torch.version.hip:
        return "is tuned for NVIDIA GPUs, got one of AMD; leave the choice to backend='auto'"
    about = torch.cuda.get_device_properties(index)
    return table_for((about.major, about.minor), about.shared_memory_per_block_optin, about.multi_processor_count)


def tiles_on(device: torch.device) -> Tiles | str:
    """Choose the tiles for a device; a text says why there are none. Triton's interpreter takes the largest."""
    if _forced:
        return _forced[-1]
    if device.type == "meta":
        device = _meta.get() or device
    if device.type != "cuda":
        return LARGE
    return _found(torch.cuda.current_device() if device.index is None else device.index)


@cache
def too_old_to_compile(device: torch.device) -> str | None:
    """Say that torch.compile cannot make code for a GPU, or None."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    if major >= OLDEST_COMPILED:
        return None
    return f"needs a GPU of compute capability 7.0 or higher, this one has {major}.{minor}; use a newer one"


@contextmanager
def forced_tiles(tiles: Tiles) -> Iterator[None]:
    """Use these tiles on every device, for tests: smaller ones run on a larger GPU.

    It holds for all threads, because backward passes run in threads of their own.
    """
    _forced.append(tiles)
    try:
        yield
    finally:
        _forced.pop()


@contextmanager
def tensors_of_meta_stand_for(device: torch.device) -> Iterator[None]:
    """Give tensors of the meta device, which hold nothing, the tiles of another device: to compile kernels for it."""
    before = _meta.set(device)
    try:
        yield
    finally:
        _meta.reset(before)
