"""Random problems for the kernels, where they run, and how EM routing is judged."""

import os
from functools import partial

import torch

from torchcaps.ops import em_routing, local_grid
from torchcaps.ops.testing import compare_routing

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
SIZES = {"b": 3, "i": 4, "n": 2, "j": 3, "d": 5, "e": 3}
WEIGHTS = ("ijde", "njde", "jde", "de")
DTYPES = [torch.float32, torch.bfloat16]


def arguments(rng, device, weight="ijde", batch=None, scale=1.0, bias=True, **sizes):
    size = SIZES | sizes
    shapes = {"poses": (*(batch or (size["b"],)), size["i"], size["d"]), "weight": tuple(size[x] for x in weight)}
    shapes |= {"bias": (size["j"], size["e"])} if bias else {}
    made = {name: torch.randn(shape, generator=rng).to(device) for name, shape in shapes.items()}
    # sums of votes of length about one, where squash bends
    made["weight"] *= (size["j"] / (size["i"] * size["d"])) ** 0.5
    made["poses"] *= scale
    return made


INF = float("inf")
OUTPUTS = {"scores", "poses", "variances"}


def em_problem(weight="jde", device="cpu", batch=(1,), i=4, j=3, r=2, d=3, e=2, bias=True, seed=0):
    rng = torch.Generator().manual_seed(seed)
    sizes = {"i": i, "n": 2, "j": j, "r": r, "d": d, "e": e}
    shapes = {"scores": (*batch, i), "poses": (*batch, i, r, d)} | {
        "weight": [sizes[x] for x in weight],
        "bias": [sizes[x] for x in weight.replace("d", "r")],
        "beta_use": [sizes[x] for x in weight.removesuffix("de") or "j"],
        "beta_ignore": [sizes[x] for x in weight.removesuffix("de") or "j"],
    }
    args = {name: torch.randn(*shape, generator=rng).to(device) for name, shape in shapes.items()}
    return args if bias else args | {"bias": None}


def judge(make, n_iters=3, dtype=torch.float32, seeds=range(9) if ON_GPU else range(3), op=em_routing):
    """Within the budget on most of the seeds (under the interpreter on one), within ten times of it on all that were
    asked.

    Few capsules with sharp probabilities turn one rounding into a hundred, so that now and then a problem is over the
    budget: in sixteen seeds three with masks, in eight two with poses of 1e4. What is given up: an error that shows on
    four of nine problems, and there by less than ten budgets.
    """
    worst: list[float] = []  # by seed: the largest error in budgets, and of what
    names: list[str] = []
    wanted = len(seeds) // 2 + 1 if ON_GPU else 1  # the interpreter is slow
    for seed in seeds:
        if sum(error <= 1 for error in worst) >= wanted:
            break
        args = make(seed)
        routed = partial(op, n_iters=n_iters)
        margins = compare_routing(routed, args, backend="triton", dtype=dtype, seed=seed, times=10)
        assert set(margins) == OUTPUTS | {f"grad {name}" for name, x in args.items() if x is not None}
        error, name = max(
            (10 * margin.error / margin.budget if margin.error else 0.0, name) for name, margin in margins.items()
        )
        worst.append(error)
        names.append(name)
    found = ", ".join(f"{name} {error:.2f}" for error, name in zip(worst, names, strict=True))
    assert sum(error <= 1 for error in worst) >= wanted, (
        f"wanted {wanted} seeds within the budget; the worst of each, in budgets: {found}"
    )


def judge_together(make, n_iters=3, seeds=8):
    """The root mean square over problems of every error within that of the budgets.

    For problems whose answers are small differences of large numbers: there the errors of any two methods are alike
    in size over many problems, and on one problem either may be near zero by chance.
    """
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds if ON_GPU else 3):
        routed = partial(em_routing, n_iters=n_iters)
        margins = compare_routing(routed, make(seed), backend="triton", seed=seed, times=1000)
        for name, margin in margins.items():
            errors.setdefault(name, []).append((margin.error, margin.budget / 1000))
    for name, found in errors.items():
        error, budget = torch.tensor(found, dtype=torch.float64).square().mean(0).sqrt().tolist()
        assert error <= budget, f"{name}: off by {error:.1e}, allowed {budget:.1e}, by seed {found}"


def em_gradients(args):
    leaves = {name: x.clone().requires_grad_() for name, x in args.items()}
    routed = em_routing(**leaves, backend="triton")
    return [*routed, *torch.autograd.grad(sum(x.sin().sum() for x in routed), list(leaves.values()))]


def matrix_problem(
    device="cpu", size=(1, 2), kernel=None, stride=1, padding=0, batch=(2,), n=2, m=3, poses=(2, 1, 2), seed=0
):
    """Draw a problem of matrix capsules with poses of r, d, e; without a kernel every child reaches m parents."""
    rng = torch.Generator().manual_seed(seed)
    (height, width), (r, d, e) = size, poses
    members, i = () if kernel is None else (kernel * kernel,), n * height * width
    shapes = {"scores": (*batch, i), "poses": (*batch, i, r, d), "weight": (n, *members, m, d, e)}
    shapes |= {"beta_use": (m,), "beta_activate": (m,)}
    args = {name: torch.randn(shape, generator=rng).to(device) for name, shape in shapes.items()}
    if kernel is None:
        return args, None
    grid = local_grid(height, width, kernel, stride, padding)
    return args, grid.to(device)
