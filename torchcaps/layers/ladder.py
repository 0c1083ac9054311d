"""Capsules whose activity is how well they tell their parts again (Jeong 2019)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules, check_capsules
from torchcaps.layers.code_nets import FAINT, CodeNets, MatrixLayer
from torchcaps.ops import squash, unsquash
from torchcaps.ops.ladder import (
    SHARPNESS,
    Kept,
    Made,
    disagreement,
    drop_below,
    keep_most_active,
    ladder_activity,
    mean_distance,
    misfit,
    predictions,
    propagate_made,
    regress_made,
)  # fmt: skip
from torchcaps.ops.squash import EPS, direction

AGREEMENTS = {
    "down": "parents tell their parts again: the paper's ladder",
    "up": "parts predict the same of a parent",
    "both": "the mean of both misfits",
    "none": "no ladder: a parent is as active as its squashed pose is long",
}
CODES = ("kept", "constant")
SOFTNESS = 0.1  # of a threshold that is learnt
AT_FIRST = 0.245  # activity: with margin loss and ten classes the pull on one and the push on nine cancel there
POSE = 3.0  # length of a first pose


@dataclass(frozen=True, kw_only=True)
class LadderForm:
    """Where the paper's text and the authors' withdrawn file differ."""

    hidden: tuple[int, ...] = (3, 2, 1)  # sizes of the nets of transforms, in units of `width`
    share_hidden: tuple[int, ...] = (3, 2, 1)  # and of those of shares, in units of the kept capsules
    from_direction: bool = False  # regress from the direction of the pose alone, not from the pose
    squared: bool = True  # distances in the misfit
    start: str = "told"  # of the nets, one of `STARTS`


class Laddered(NamedTuple):
    """Parents, and what they were made of."""

    capsules: Capsules
    kept: Kept
    misfit: Float[Tensor, "*b j"]  # 1 - activity where there is no ladder
    regressed: Float[Tensor, "*b j k d"] | None  # what each parent says of the kept capsules; None where it says nothing


class LadderCapsules(nn.Module):
    """The `n_kept` most active inputs, and which they are, decide everything: transforms, shares and regressors are functions of the
    code, made by networks for all outputs at once. [*b i d] -> [*b j e].

    `agreement`: what the activity is made of, one of `AGREEMENTS`. `shared`: one network of a kind for all outputs, told by an
    embedding which output it is asked for. `width`: the unit of its hidden layers, d_in · d_out in the paper. `code` constant: the
    networks are not told what was kept. `threshold`: of the kept only those count that are so active; learnt with `learn_threshold`.
    Before it is trained, `tell` it what a first batch has: `ClassifyLadder` does, a training loop of your own has to. Weights that are
    loaded have been told already, and it works without; but then it may never learn to tell anything.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        n_kept: int | None = None,
        *,
        agreement: str = "down",
        shared: bool = False,
        width: int | None = None,
        code: str = "kept",
        threshold: float | None = None,
        learn_threshold: bool = False,
        form: LadderForm = LadderForm(),  # noqa: B008, frozen
    ) -> None:
        super().__init__()
        n_kept = n_in if n_kept is None else n_kept
        _check(n_in, n_kept, agreement, code, threshold, learn_threshold)
        self.n_in, self.n_out, self.d_in, self.d_out, self.n_kept = n_in, n_out, d_in, d_out, n_kept
        self.agreement, self.code, self.form = agreement, code, form
        # no regressors where nobody regresses: parameters that never get a gradient break distributed training
        kinds = ("up", "down") if agreement in ("down", "both") else ("up",)
        n_nets, n_copies = (1, n_out) if shared else (n_out, 1)
        unit = width or d_in * d_out
        sizes = [unit * n for n in form.hidden]
        nets = {"n_copies": n_copies, "n_active": n_kept, "start": form.start}
        # all kinds and outputs side by side but for the last layer, whose gradients would have to be brought together
        self.hidden = CodeNets(n_in, sizes, len(kinds) * n_nets, linear=False, **nets)
        self.makers = nn.ModuleDict({kind: MatrixLayer(n_nets, sizes[-1], n_kept * d_in, d_out, start=form.start) for kind in kinds})
        self.shares = CodeNets(n_in, (*(n_kept * n for n in form.share_hidden), n_kept), n_nets, **nets)
        if form.start == "told":
            self._start()
        self.softness = SOFTNESS if learn_threshold else 0.0
        if learn_threshold:
            self.threshold = nn.Parameter(torch.logit(torch.tensor(float(threshold))))  # its logit: it stays within 0 and 1
        else:
            self.register_buffer("threshold", None if threshold is None else torch.tensor(float(threshold)))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        return self.ladder(capsules).capsules

    def ladder(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Laddered:
        """The same with all that led to it: the code for its loss, the rest for figures and the curious."""
        capsules = Capsules.of(capsules)
        check_capsules("LadderCapsules", capsules.poses, self.n_in, self.d_in)
        kept = self._keep(capsules)
        told = kept.code if self.code == "kept" else torch.full_like(kept.code, self.n_kept / self.n_in)
        up, *down = self._made(told)
        shares = self.shares(told).flatten(0, 1).movedim(0, -2)  # [*b j k]: nets and copies are outputs
        shares = torch.sigmoid(shares.to(kept.poses.dtype)) * kept.weights.unsqueeze(-2)
        pose_sum = self._propagate(kept.poses, up, shares)
        if self.agreement == "none":
            parents = Capsules.of(squash(pose_sum))
            return Laddered(parents, kept, 1 - parents.activity, None)
        misfits, regressed = [], None
        if down:
            regressed = self._regress(direction(pose_sum) if self.form.from_direction else pose_sum, *down)
            misfits.append((misfit if self.form.squared else mean_distance)(regressed, kept.poses, kept.weights))
        if self.agreement in ("up", "both"):
            misfits.append(disagreement(predictions(kept.poses, self._formed(up, kept.poses.shape[:-2])), pose_sum, shares, kept.weights))
        off = sum(misfits) / len(misfits)
        activity = ladder_activity(off, SHARPNESS)
        return Laddered(Capsules(activity.unsqueeze(-1) * direction(pose_sum), activity), kept, off, regressed)

    def lowest(self) -> float | None:
        """The activity that a kept capsule must reach to count."""
        return None if self.threshold is None else self._threshold().item()

    def extra_repr(self) -> str:
        kept = f"{self.n_kept} of {self.n_in}x{self.d_in}"
        return f"{kept} -> {self.n_out}x{self.d_out}, agreement={self.agreement}, code={self.code}"

    @torch.no_grad()
    def tell(self, capsules: Capsules | Float[Tensor, "b i d"]) -> None:
        """Let every output tell, to begin with, the mean of what these inputs keep: to be called once, before training.

        Regressors that start at random tell noise, and the fastest way to a smaller misfit is then to tell nothing and to keep
        nothing long: every output 0.245 active, where the pull on one class and the push on nine cancel. A vector that is told
        short has next to no gradient (squash), so nets stay there. Here misfits start as the variance of what is kept, and what is
        learnt first is how outputs differ.
        """
        if "down" not in self.makers or self.form.start != "told" or self.makers["down"].bias.any():
            return  # nobody regresses, another start is wanted, or it was told already
        capsules = Capsules.of(capsules)
        check_capsules("LadderCapsules", capsules.poses, self.n_in, self.d_in)
        kept = self._keep(capsules)
        weights = kept.weights.unsqueeze(-1)
        mean = (kept.poses * weights).sum(0) / weights.sum(0).clamp(min=1)  # [k d]
        spread = misfit(mean.unsqueeze(0), kept.poses, kept.weights).mean()
        often = kept.weights.mean(0)  # that a row counts: 1, but where a threshold decides
        squares = (often * mean.square().sum(-1)).sum().clamp(min=EPS)
        wanted = -math.log(AT_FIRST) / SHARPNESS
        wanted = wanted if self.form.squared else wanted**2  # what is compared here are squares
        # shorter than they are, where they hardly vary: whoever starts more active is pushed down by nine classes of ten, and below zero
        # tells the opposite, where no gradient is left
        room = (wanted - spread).clamp(min=0) * often.sum() / squares
        told = unsquash((1 - room.sqrt()).clamp(min=0.3) * mean)
        # a pose along one direction, the same for all outputs, from means by shares of 1/2; and the means again from such a pose
        along = mean.new_full((self.d_out,), self.d_out**-0.5)
        for maker, rows in zip(self.makers.values(), (mean * (2 * POSE / squares), told / self._told_from()), strict=True):
            maker.bias.copy_(rows.flatten().unsqueeze(-1) * along)

    @torch.no_grad()
    def _start(self) -> None:
        """Beside what `tell` adds, at random: a pose as long again, from inputs of about 0.7 and shares of 1/2, and down a tenth."""
        spread = self.hidden.sizes[-1] ** -0.5 / FAINT  # what a hidden layer gives is so long
        pose = 1.0 if self.agreement == "none" else POSE  # squashed it is the activity, a half
        stds = pose * (8 / (self.d_out * self.n_kept)) ** 0.5, 0.1 / self._told_from() * self.d_in**-0.5
        for maker, std in zip(self.makers.values(), stds, strict=False):
            maker.weight.normal_(std=std * spread)

    def _told_from(self) -> float:
        """How long at first is what parts are told from."""
        return 1.0 if self.form.from_direction else POSE

    def _keep(self, capsules: Capsules) -> Kept:
        kept = keep_most_active(capsules.poses, capsules.activity, self.n_kept)
        return kept if self.threshold is None else drop_below(kept, capsules.activity, self._threshold(), self.softness)

    def _threshold(self) -> Float[Tensor, ""]:
        return torch.sigmoid(self.threshold) if self.softness else self.threshold

    def _made(self, code: Float[Tensor, "*b i"]) -> list[Made]:
        """Transforms and, where they are asked for, regressors, not formed yet."""
        return [maker(hidden) for maker, hidden in zip(self.makers.values(), self.hidden(code).chunk(len(self.makers)), strict=True)]

    def _propagate(self, poses: Float[Tensor, "*b k d"], up: Made, shares: Float[Tensor, "*b j k"]) -> Float[Tensor, "*b j e"]:
        weighted = (shares.unsqueeze(-1) * poses.unsqueeze(-3)).flatten(-2)
        return self._to_outputs(propagate_made(self._to_nets(weighted, up), up), poses.shape[:-2])

    def _regress(self, pose_sum: Float[Tensor, "*b j e"], down: Made) -> Float[Tensor, "*b j k d"]:
        rows = self._to_outputs(regress_made(self._to_nets(pose_sum, down), down), pose_sum.shape[:-2])
        return squash(rows.unflatten(-1, (self.n_kept, self.d_in)))

    def _formed(self, made: Made, batch: torch.Size) -> Float[Tensor, "*b j k d e"]:
        return self._to_outputs(made.matrices().flatten(2), batch).unflatten(-1, (self.n_kept, self.d_in, self.d_out))

    def _to_nets(self, values: Float[Tensor, "*b j f"], made: Made) -> Float[Tensor, "n r f"]:
        """Nets and rows are (output, batch), whether an output has a net of its own or a copy of the one for all."""
        return rearrange(values, "... j f -> j (...) f").reshape(*made.hidden.shape[:2], values.shape[-1])

    def _to_outputs(self, rows: Float[Tensor, "n r f"], batch: torch.Size) -> Float[Tensor, "*b j f"]:
        return rows.reshape(self.n_out, *batch, rows.shape[-1]).movedim(0, -2)


def _check(n_in: int, n_kept: int, agreement: str, code: str, threshold: float | None, learn_threshold: bool) -> None:
    if not 1 <= n_kept <= n_in:
        raise ValueError(f"LadderCapsules: {n_kept} of {n_in} capsules cannot be kept; give n_kept from 1 to {n_in}, or None for all")
    if agreement not in AGREEMENTS:
        raise ValueError(f"LadderCapsules: agreement must be one of {', '.join(AGREEMENTS)}; got {agreement!r}")
    if code not in CODES:
        raise ValueError(f"LadderCapsules: code must be one of {', '.join(CODES)}; got {code!r}")
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(f"LadderCapsules: threshold is an activity between 0 and 1; got {threshold}")
    if learn_threshold and threshold is None:
        raise ValueError("LadderCapsules: a learnt threshold has to start somewhere; give threshold too")
