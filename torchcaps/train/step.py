"""One training step: index, augment, forward, backward, optimiser, weight average. On CUDA it is one graph.

With several processes, each computes the gradients of its part of the batch and all apply the mean gradient. They
capture no graph: gloo's communication cannot be captured, and one code path for all devices is easier to trust.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchcaps.data.augment import Batch
from torchcaps.data.batches.images import Batches
from torchcaps.layers import ConvMatrixCapsules, EMCapsules, ExpertCapsules, MatrixCapsules, RoutedCapsules
from torchcaps.ops.backend import many_programs
from torchcaps.runtime.distributed import ALONE, Team, mean_of_all, naming_the_lost
from torchcaps.train.capture import WARM_UP, Before, capture, first_step
from torchcaps.train.optimizers import OneProgramAdam
from torchcaps.train.rounded import RoundedWeight, in_place, rounded_weights
from torchcaps.train.tasks import Scheduled, Task, WithoutGradients

if TYPE_CHECKING:
    from torchcaps.train.recipe import Stage

ROUTED = EMCapsules | ExpertCapsules | RoutedCapsules | MatrixCapsules | ConvMatrixCapsules  # they name their backend


class TrainingStep:
    """Callable training step. All changing state is in device tensors, so no step waits for the host.

    It holds the model's tensors from now on: move, convert, freeze or hook the model before. Call `round_weights()`
    after you have changed weights between two steps.

    Example:

        from torchcaps import CapsNet, data
        from torchcaps.train.recipe import Stage
        batches = Batches(data.load("generated", "train"), 16, (), torch.device("cpu"))
        step = TrainingStep(Stage(batch=16), CapsNet((1, 28, 28), 10, channels=8), batches, 20, torch.device("cpu"))
        step()
        list(step.read_means())  # ['loss', 'error_percent', 'margin', 'reconstruction']
    """

    def __init__(
        self, stage: Stage, model: nn.Module, batches: Batches, n_steps: int, device: torch.device, team: Team = ALONE
    ) -> None:
        self.task, self.model, self.batches, self.device, self.team = stage.task, model, batches, device, team
        self.compiles = on_cuda = device.type == "cuda"
        self.precision = stage.precision
        self.backpropagates = not isinstance(stage.task, WithoutGradients)
        self.scheduled, self.n_steps = isinstance(stage.task, Scheduled), n_steps
        self.parameters = self.task.parameters(model)
        self.counter = torch.zeros((), dtype=torch.long, device=device)  # steps done in this stage
        # a few rows more than steps: a warm-up close to the end reads beyond the last step
        rows = [_numbers(stage, step, n_steps) for step in range(n_steps + WARM_UP + 1)]
        # optimiser scalars, by step
        self.plan = [torch.tensor(column, device=device) for column in zip(*rows, strict=True)]
        self.now = [column[0].clone() for column in self.plan]
        self.optimizer = stage.optimizer.make(self.parameters.values(), self.now)
        self.rounded = self._rounded()
        self.ema_decay = stage.ema
        averaged = _floats(model) if stage.ema else {}
        self.ema = {name: tensor.detach().clone() for name, tensor in averaged.items()}
        self.averages = _in_order(self._updated(), averaged, self.ema)
        self.totals: dict[str, Tensor] = {}  # sums of the losses since the last read_means
        self.unread = 0
        # first step with a loss that is not finite; -1: none
        self.first_bad = torch.full((), -1, dtype=torch.long, device=device)
        self.losses = self._losses
        self.forward = torch.compile(self._forward, dynamic=False) if on_cuda else self._forward
        self.update = torch.compile(self._update, dynamic=False) if on_cuda else self._update
        self.started = False  # whether a compiled step has run
        self.graph: torch.cuda.CUDAGraph | None = None
        self.n_images = stage.batch // team.size
        self.routing = self.describe_routing()

    def _rounded(self) -> list[RoundedWeight]:
        """Find the weights whose rounded copies the step uses. Several processes average gradients as they are.

        A task with a `backward` of its own expects to find the gradients, or to leave them, in `.grad`.
        """
        own_backward = type(self.task).backward is not Task.backward
        if not self.casts or own_backward or self.team.size > 1 or not isinstance(self.optimizer, OneProgramAdam):
            return []
        return rounded_weights(self.model, self.parameters.values())

    def _updated(self) -> list[nn.Parameter]:
        """List the trained parameters as the optimiser does: rounded ones last. Then one kernel also averages them."""
        last = [weight.parameter for weight in self.rounded]
        held = {id(parameter) for parameter in last}
        return [parameter for parameter in self.parameters.values() if id(parameter) not in held] + last

    @property
    def casts(self) -> bool:
        """Whether autocast rounds to bfloat16; never for a task that learns without backpropagation."""
        return self.device.type == "cuda" and self.precision == "bfloat16" and self.backpropagates

    def __call__(self) -> None:
        if self.team.size > 1:
            self._together()
        elif self.device.type == "cuda":
            self.prepare()
            self.graph.replay()
        else:
            self.once()
        self.unread += 1

    @property
    def unprepared(self) -> bool:
        """Whether the step still has to be compiled and captured as a CUDA graph."""
        return self.device.type == "cuda" and self.team.size == 1 and self.graph is None

    def prepare(self) -> None:
        """Compile and capture the step, if that is left to do; weights and random state stay as they are."""
        if self.unprepared:
            capture(self)

    def read_means(self) -> dict[str, float]:
        """Return the mean of each loss since the last call. Waits for the device."""
        means = {name: total.item() / self.unread for name, total in self.totals.items()}
        for total in self.totals.values():
            total.zero_()
        self.unread = 0
        return means

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint needs in addition to the model's own."""
        tensors = {"counter": self.counter, "unread": torch.tensor(self.unread)}
        tensors |= self._copied()
        tensors |= {f"totals/{name}": tensor for name, tensor in self.totals.items()}
        for name, parameter in self.parameters.items():
            for kind, tensor in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{name}/{kind}"] = tensor
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the state of a checkpoint. Call it before the first step: a captured graph keeps tensor addresses."""
        assert self.graph is None
        self.counter.copy_(tensors["counter"])
        self.look_up()
        self.unread = int(tensors["unread"].reshape(()))
        sums = {name: tensor for name, tensor in tensors.items() if name.startswith("totals/")}
        for name, tensor in sums.items():
            _check(name, tensor, torch.Size())
        self.totals = {name.removeprefix("totals/"): x.to(self.device, torch.float64) for name, x in sums.items()}
        for name, tensor in self._copied().items():
            _check(name, tensors[name], tensor.shape)
            tensor.copy_(tensors[name])
        known = {key.rpartition("/")[2] for key in tensors if key.startswith("optimizer/")}
        for name, parameter in self.parameters.items():
            prefix = f"optimizer/{name}/"
            kinds = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            held = self.optimizer.state[parameter]
            # all of it or, for a parameter that never had a gradient, none; ours is there from the start
            if missing := sorted((known if kinds else held.keys()) - kinds.keys()):
                raise LookupError(f"no {prefix}{missing[0]}")
            for kind, tensor in kinds.items():
                _check(prefix + kind, tensor, parameter.shape, torch.Size())  # PyTorch's count of steps is one
                if kind not in held:  # PyTorch's optimisers create their state in the first step
                    # same memory layout as the parameter, so that channels-last stays channels-last
                    held[kind] = (
                        torch.empty_like(parameter)
                        if tensor.shape == parameter.shape
                        else tensor.to(self.device, torch.float32, copy=True)  # its fused update takes no other
                    )
                held[kind].copy_(tensor)
        self.round_weights()

    def _copied(self) -> dict[str, Tensor]:
        """Name the weight averages and, where hard images are chosen, the losses that this and the next epoch need."""
        found = {f"ema/{name}": tensor for name, tensor in self.ema.items()}
        if self.batches.hard:
            found |= {"images/known": self.batches.known, "images/losses": self.batches.losses}
        return found

    def everything(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes."""
        return self.state() | {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}

    def _losses(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the losses, and the gradients if the task learns without backpropagation."""
        if not self.backpropagates:
            with torch.no_grad():
                return self.task.updates(self.model, batch)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.casts):
            if self.batches.hard:
                losses, each = self.task.losses_per_image(self.model, batch)
                self.batches.note(self.counter % self.batches.n_steps, each)
                return losses, {}
            if self.scheduled:
                return self.task.losses_at(self.model, batch, self.counter, self.n_steps), {}
            return self.task.losses(self.model, batch), {}

    def _forward(self) -> tuple[Batch, dict[str, Tensor], dict[str, Tensor]]:
        """Make the batch and compute its losses. Compiled, indexing and augmentation are a kernel or two."""
        batch = self.batches.at(self.counter % self.batches.n_steps)
        return batch, *self.losses(batch)

    def gradients(self) -> dict[str, Tensor]:
        """Run forward and backward on the current batch only; the benchmark times this part separately."""
        self.zero_grad()
        with many_programs(), in_place(self.rounded):
            batch, losses, gradients = self.forward()
        if self.backpropagates:
            self.task.backward(self.model, batch, losses)
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient
        return losses

    def zero_grad(self) -> None:
        """Let go of all gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        for weight in self.rounded:
            weight.low.grad = None

    def _together(self) -> None:
        # random draws inside the network differ between processes; the generator stored in a checkpoint stays equal
        seed = int(torch.randint(2**62, ()))
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []), naming_the_lost():
            torch.manual_seed(seed + self.team.rank)
            if self.compiles and not self.started:
                first_step(self, Before(self))
            else:
                self.once()

    @torch.no_grad()
    def _of_all(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Average gradients and losses over all processes, in one all-reduce."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        parts = [*gradients, *losses.values()]
        wholes = mean_of_all(torch.cat([part.detach().reshape(-1) for part in parts])).split(
            [part.numel() for part in parts]
        )
        for gradient, whole in zip(gradients, wholes, strict=False):
            gradient.copy_(whole.view_as(gradient))
        return {name: whole.squeeze(0) for name, whole in zip(losses, wholes[len(gradients) :], strict=True)}

    def once(self) -> None:
        """Run one step, without a graph."""
        losses = self.gradients()
        if self.team.size > 1:
            losses = self._of_all(losses)
        self.apply({name: value.detach() for name, value in losses.items()})

    def apply(self, losses: dict[str, Tensor]) -> None:
        """Apply the gradients in `.grad`, add up the losses and go on to the next step."""
        for name in losses:
            if name not in self.totals:
                self.totals[name] = torch.zeros((), dtype=torch.float64, device=self.device)
        # not before: load_state refuses a checkpoint that lacks a state which the optimiser has already
        if self.rounded and not any(self.optimizer.rounded):
            self.optimizer.take(self.rounded)
        with many_programs():
            self.update(losses)

    @torch.no_grad()
    def _update(self, losses: dict[str, Tensor]) -> None:
        """Apply the optimiser, update the weight average, count. Compiled, it reads and writes each weight once."""
        self.optimizer.step()
        for held, weights in self.averages:
            torch._foreach_lerp_(held, weights, 1 - self.ema_decay)
        bad = ~losses["loss"].isfinite() & (self.first_bad < 0)
        sums = [self.totals[name] for name in losses]
        after = [total + value for total, value in zip(sums, losses.values(), strict=True)]
        after += [torch.where(bad, self.counter, self.first_bad), *self._numbers_at(self.counter + 1)]
        # compiled, this is one small kernel, not one or several for each scalar. Its parts run at the same time and in
        # place, so none may write what another reads: the counter comes afterwards
        torch._foreach_copy_([*sums, self.first_bad, *self.now], after)
        self.counter += 1

    def _numbers_at(self, step: Tensor) -> list[Tensor]:
        """Look up the optimiser's scalars of a step."""
        return [column.index_select(0, step.view(1)).squeeze(0) for column in self.plan]

    def look_up(self) -> None:
        """Set the optimiser's scalars to those of the step to come; from then on `update` does."""
        # a damaged checkpoint may count anything, and is refused when its steps are compared
        at = self.counter.clamp(0, len(self.plan[0]) - 1)
        for number, value in zip(self.now, self._numbers_at(at), strict=True):
            number.copy_(value)

    def round_weights(self) -> None:
        """Round the weights that the step reads rounded, after anything but a step has changed them."""
        for weight in self.rounded:
            weight.round()

    def describe_routing(self) -> str:
        """Describe the routing backend of this step in words, for the log."""
        compiled = self.compiles
        layers = [layer for layer in self.model.modules() if isinstance(layer, ROUTED)]
        with torch.autocast("cuda", torch.bfloat16, enabled=self.casts):
            backends = sorted({layer.backend_here(compiled, self.n_images) for layer in layers})
        words = [(" and ".join(backends) or "none") + (" inside the compiled step" if compiled else "")]
        words += ["one CUDA graph"] if compiled and self.team.size == 1 else []
        words += [f"{self.team.size} processes"] if self.team.size > 1 else []
        return ", ".join(words)


def _check(name: str, tensor: Tensor, *wanted: torch.Size) -> None:
    """Refuse a tensor that a copy would broadcast, or that holds no floats."""
    if tensor.shape not in wanted or not tensor.is_floating_point():
        raise RuntimeError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not floats {list(wanted[0])}")


def _numbers(stage: Stage, step: int, n_steps: int) -> tuple[float, ...]:
    """Compute the optimiser's scalars (learning rate, momentum) for one step."""
    at = min(step, n_steps - 1)
    return stage.optimizer.numbers(
        step, stage.learning_rate * stage.schedule(at, n_steps), stage.schedule.momentum(at, n_steps)
    )


def _floats(model: nn.Module) -> dict[str, Tensor]:
    """Select the tensors to average: floating point, and not listed in a layer's NOT_AVERAGED."""
    kept = {
        f"{path}.{name}".lstrip(".")
        for path, layer in model.named_modules()
        for name in getattr(layer, "NOT_AVERAGED", ())
    }
    # the parameters themselves, not views of them: a compiled update then knows what the optimiser has just written
    tensors = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and name not in kept}


def _in_order(
    parameters: Iterable[nn.Parameter], averaged: dict[str, Tensor], ema: dict[str, Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Pair averages with what they average: first the trained parameters, in the optimiser's order, then the rest.

    TorchInductor makes one kernel of two updates of lists only where the lists match one by one.
    """
    names = {id(tensor): name for name, tensor in averaged.items()}
    trained = dict.fromkeys(names[id(parameter)] for parameter in parameters if id(parameter) in names)
    rest = [name for name in averaged if name not in trained]
    return [([ema[name] for name in part], [averaged[name] for name in part]) for part in (trained, rest) if part]
