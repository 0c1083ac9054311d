"""Scaling benchmark: time and memory of dynamic routing as inputs, outputs or the batch grow, one at a time."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from torchcaps.bench.cases import Case, dynamic
from torchcaps.bench.ops import Row, Say, measured_row
from torchcaps.bench.scale_figure import scale_png
from torchcaps.bench.timing import here, print_table
from torchcaps.figures.canvas import canvas
from torchcaps.runtime.environment import algorithms, device_name, made_by, make_folder
from torchcaps.runtime.files import write_whole

D_IN, D_OUT, N_ITERS = 8, 16, 3
SECONDS = 1.0  # timed work per point
BACKENDS = {"cuda": ("reference", "triton"), "cpu": ("reference", "blocked")}
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}  # the blocked backend supports no other
# the reference keeps several tensors as large as its votes
VOTES_OF_A_REFERENCE, LARGEST_REFERENCE = 12, {"cuda": 40e9, "cpu": 2e9}


class Sizes(NamedTuple):
    """Sizes of one routing problem; the field names are the axis names."""

    batch: int
    n_in: int
    n_out: int
    types: int | None = None  # input types that share a transform; None: one transform per pair


@dataclass(frozen=True)
class Axis:
    """Axis of the benchmark: one size takes these values, the others stay at `base`."""

    name: str
    values: Sequence[int]
    base: Sizes
    stand_ins: Mapping[int, Sizes] = field(default_factory=dict)  # for values too large to check, see Case

    @property
    def words(self) -> str:
        """Description of the fixed sizes."""
        known = {
            "batch": f"batch {self.base.batch}",
            "n_in": f"{self.base.n_in:,} inputs",
            "n_out": f"{self.base.n_out} outputs",
        }
        weights = f"weights of {self.base.types} types" if self.base.types else "weights per pair"
        return ", ".join([text for name, text in known.items() if name != self.name] + [weights])

    def case(self, value: int, **how) -> Case:
        """Return the case at one value of the axis."""
        return _case(self.base._replace(**{self.name: value}), **how)

    def cases(self, largest: float) -> list[Case]:
        """Return all cases; the reference is left out where it needs more than `largest` bytes."""
        checked = {value: _case(sizes) for value, sizes in self.stand_ins.items()}
        return [
            self.case(value, stand_in=checked.get(value), cannot=_too_large(self.case(value).n_votes, largest))
            for value in self.values
        ]


def _case(sizes: Sizes, **how) -> Case:
    return dynamic(sizes.batch, sizes.n_in, sizes.n_out, D_IN, D_OUT, N_ITERS, types=sizes.types, **how)


def _too_large(n_votes: int, largest: float) -> dict[str, str]:
    needed = VOTES_OF_A_REFERENCE * 4 * n_votes
    if needed <= largest:
        return {}
    of_what = f"{VOTES_OF_A_REFERENCE} times its votes in float32, computed"
    return {"reference": f"left out: about {needed / 1e9:,.0f} GB ({of_what}), more than {largest / 1e9:g} GB"}


# stand-ins have at least 2.1 million couplings, with ten outputs 6.3 million, so that these are not kept for the
# backward pass, and more tiles in a chunk than are unrolled, wherever the original has
_MANY_INPUTS = Sizes(batch=32, n_in=7680, n_out=10, types=32)
_MOST_INPUTS = _MANY_INPUTS._replace(n_in=19_712)
_MANY_OUTPUTS = {
    30: Sizes(batch=72, n_in=1152, n_out=30),
    100: Sizes(batch=72, n_in=320, n_out=100),
    300: Sizes(batch=72, n_in=112, n_out=300),
    1000: Sizes(batch=72, n_in=80, n_out=1000),
}
# with 27 tiles of images the inputs are no longer split into chunks
_MANY_IMAGES = {512: Sizes(batch=200, n_in=1152, n_out=10), 2048: Sizes(batch=1688, n_in=384, n_out=10)}

AXES = {
    "cuda": (
        Axis(
            "n_in", (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18), Sizes(batch=32, n_in=4096, n_out=10, types=32),
            {1 << 14: _MANY_INPUTS} | dict.fromkeys((1 << 16, 1 << 18), _MOST_INPUTS),
        ),
        Axis("n_out", (10, 30, 100, 300, 1000), Sizes(batch=128, n_in=1152, n_out=10), _MANY_OUTPUTS),
        Axis("batch", (8, 32, 128, 512, 2048), Sizes(batch=128, n_in=1152, n_out=10), _MANY_IMAGES),
    ),
    "cpu": (
        Axis("n_in", (256, 1024, 4096, 16_384), Sizes(batch=8, n_in=1024, n_out=10, types=32)),
        Axis("n_out", (10, 30, 100, 300), Sizes(batch=8, n_in=288, n_out=10)),
        Axis("batch", (2, 8, 32, 128), Sizes(batch=8, n_in=288, n_out=10)),
    ),
}  # fmt: skip


def bench_scale(
    device: torch.device,
    out: Path,
    console: Console,
    axes: Sequence[Axis] | None = None,
    repeats: int = 20,
    say: Say = lambda text: None,
) -> list[Path]:
    """Measure, print tables, and write a JSON file and a figure under `out`."""
    make_folder(out)
    with canvas(1, 1):  # fails before the measurements if matplotlib is missing
        pass
    record = {
        **made_by(device),
        "dtype": str(DTYPES[device.type]),
        "d_in": D_IN,
        "d_out": D_OUT,
        "n_iters": N_ITERS,
        "axes": [],
    }
    console.print(
        f"{here(device)}; dynamic routing, {D_IN} -> {D_OUT} dimensions, {N_ITERS} iterations, forward and backward",
        soft_wrap=True,
    )
    with algorithms(False, device):
        for axis in axes or AXES[device.type]:
            record["axes"].append(measured := measure_axis(axis, device, repeats, say))
            _show(measured, console)
    paths = [out / f"{_file_name(device)}-scale.{ending}" for ending in ("json", "png")]
    write_whole(paths[0], (json.dumps(record, indent=1) + "\n").encode())
    write_whole(paths[1], scale_png(record))
    return paths


def measure_axis(axis: Axis, device: torch.device, repeats: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Measure every point of every backend and fit exponents of time; returns plain data."""
    points = []
    for value, case in zip(axis.values, axis.cases(LARGEST_REFERENCE[device.type]), strict=True):
        for backend in BACKENDS[device.type]:
            row = measured_row(case, DTYPES[device.type], backend, device, repeats, SECONDS)
            say(str(row))
            points.append({"value": value, "backend": backend, **_plain(row), "checked_on": case.checked_on(backend)})
    times = {
        backend: [(p["value"], p["ms"]) for p in points if p["backend"] == backend and p["ms"]]
        for backend in BACKENDS[device.type]
    }
    exponents = {backend: fitted_exponent(found) for backend, found in times.items()}
    return {
        "name": axis.name,
        "words": axis.words,
        "base": axis.base._asdict(),
        "points": points,
        "exponents": exponents,
    }


def _plain(row: Row) -> dict[str, Any]:
    """Convert a row to JSON-serialisable data; `reason` explains a missing time."""
    if row.measured is None:
        return {
            "ms": None,
            "repeats": 0,
            "bytes_beyond": None,
            "bytes_in_all": None,
            "reason": row.missing or f"wrong: {row.wrong}",
        }
    ms, repeats, beyond, whole = row.measured
    return {"ms": float(f"{ms:.5g}"), "repeats": repeats, "bytes_beyond": beyond, "bytes_in_all": whole, "reason": ""}


def fitted_exponent(found: Sequence[tuple[int, float]]) -> float | None:
    """Fit p of time = c · size^p by least squares over the upper half of the sizes, where fixed costs are small."""
    upper = found[len(found) // 2 :] if len(found) > 2 else found
    if len(upper) < 2:
        return None
    return round(linear_regression([log(size) for size, _ in upper], [log(ms) for _, ms in upper]).slope, 3)


def _show(axis: dict[str, Any], console: Console) -> None:
    lines = Table(
        axis["name"], "backend", "ms", "repeats", "peak MiB", "in all MiB", title=f"{axis['name']}: {axis['words']}"
    )
    in_mib = lambda n: "-" if n is None else f"{n / 2**20:,.1f}"  # noqa: E731
    for p in axis["points"]:
        ms = "-" if p["ms"] is None else f"{p['ms']:.3f}"
        lines.add_row(
            f"{p['value']:,}", p["backend"], ms, str(p["repeats"]), in_mib(p["bytes_beyond"]), in_mib(p["bytes_in_all"])
        )
    print_table(console, lines)
    for backend, exponent in axis["exponents"].items():
        if exponent is not None:
            console.print(
                f"{backend}: time grows as {axis['name']}^{exponent:.2f} over the upper half", highlight=False
            )
    for p in axis["points"]:
        if note := p["reason"] or p["checked_on"]:
            console.print(
                f"{axis['name']} {p['value']:,}, {p['backend']}: {note}", highlight=False, markup=False, soft_wrap=True
            )


def _file_name(device: torch.device) -> str:
    """Turn a device name into a file name: NVIDIA H200 -> h200."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower().removeprefix("nvidia ")).strip("-")
