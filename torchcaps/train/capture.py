"""First steps on CUDA: compile them, with another try where a compiler gives up, and capture one as a graph."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchcaps.train.step import TrainingStep

WARM_UP = 3  # steps before the capture: libraries allocate memory, the optimiser creates its state


def first_step(step: TrainingStep) -> None:
    """Run the first step. Where a compiler gives up on the network, it trains as it is written."""
    from torch._dynamo.exc import BackendCompilerFailed  # takes a second, and a CPU needs no compiler

    for retry in (_compile_plainly, _make_batches_apart, _do_not_compile):
        try:
            step.once()
            break
        except BackendCompilerFailed as error:
            retry(step, error.inner_exception)
    else:
        step.once()
    step.started = True


def capture(step: TrainingStep) -> None:
    """Capture one step as a CUDA graph after a warm-up on a side stream, then restore the state from before."""
    before = {name: tensor.clone() for name, tensor in step.everything().items()}
    generator_state = torch.cuda.get_rng_state(step.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first_step(step)
        for _ in range(WARM_UP - 1):
            step.once()
    torch.cuda.current_stream().wait_stream(side)
    step.optimizer.zero_grad(set_to_none=True)
    step.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(step.graph):
        step.once()
    with torch.no_grad():
        for name, tensor in step.everything().items():
            # tensors created during the warm-up (optimiser state, loss sums) start from zero
            if name in before:
                tensor.copy_(before[name])
            else:
                tensor.zero_()
        step.look_up()
    torch.cuda.set_rng_state(generator_state, step.device)
    step.first_bad.fill_(-1)


def _compile_plainly(step: TrainingStep, error: Exception) -> None:
    """Compile without an analysis of tiles that raises in TorchInductor 2.11 for some sums, as of matrix EM."""
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.triton.coalesce_tiling_analysis = False
    step.forward = torch.compile(step._forward, dynamic=False)


def _make_batches_apart(step: TrainingStep, error: Exception) -> None:
    """Compile the network alone, in case it is an augmentation that the compiler cannot take."""
    torch._dynamo.reset()
    step.losses, step.forward = torch.compile(step._losses, dynamic=False), step._forward


def _do_not_compile(step: TrainingStep, error: Exception) -> None:
    warnings.warn(
        f"torch.compile failed, so training is slower and takes more memory: {type(error).__name__}: {error}",
        stacklevel=2,
    )
    step.losses, step.forward, step.update, step.compiles = step._losses, step._forward, step._update, False
    step.routing = step.describe_routing()
