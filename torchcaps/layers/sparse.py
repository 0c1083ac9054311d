"""Sparsity mask over capsules: those with the most routing support win (Rawlinson 2018, section 2)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.ops.sparse import FREQUENCIES, SHARPNESS, Winning, after_batch, boosted_ranks, count_wins, rank_mask
from torchcaps.runtime.distributed import sum_of_all


class RankMask(nn.Module):
    """Mask by the rank of the support: 1 for the first capsule, decreasing for the next, 0 for most. [*b j] -> [*b j].

    In training it counts wins over all processes, and every `boost_every` batches boosts capsules that win too rarely.
    `frequencies`: target range of a capsule's win frequency. `sharpness` 0 keeps all capsules, `boost_step` 0 disables
    boosting. `gain` above 0: boosts follow the wins of every batch instead (`steered_boost`).

    Example:

        mask = RankMask(16).eval()
        mask(torch.arange(16.0)).argmax().item()  # 15
    """

    NOT_AVERAGED = "frequency", "boost"  # statistics of the run: weight averaging copies them unchanged

    def __init__(
        self,
        n: int,
        *,
        sharpness: float = SHARPNESS,
        frequencies: tuple[float, float] = FREQUENCIES,
        boost_step: float = 0.1,
        boost_every: int = 50,
        decay: float = 0.99,
        gain: float = 0.0,
    ) -> None:
        super().__init__()
        low, high = frequencies
        if not 0 <= low < high <= 1:
            raise ValueError(f"RankMask: frequencies are (at least, at most) within 0 and 1; got {tuple(frequencies)}")
        if boost_every < 1:
            raise ValueError(f"RankMask: boosts change every so many batches, 1 or more; got boost_every={boost_every}")
        if gain < 0:
            raise ValueError(
                f"RankMask: a gain below 0 would boost those that win most; give 0, for steps, or more; got {gain}"
            )
        self.n, self.sharpness = n, sharpness
        self.rule = {"step": boost_step, "every": boost_every, "frequencies": (low, high), "decay": decay, "gain": gain}
        self.register_buffer("frequency", torch.zeros(n))
        self.register_buffer("boost", torch.ones(n))
        self.register_buffer("n_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, support: Float[Tensor, "*b j"]) -> Float[Tensor, "*b j"]:
        """Compute the mask; in training, also count the wins of the batch."""
        mask = self.mask(support)
        if self.training:
            self._count(support)
        return mask

    def mask(self, support: Float[Tensor, "*b j"]) -> Float[Tensor, "*b j"]:
        """Compute the mask with the current boosts, without counting wins."""
        if support.shape[-1:] != (self.n,):
            raise ValueError(
                f"RankMask expects the support of {self.n} capsules, [..., {self.n}]; got {list(support.shape)}"
            )
        return rank_mask(self.ranks(support), self.sharpness, dtype=support.dtype)

    def ranks(self, support: Float[Tensor, "*b j"]) -> Int64[Tensor, "*b j"]:
        """Rank capsules by their boosted support."""
        return boosted_ranks(support, self.boost)

    def extra_repr(self) -> str:
        if self.rule["gain"]:
            return f"{self.n}, sharpness={self.sharpness:g}, gain={self.rule['gain']:g}"
        (low, high), step, every = self.rule["frequencies"], self.rule["step"], self.rule["every"]
        return f"{self.n}, sharpness={self.sharpness:g}, frequencies={low:g} to {high:g}, boost={step:g} every {every}"

    def _count(self, support: Float[Tensor, "*b j"]) -> None:
        wins = sum_of_all(count_wins(self.ranks(support)))  # integers: identical on every process
        for buffer, value in zip(self._statistics(), after_batch(self._statistics(), wins, **self.rule), strict=True):
            buffer.copy_(value)  # in place: a CUDA graph holds their addresses

    def _statistics(self) -> Winning:
        return Winning(self.frequency, self.boost, self.n_batches)
