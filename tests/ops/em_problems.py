"""Small EM routings for the tests beside this file."""

import torch

from torchcaps.ops import em_routing

N_IN, N_OUT, ROWS, D_IN, D_OUT = 6, 3, 2, 4, 5
WEIGHTS = ("ijde", "jde", "de")
INF = float("inf")


def problem(weight="jde", batch=(2,), dtype=torch.float64, seed=0, i=N_IN, j=N_OUT, r=ROWS, d=D_IN, e=D_OUT):
    """All inputs of a small routing, all different. One letter of the weight's shape names one size."""
    rng = torch.Generator().manual_seed(seed)
    sizes = {"i": i, "j": j, "r": r, "d": d, "e": e}
    shapes = {
        "scores": (*batch, i),
        "poses": (*batch, i, r, d),
        "weight": [sizes[x] for x in weight],
        "bias": [sizes[x] for x in weight.replace("d", "r")],
        "beta_use": [sizes[x] for x in weight.removesuffix("de") or "j"],
        "beta_ignore": [sizes[x] for x in weight.removesuffix("de") or "j"],
    }
    return {name: torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def gradients(args, **options):
    """Gradients of a random direction in all outputs, by name."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in args.items()}
    routed = em_routing(**leaves, **options)
    rng = torch.Generator().manual_seed(7)
    total = sum((x * torch.randn(x.shape, generator=rng).to(x)).sum() for x in routed)
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
