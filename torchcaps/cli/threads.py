"""CPU threads of commands that train: a small training step is timed with one thread, two, four and so on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torchcaps.cli.options import say
from torchcaps.models import CapsNet
from torchcaps.ops import margin_loss
from torchcaps.runtime.environment import pick_device
from torchcaps.runtime.threads import measured_threads


def small_step() -> Callable[[], None]:
    """Make a function that computes the gradients of a small CapsNet; it leaves PyTorch's random state as it was."""
    with torch.random.fork_rng([]):
        model = CapsNet((1, 16, 16), 10, channels=32, kernel=5, n_types=4, primary_kernel=5, reconstruction=False)
    images, present = torch.linspace(0, 1, 16 * 16**2).view(16, 1, 16, 16), torch.eye(16, 10)
    parameters = list(model.parameters())

    def step() -> None:
        torch.autograd.grad(margin_loss(model(images).activity, present).mean(), parameters)

    return step


@contextmanager
def fast_threads(device: str) -> Iterator[None]:
    """Use the fastest number of CPU threads inside the block, unless the user chose one or `device` is a GPU."""
    with measured_threads(pick_device(device), small_step, say):
        yield
