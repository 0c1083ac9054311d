"""Run by runtime/test_world_sizes under torchrun with one process: every sum over the processes goes through the backend.

Usage: one_of_one.py OUT DEVICE. A world of one has nothing to sum, so the library would make no process group: here it
is made, and the step takes the way of several processes.
"""

import json
import sys
from pathlib import Path

import torch
from one_of_two import go, made
from torch import distributed

from torchcaps.runtime import distributed as processes
from torchcaps.train.step import TrainingStep

alone, all_reduce = TrainingStep.gradients, distributed.all_reduce
sums, changed = [], []


def counted(tensor: torch.Tensor, *args, **more):
    sums.append(tensor.device.type)
    return all_reduce(tensor, *args, **more)


def gradients_of(step: TrainingStep) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in step.parameters.values() if parameter.grad is not None]


def by_all(self) -> dict[str, torch.Tensor]:
    losses = alone(self)
    before = gradients_of(self)
    found = self._of_all(losses)
    assert before
    changed.append(not all(torch.equal(*each) for each in zip(before, gradients_of(self), strict=True)))
    return found


def together(self) -> None:
    self._together()
    self.unread += 1


def main(out: Path, device: str) -> None:
    backend = processes._backend(torch.device(device))
    distributed.init_process_group(backend)
    distributed.all_reduce, processes.several = counted, lambda: True
    TrainingStep.gradients, TrainingStep.__call__ = by_all, together
    TrainingStep.unprepared = False  # as for several processes: communication is captured in no graph
    found = {name: go(made(name), out / name, device=device)["losses"] for name in ("capsnet", "sparsecaps")}
    (out / "found.json").write_text(
        json.dumps({"losses": found, "sums": sums, "changed": sum(changed), "backend": backend})
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
