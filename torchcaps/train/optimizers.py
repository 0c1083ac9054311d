"""Optimisers: settings that are stored with a run, and the optimisers built from them.

Everything that changes from step to step depends on the step number alone. It is computed before the first step, on the
host and in double precision. The device looks the values up by its step counter, so a CUDA graph can replay the update.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adam import adam

from torchcaps.train.rounded import RoundedWeight


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba 2014), as implemented in PyTorch, with L2 regularisation.

    Adam divides by the size of a gradient. So where a loss is zero, as a margin's can be, even a tiny `l2` shrinks
    weights by up to the learning rate in each step.

    Example:

        Adam(beta2=0.99).beta1  # 0.9
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l2: float = 0.0  # this fraction of a weight is added to its gradient; not of biases and other vectors

    def numbers(self, step: int, rate: float, momentum: float) -> tuple[float]:
        """Return the scalars of a step, counted from 0: the learning rate. PyTorch's Adam counts steps itself."""
        if momentum != 1:
            raise ValueError(
                f"Adam keeps beta1 as it is and the schedule multiplies it by {momentum:.4g}; "
                "use RAdam, or another schedule"
            )
        return (rate,)

    def make(self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]]) -> torch.optim.Adam:
        """Build the optimiser; `now` are device tensors that hold the scalars of the current step."""
        groups, betas = self._groups(list(parameters)), (self.beta1, self.beta2)
        if now[0].is_cuda:
            return OneProgramAdam(groups, now[0], betas, self.epsilon, foreach=True, capturable=True)
        return torch.optim.Adam(groups, now[0], betas, self.epsilon, fused=True)

    def _groups(self, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
        """Split off what `l2` leaves alone."""
        if not self.l2:
            return [{"params": parameters}]
        shrunk, rest = ([each for each in parameters if (each.ndim > 1) == wide] for wide in (True, False))
        groups = {"params": shrunk, "weight_decay": self.l2}, {"params": rest}
        return [group for group in groups if group["params"]]


@dataclass(frozen=True, kw_only=True)
class RAdam:
    """Rectified Adam (Liu et al. 2019): the first steps omit the division by the root of the second moment.

    Example:

        RAdam(beta1=0.95).epsilon  # 1e-08
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def numbers(self, step: int, rate: float, momentum: float) -> tuple[float, float, float]:
        """Return 1 - beta1 and the learning rates of the adaptive and the plain update, one of which is 0.

        Paper's symbols: `length` is rho_t, `rectified` is r_t. The bias correction assumes that beta1 always had its
        current value, as in PyTorch's RAdam.
        """
        beta1, count = self.beta1 * momentum, step + 1
        power = self.beta2**count
        longest = 2 / (1 - self.beta2) - 1
        length = longest - 2 * count * power / (1 - power)
        unbiased = rate / (1 - beta1**count)
        if length <= 5:
            return 1 - beta1, 0.0, unbiased
        rectified = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
        return 1 - beta1, unbiased * rectified * (1 - power) ** 0.5, 0.0

    def make(self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]]) -> "RectifiedAdam":
        return RectifiedAdam(parameters, now, self)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with momentum and L2 regularisation, as implemented in PyTorch (no dampening).

    Example:

        SGD(momentum=0.9, l2=1e-4).l2  # 0.0001
    """

    momentum: float = 0.9
    l2: float = 0.0  # this fraction of a weight is added to its gradient

    def numbers(self, step: int, rate: float, momentum: float) -> tuple[float, float]:
        """Return the learning rate and the momentum of a step."""
        return rate, self.momentum * momentum

    def make(self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]]) -> "MomentumSGD":
        return MomentumSGD(parameters, now, self)


class OneProgramAdam(torch.optim.Adam):
    """PyTorch's Adam, compiled as one program with what follows it, such as an average of the weights.

    PyTorch's own step ends a compiled program before and after itself, so the average would read all weights again.

    Example:

        layer = torch.nn.Linear(2, 1)
        adam = OneProgramAdam(layer.parameters(), lr=1e-3, foreach=True)
        layer(torch.ones(1, 2)).sum().backward()
        adam.step()
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rounded: list[list[tuple[RoundedWeight, list[Tensor]]]] = [[] for _ in self.param_groups]

    def take(self, weights: Iterable[RoundedWeight]) -> None:
        """Update these weights by the gradients of their rounded copies, and write the copies."""
        groups = [{id(parameter) for parameter in group["params"]} for group in self.param_groups]
        for weight in weights:
            state = self.state[weight.parameter]
            if not state:  # as PyTorch creates it for a parameter with a gradient
                state["step"] = torch.zeros((), device=weight.parameter.device)
                state |= {kind: torch.zeros_like(weight.parameter) for kind in ("exp_avg", "exp_avg_sq")}
            kept = [state[kind] for kind in ("exp_avg", "exp_avg_sq", "step")]
            (group,) = (number for number, held in enumerate(groups) if id(weight.parameter) in held)
            self.rounded[group].append((weight, kept))

    @torch.no_grad()
    def step(self) -> None:
        for group, rounded in zip(self.param_groups, self.rounded, strict=True):
            parts: list[list[Tensor]] = [[] for _ in range(6)]  # parameters, gradients and what is kept of them
            self._init_group(group, *parts)
            parameters, gradients, means, squares, _, counts = parts
            for weight, (mean, square, count) in rounded:
                gradient = weight.gradient()
                if gradient is not None:
                    parameters.append(weight.parameter)
                    gradients.append(gradient)
                    means.append(mean)
                    squares.append(square)
                    counts.append(count)
            settings = {name: group[name] for name in ("amsgrad", "lr", "weight_decay", "eps", "maximize")}
            settings |= {"foreach": group["foreach"], "capturable": group["capturable"]}
            adam(*parts, beta1=group["betas"][0], beta2=group["betas"][1], **settings)
            # one by one: TorchInductor then writes each copy in the kernel that writes its weight
            for weight, _ in rounded:
                weight.round()


class _OnDevice:
    """Base of the updates below. Scalars of the step are tensors: a captured step cannot change a Python number."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]], settings: SGD | RAdam
    ) -> None:
        self.parameters, self.now, self.settings = list(parameters), list(now), settings

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none
        for parameter in self.parameters:
            parameter.grad = None


class MomentumSGD(_OnDevice):
    """Update of `SGD`. PyTorch's SGD takes the momentum as a Python number, which a captured step cannot change.

    Example:

        weight = torch.nn.Parameter(torch.tensor(1.0))
        optimizer = SGD(momentum=0.9).make([weight], now=torch.tensor([0.5, 0.9]))
        weight.backward()
        optimizer.step()
        weight.item()  # 0.5
    """

    def __init__(self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]], settings: SGD) -> None:
        super().__init__(parameters, now, settings)
        self.sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.state = {parameter: {"sum": held} for parameter, held in zip(self.parameters, self.sums, strict=True)}

    @torch.no_grad()
    def step(self) -> None:
        rate, kept = self.now
        parts = zip(self.parameters, self.sums, strict=True)
        used = [(parameter, parameter.grad, held) for parameter, held in parts if parameter.grad is not None]
        parameters, gradients, sums = (list(parts) for parts in zip(*used, strict=True))
        torch._foreach_mul_(sums, kept)
        torch._foreach_add_(sums, gradients)
        torch._foreach_add_(sums, parameters, alpha=self.settings.l2)
        torch._foreach_sub_(parameters, torch._foreach_mul(sums, rate))


class RectifiedAdam(_OnDevice):
    """Update of `RAdam`. PyTorch's RAdam takes beta1 as a Python number, which a captured step cannot change.

    Example:

        weight, settings = torch.nn.Parameter(torch.tensor(1.0)), RAdam()
        optimizer = settings.make([weight], now=torch.tensor(settings.numbers(step=0, rate=0.5, momentum=1.0)))
        weight.backward()
        optimizer.step()
        round(weight.item(), 3)  # 0.5
    """

    def __init__(self, parameters: Iterable[nn.Parameter], now: Sequence[Float[Tensor, ""]], settings: RAdam) -> None:
        super().__init__(parameters, now, settings)
        self.means, self.squares = ([torch.zeros_like(parameter) for parameter in self.parameters] for _ in range(2))
        parts = zip(self.parameters, self.means, self.squares, strict=True)
        self.state = {parameter: {"mean": mean, "square": square} for parameter, mean, square in parts}

    @torch.no_grad()
    def step(self) -> None:
        fresh, divided_rate, plain_rate = self.now
        held = zip(self.parameters, self.means, self.squares, strict=True)
        used = [
            (parameter, parameter.grad, mean, square) for parameter, mean, square in held if parameter.grad is not None
        ]
        parameters, gradients, means, squares = (list(parts) for parts in zip(*used, strict=True))
        news = torch._foreach_sub(gradients, means)
        torch._foreach_mul_(news, fresh)
        torch._foreach_add_(means, news)
        torch._foreach_mul_(squares, self.settings.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - self.settings.beta2)
        spread = torch._foreach_sqrt(squares)
        torch._foreach_add_(spread, self.settings.epsilon)
        for rate, moves in ((divided_rate, torch._foreach_div(means, spread)), (plain_rate, means)):
            torch._foreach_sub_(parameters, torch._foreach_mul(moves, rate))
