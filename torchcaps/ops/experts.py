"""Products of expert capsules (Hauser 2019): cosine agreement, energy, mixing up and down, contrastive statistics.

Paper's symbols: input capsules x_i `poses`, weights W_ij `weight` (here [i j d e], applied as x W), couplings c_ij,
collective predictions z_j `sums`, squashed capsules `parents`, "on" ||x_j|| = 1. Couplings are constants wherever a
derivative is taken, of the weights as of the poses: Eq. 18 pulls them out of its sum over all visible states.
The decoder (U_ji, e_ji, section 4.1) is the same layer upside down, so that every function here serves it too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from torchcaps.ops.squash import direction, length, squash

Poses = Float[Tensor, "*b i d"]
Parents = Float[Tensor, "*b j e"]
Weight = Float[Tensor, "i j d e"]
Couplings = Float[Tensor, "*b i j"]
AXES = {"inputs": -2, "outputs": -1}  # axis of the couplings over which they sum to 1
STARTS = ("zero", "lengths")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule that finds the couplings. The paper leaves iterations and first logits open, and sums over the inputs.

    Example:

        phase = agreement_routing(torch.randn(32, 8), torch.randn(32, 10, 8, 16), Rule(n_iters=1, over="outputs"))
        float(phase.couplings[0].sum().round(decimals=3))  # 1.0
    """

    n_iters: int = 3
    over: str = "inputs"  # or "outputs": over what the couplings sum to 1
    start: str = (
        "zero"  # first logits; "lengths": the logarithm of each input's length, so that silent capsules get no share
    )

    def check(self) -> None:
        if self.over not in AXES or self.start not in STARTS:
            choices = f"over one of {', '.join(AXES)}, from one of {', '.join(STARTS)}"
            raise ValueError(f"couplings sum to 1 {choices}; got {self.over!r} from {self.start!r}")
        if self.n_iters < 1:
            raise ValueError(f"routing by agreement needs at least one iteration, got n_iters={self.n_iters}")


PLAIN = Rule()


class AgreementStep(NamedTuple):
    """One iteration: the logits, the couplings they make, and the weighted sums of votes.

    Example:

        steps = list(agreement_steps(torch.randn(32, 8), torch.randn(32, 10, 8, 16)))
        len(steps), list(steps[-1].sums.shape)  # (3, [10, 16])
    """

    logits: Couplings
    couplings: Couplings
    sums: Parents


class Phase(NamedTuple):
    """Tensors from which one half of the contrastive update is computed.

    Example:

        weight = torch.randn(32, 10, 8, 16)
        data = agreement_routing(torch.randn(4, 32, 8), weight)
        list(contrast(data, sweep(data, weight)).shape)  # [32, 10, 8, 16]
    """

    poses: Poses
    sums: Parents
    couplings: Couplings


def agreement_steps(poses: Poses, weight: Weight, rule: Rule = PLAIN) -> Iterator[AgreementStep]:
    """Yield every iteration: softmax of the logits, which then gain the cosine between each vote and the sum of all."""
    rule.check()
    votes = torch.einsum("...id,ijde->...ije", poses, weight)
    directions = direction(votes)
    logits = votes.new_zeros(votes.shape[:-1])  # [*b i j]
    if rule.start == "lengths":
        logits = logits + length(poses).log().unsqueeze(-1)
    for _ in range(rule.n_iters):
        couplings = logits.softmax(AXES[rule.over])
        sums = (couplings.unsqueeze(-1) * votes).sum(-3)
        yield AgreementStep(logits, couplings, sums)
        logits = logits + (directions * direction(sums).unsqueeze(-3)).sum(-1)


def agreement_routing(poses: Poses, weight: Weight, rule: Rule = PLAIN) -> Phase:
    """Last iteration: the phase that the data make. A single iteration shares alike."""
    *_, last = agreement_steps(poses, weight, rule)
    return Phase(poses, last.sums, last.couplings)


def mix_up(poses: Poses, weight: Weight, couplings: Couplings) -> Parents:
    """Mix inputs into parents: z_j = sum over i of c_ij W_ij x_i (Eq. 3)."""
    return torch.einsum("...ij,...ije->...je", couplings, torch.einsum("...id,ijde->...ije", poses, weight))


def mix_down(parents: Parents, weight: Weight, couplings: Couplings) -> Poses:
    """Go back with the same couplings and the transposed weights: z_i = sum over j of c_ij W_ij^T x_j."""
    return torch.einsum("...ij,...ijd->...id", couplings, torch.einsum("...je,ijde->...ijd", parents, weight))


def log_strength(sums: Parents, n_plain: int = 0) -> Float[Tensor, "*b j"]:
    """Evidence for a capsule being on: log |z_j|² in Eq. 7.

    The last `n_plain` dimensions r of a capsule may lie in R^n instead of on the sphere: hidden Gaussians of unit
    variance, as in exponential family harmoniums (the paper's reference 10). Summed out, they add |r|² / 2.
    """
    round_part, plain = _parted(sums, n_plain)
    square = _square(round_part)
    # 0 · log 0 would be NaN in the energy; no higher floor, since the first samples of the paper's weights are as faint
    # as 1e-27
    strength = square.clamp(min=torch.finfo(square.dtype).tiny).log()
    return strength + _square(plain) / 2 if n_plain else strength  # onnxruntime cannot add up nothing


def energy(sums: Parents, on: Float[Tensor, "*b j"], n_plain: int = 0) -> Float[Tensor, "*b"]:
    """Minus the strength of all capsules that are on (Eq. 7)."""
    return -(log_strength(sums, n_plain) * on).sum(-1)


def log_marginal(sums: Parents, n_plain: int = 0) -> Float[Tensor, "*b"]:
    """Logarithm of the sum over all on/off patterns: Eq. 10 without Z."""
    return softplus(log_strength(sums, n_plain)).sum(-1)


def on_probability(sums: Parents, n_plain: int = 0) -> Float[Tensor, "*b j"]:
    """Probability of being on (Eq. 12); without plain dimensions the length of the squashed capsule."""
    return log_strength(sums, n_plain).sigmoid()


def firing(sums: Parents, on: Float[Tensor, "*b j"] | None = None, n_plain: int = 0) -> Parents:
    """Capsules that the layer below sees: directions at the length `on`, their probability if none is given.

    Without plain dimensions and without `on` this is `squash`. Plain dimensions are sent as far as the capsule is on.
    """
    on = (on_probability(sums, n_plain) if on is None else on).unsqueeze(-1).to(sums.dtype)
    round_part, plain = _parted(sums, n_plain)
    return torch.cat([on * direction(round_part), on * plain], -1)


def in_ball(fired: Parents, n_plain: int = 0) -> Parents:
    """Map plain dimensions r to r / (1 + |r|²)^½, shorter than 1. Without any, return the same capsules.

    A decoder reads and reconstructs these. Its rule is for squashed capsules: half of the update is z / (1 + |z|²)
    times a capsule, and with capsules ten times as long z overshoots its maximum, 1, beyond which a longer z has a
    smaller half and grows on.
    """
    if not n_plain:
        return fired
    round_part, plain = _parted(fired, n_plain)
    return torch.cat([round_part, plain * torch.rsqrt(1 + plain.square().sum(-1, keepdim=True))], -1)


def sample_on(sums: Parents, uniform: Float[Tensor, "*b j"], n_plain: int = 0) -> Bool[Tensor, "*b j"]:
    """Draw which capsules are on, by numbers drawn evenly from 0..1."""
    return uniform < on_probability(sums, n_plain)


def sweep(data: Phase, weight: Weight, uniform: Float[Tensor, "*b j"] | None = None, n_plain: int = 0) -> Phase:
    """Run Algorithm 1 from `data` to the model's half: fire, down, squash, up, by the couplings of `data`.

    With `uniform` on/off is drawn.
    """
    on = None if uniform is None else sample_on(data.sums, uniform, n_plain)
    poses = squash(mix_down(firing(data.sums, on, n_plain), weight, data.couplings))
    return Phase(poses, mix_up(poses, weight, data.couplings), data.couplings)


def chain(
    data: Phase, weight: Weight, uniforms: Sequence[Tensor | None], rule: Rule = PLAIN, n_plain: int = 0
) -> Phase:
    """Run as many sweeps as there are `uniforms` (CD-k), the couplings found anew after the first."""
    for number, uniform in enumerate(uniforms):
        start = agreement_routing(data.poses, weight, rule) if number else data
        data = sweep(start, weight, uniform, n_plain)
    return data


def statistics(phase: Phase, n_plain: int = 0) -> Weight:
    """Mean of 2 c_ij z_j x_i / (1 + |z_j|²) over the batch: half of Eq. 18, the slope of `log_marginal`."""
    return _correlate(phase, _slope(phase.sums, n_plain))


def contrast(data: Phase, model: Phase, n_plain: int = 0) -> Weight:
    """Update of the weights by Algorithm 1, before the learning rate: upwards in the likelihood of the data."""
    return statistics(data, n_plain) - statistics(model, n_plain)


def sparsity(phase: Phase, goal: float, n_plain: int = 0, mean_on: Float[Tensor, "j"] | None = None) -> Weight:
    """Update downwards in sum over j of (mean on-probability - goal)² / 2.

    Capsules that are on for too many inputs let go of the weakest.
    Not in the paper; known from restricted Boltzmann machines (Lee, Ekanadham, Ng 2008).
    `mean_on`: over a larger batch that this is a part of; None takes the mean over what is here.
    """
    on = on_probability(phase.sums, n_plain)
    excess = (on.reshape(-1, on.shape[-1]).mean(0) if mean_on is None else mean_on) - goal
    return -_correlate(phase, _slope(phase.sums, n_plain) * ((1 - on) * excess).unsqueeze(-1))


def _slope(sums: Parents, n_plain: int) -> Parents:
    """Derivative of `log_marginal`: the on-probability times that of the strength."""
    round_part, plain = _parted(sums, n_plain)
    less = torch.exp(-_square(plain) / 2).unsqueeze(-1)
    own = 2 * round_part / (less + _square(round_part).unsqueeze(-1))
    return torch.cat([own, on_probability(sums, n_plain).unsqueeze(-1) * plain], -1)


def _correlate(phase: Phase, slope: Parents) -> Weight:
    """Mean over the batch of couplings times poses times slope."""
    poses, slope, couplings = (part.reshape(-1, *part.shape[-2:]) for part in (phase.poses, slope, phase.couplings))
    shares = rearrange(couplings, "b i j -> i b j 1") * rearrange(slope, "b j e -> 1 b j e")
    total = rearrange(poses, "b i d -> i d b") @ rearrange(shares, "i b j e -> i b (j e)")
    return rearrange(total, "i d (j e) -> i j d e", j=slope.shape[-2]) / len(poses)


def _parted(sums: Parents, n_plain: int) -> tuple[Float[Tensor, "*b j r"], Float[Tensor, "*b j p"]]:
    """Split into dimensions on the sphere and plain ones."""
    return sums[..., : sums.shape[-1] - n_plain], sums[..., sums.shape[-1] - n_plain :]


def _square(vectors: Float[Tensor, "*b e"]) -> Float[Tensor, "*b"]:
    return vectors.square().sum(-1)
