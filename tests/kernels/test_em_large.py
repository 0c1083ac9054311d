"""EM routing's kernels at the sizes that are benched, on a GPU. test_ahead compiles them without one."""

import pytest
import torch
from problems import em_problem, judge

from torchcaps.ops import em_routing

BAR = {"batch": (20,), "i": 5184, "j": 64, "r": 4, "d": 4, "e": 4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [{**BAR, "batch": (3,)}, {**BAR, "j": 5}, {"i": 300, "j": 200, "r": 1, "d": 64, "e": 2}], ids=str
)
def test_large_problems(gpu_only, dtype, sizes):
    judge(lambda seed: em_problem(device="cuda", seed=seed, **sizes), dtype=dtype)


@pytest.mark.parametrize("sizes", [{"batch": (5,), "i": 577, "j": 33}, {"batch": (20,), "i": 64, "j": 5}], ids=str)
def test_large_problems_with_parameters_of_every_pair(gpu_only, sizes):
    """The second is the last layer of Heinsen's smallNORB network."""
    judge(lambda seed: em_problem("ijde", "cuda", r=4, d=4, e=4, seed=seed, **sizes))


def test_the_votes_are_not_stored(gpu_only):
    """Beyond inputs, outputs and gradients a quarter of the votes' 0.42 GB."""
    args = {name: x.requires_grad_() for name, x in em_problem(device="cuda", **BAR).items()}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    routed = em_routing(**args, backend="triton")
    grads = torch.autograd.grad(sum(x.sum() for x in routed), list(args.values()))
    needed = sum(x.nbytes for x in (*routed, *grads))
    assert torch.cuda.max_memory_allocated() - before - needed < 0.1e9
