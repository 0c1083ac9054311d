"""EM routing's kernels at the sizes that are benched, on a GPU; without one they are compiled for it."""

import os
import subprocess
import sys
from pathlib import Path

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


AHEAD = """
import collections, os, re, subprocess, sys, tempfile
import torch, triton
import triton.backends.nvidia
from ahead import compiled_instead_of_run
from torchcaps.ops.em.triton_op import route, route_backward

compiled, real = [], triton.compile
triton.compile = lambda *args, **kwargs: compiled.append(real(*args, **kwargs)) or compiled[-1]


def both(pairs, b, i, j, r, d, e, dtype, n_iters):
    zeros = lambda *shape: torch.zeros(*shape, dtype=dtype)
    parameters = zeros(*pairs, j, d, e), zeros(*pairs, j, r, e), zeros(*pairs, j), zeros(*pairs, j)
    args = zeros(b, i), zeros(b, i, r, d), *parameters
    routed = route(*args, n_iters)
    route_backward(*routed[:3], *args, *routed[3:])


with compiled_instead_of_run() as names:
    both((3,), 2, 3, 5, 1, 2, 1, torch.bfloat16, 2)
    if "more" in sys.argv:
        both((), 20, 5184, 64, 4, 4, 4, torch.float32, 3)
        both((3,), 2, 3, 5, 2, 3, 2, torch.bfloat16, 2)
        both((64,), 20, 64, 5, 4, 4, 4, torch.float32, 3)
        both((577,), 5, 577, 33, 4, 4, 4, torch.bfloat16, 2)
        both((), 2, 300, 200, 1, 16, 2, torch.float32, 2)
tool = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "cuobjdump")
for name, kernel in zip(names, compiled, strict=True):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        used = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(what + r":(\\d+)", used).group(1) for what in ("REG", "STACK"))
    print(name, registers, stack)
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), pytest.param(("more",), marks=pytest.mark.slow)], ids=str)
def test_every_kernel_compiles_for_the_h200_without_spilling(words):
    """A small problem; with `more` the shape that is benched, larger poses of every pair and long ones."""
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"} | {
        "PYTHONPATH": os.pathsep.join([str(root), str(here), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run([sys.executable, "-c", AHEAD, *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in kernels} == {
        "chunk_gradients",
        "chunk_statistics",
        "expectations",
        "first_gradients",
        "pair_gradients",
        "pose_gradients",
        "slopes_of",
        "softmax_parts",
        "statistics",
    }
    assert all(stack == "0" for *_, stack in kernels), done.stdout
