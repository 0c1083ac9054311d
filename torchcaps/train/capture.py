"""First steps on CUDA: compile them, with another try where a compiler gives up, and capture one as a graph."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from torchcaps.runtime.compiled import keep_autocast

if TYPE_CHECKING:
    from torchcaps.train.step import TrainingStep

WARM_UP = 3  # steps before the capture: libraries allocate memory, the optimiser creates its state


class Before:
    """Copies of a step's state and of the random states; `put_back` undoes what was run since."""

    def __init__(self, step: TrainingStep) -> None:
        self.step, on_gpu = step, step.device.type == "cuda"
        self.tensors = {name: tensor.clone() for name, tensor in step.everything().items()}
        self.random_state = torch.get_rng_state()
        self.random_state_of_gpu = torch.cuda.get_rng_state(step.device) if on_gpu else None

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy everything back; what follows from the counter is looked up again, and no step has been bad."""
        for name, tensor in self.step.everything().items():
            # tensors created since then (optimiser state, loss sums) start from zero
            if name in self.tensors:
                tensor.copy_(self.tensors[name])
            else:
                tensor.zero_()
        self.step.look_up()
        self.step.round_weights()
        self.step.first_bad.fill_(-1)
        torch.set_rng_state(self.random_state)
        if self.random_state_of_gpu is not None:
            torch.cuda.set_rng_state(self.random_state_of_gpu, self.step.device)


def first_step(step: TrainingStep, before: Before) -> None:
    """Run the first step. Where a compiler gives up on the network, it trains as it is written.

    It may give up late, with a batch norm's averages changed already: every try starts from the same state.
    """
    from torch._dynamo.exc import BackendCompilerFailed  # takes a second, and a CPU needs no compiler

    keep_autocast()
    for retry in (_compile_plainly, _make_batches_apart, _do_not_compile):
        try:
            step.once()
            break
        except BackendCompilerFailed as error:
            before.put_back()
            retry(step, error.inner_exception)
    else:
        step.once()
    step.started = True


def capture(step: TrainingStep) -> None:
    """Capture one step as a CUDA graph after a warm-up on a side stream, then restore the state from before."""
    before = Before(step)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first_step(step, before)
        for _ in range(WARM_UP - 1):
            step.once()
    torch.cuda.current_stream().wait_stream(side)
    step.zero_grad()
    step.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(step.graph):
        step.once()
    before.put_back()


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
    """Train the network as it is written, and say so."""
    warnings.warn(
        f"torch.compile failed, so training is slower and takes more memory: {type(error).__name__}: {error}",
        stacklevel=2,
    )
    step.losses, step.forward, step.update, step.compiles = step._losses, step._forward, step._update, False
    step.routing = step.describe_routing()
