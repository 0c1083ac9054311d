"""Learning rate schedules over one stage."""

from dataclasses import dataclass
from math import cos, pi


class Schedule:
    """Base class: calling it with a step and the number of steps returns the factor of the learning rate.

    Example:

        schedule = Cosine(warmup=0.1)
        [round(schedule(step, 100), 2) for step in (0, 10, 55, 99)]  # [0.09, 1.0, 0.5, 0.0]
    """

    def momentum(self, step: int, n_steps: int) -> float:
        """Return the factor of beta1 (or of SGD's momentum); 1 by default."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """Smooth exponential decay by `decay` every `every` steps, down to a floor (the CapsNet authors' schedule).

    Example:

        Exponential(decay=0.5, every=10)(step=20, n_steps=100)  # 0.25
    """

    decay: float = 0.96
    every: int = 2000
    floor: float = 1e-3  # relative to the initial learning rate

    def __call__(self, step: int, n_steps: int) -> float:
        return max(self.decay ** (step / self.every), self.floor)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Linear warm-up over a fraction `warmup` of the steps, then half a cosine down to `floor`.

    Example:

        round(Cosine()(step=50, n_steps=100), 2)  # 0.5
    """

    warmup: float = 0.0
    floor: float = 0.0

    def __call__(self, step: int, n_steps: int) -> float:
        rise = self.warmup * n_steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return self.floor + (1 - self.floor) * (1 + cos(pi * (step - rise) / max(n_steps - rise, 1))) / 2


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Linear rise, then half a cosine back; beta1 moves the opposite way (Heinsen 2019, section 4.2).

    Example:

        schedule = OneCycle(warmup=0.1)
        round(schedule(10, 100), 2), round(schedule.momentum(10, 100), 2)  # (1.0, 0.9)
    """

    start: float = 0.02  # factor in the first and the last step
    warmup: float = 0.1  # fraction of the steps until the learning rate is highest
    low: float = 0.9  # factor of beta1 where the learning rate is highest

    def __call__(self, step: int, n_steps: int) -> float:
        return self.start + (1 - self.start) * self._height(step, n_steps)

    def momentum(self, step: int, n_steps: int) -> float:
        return 1 + (self.low - 1) * self._height(step, n_steps)

    def _height(self, step: int, n_steps: int) -> float:
        """Compute the position in the cycle: 0 in the first and last step, 1 at the highest learning rate."""
        rise = self.warmup * n_steps
        if step < rise:
            return step / rise
        return (1 + cos(pi * min((step - rise) / max(n_steps - 1 - rise, 1), 1))) / 2
