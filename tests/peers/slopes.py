"""Holds a torch function against one of NumPy: values, and autograd's gradients against slopes of the NumPy one."""

from collections.abc import Callable

import numpy as np
import torch

STEP = 3e-5  # truncation goes with its fourth power, rounding with 1e-16 / STEP
FOURTH_ORDER = {1: 8 / 12, -1: -8 / 12, 2: -1 / 12, -2: 1 / 12}  # sharp routings have large third derivatives
Arrays = dict[str, np.ndarray]
Parts = tuple[np.ndarray, ...]


def draw(seed: int = 0, **shapes: tuple[int, ...]) -> Arrays:
    """Draw a standard normal array for every name."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def slopes(function: Callable[..., Parts], arrays: Arrays, probes: Parts) -> Arrays:
    """Slopes of the sum of outputs times probes, one number of one array after the other."""

    def total() -> float:
        return sum(float((part * probe).sum()) for part, probe in zip(function(**moved), probes, strict=True))

    moved, found = {name: array.copy() for name, array in arrays.items()}, {}
    for name, array in moved.items():
        found[name] = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            here = array[place]
            if not np.isfinite(here):
                continue  # a mask has no slope
            for steps, weight in FOURTH_ORDER.items():
                array[place] = here + steps * STEP
                found[name][place] += weight * total() / STEP
            array[place] = here
    return found


def assert_same(ours: Callable[..., tuple], theirs: Callable[..., Parts], arrays: Arrays, rtol: float = 1e-9) -> None:
    """Every output within `rtol` of its largest number, and every gradient within 1e-7 of its own."""
    leaves = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in arrays.items()}
    found, wanted = ours(**leaves), theirs(**arrays)
    probes = tuple(np.random.default_rng(1).standard_normal(part.shape) for part in wanted)
    for number, (got, exact) in enumerate(zip(found, wanted, strict=True)):
        _assert_close(f"output {number}", got.detach().numpy(), exact, rtol)
    total = sum((part * torch.from_numpy(probe)).sum() for part, probe in zip(found, probes, strict=True))
    gradients = torch.autograd.grad(total, tuple(leaves.values()))
    for (name, slope), gradient in zip(slopes(theirs, arrays, probes).items(), gradients, strict=True):
        _assert_close(f"gradient of {name}", gradient.numpy(), slope, 1e-7)


def _assert_close(name: str, got: np.ndarray, exact: np.ndarray, rtol: float) -> None:
    assert got.dtype == np.float64 and got.shape == exact.shape, f"{name}: {got.dtype} {got.shape}, not {exact.shape}"
    off, allowed = np.abs(got - exact).max(), rtol * np.abs(exact).max()
    assert off <= allowed, f"{name}: off by {off:.1e}, allowed {allowed:.1e}"
