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
    regressed: Float[Tensor, "*b j k d"] | None  # kept poses as each parent says; None without a ladder


class LadderCapsules(nn.Module):
    """Ladder of the `n_kept` most active inputs; networks turn the code into transforms. [*b i d] -> [*b j e].

    `agreement`: source of the activity, one of `AGREEMENTS`. `shared`: one network of a kind for all outputs, with an
    embedding for each output. `width`: the unit of its hidden layers, d_in · d_out in the paper. `code` constant: the
    networks do not see which inputs were kept.
    Call `tell` with a first batch before training, as `ClassifyLadder` does; without it the layer may never learn.
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
        form: LadderForm = LadderForm(),  # noqa: B008, frozen
    ) -> None:
        super().__init__()
        n_kept = n_in if n_kept is None else n_kept
        _check(n_in, n_kept, agreement, code)
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
        last = (n_nets, sizes[-1], n_kept * d_in, d_out)
        self.makers = nn.ModuleDict({kind: MatrixLayer(*last, start=form.start) for kind in kinds})
        self.shares = CodeNets(n_in, (*(n_kept * n for n in form.share_hidden), n_kept), n_nets, **nets)
        if form.start == "told":
            self._start()

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        return self.ladder(capsules).capsules

    def ladder(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Laddered:
        """Compute the outputs with all that led to them: the code for its loss, the rest for figures."""
        capsules = Capsules.of(capsules)
        check_capsules("LadderCapsules", capsules.poses, self.n_in, self.d_in)
        kept = self._keep(capsules)
        told = kept.code if self.code == "kept" else torch.full_like(kept.code, self.n_kept / self.n_in)
        up, *down = self._made(told)
        shares = self.shares(told).flatten(0, 1).movedim(0, -2)  # [*b j k]: nets and copies are outputs
        shares = torch.sigmoid(shares.to(kept.poses.dtype))
        pose_sum = self._propagate(kept.poses, up, shares)
        if self.agreement == "none":
            parents = Capsules.of(squash(pose_sum))
            return Laddered(parents, kept, 1 - parents.activity, None)
        misfits, regressed = [], None
        if down:
            regressed = self._regress(direction(pose_sum) if self.form.from_direction else pose_sum, *down)
            misfits.append((misfit if self.form.squared else mean_distance)(regressed, kept.poses, kept.weights))
        if self.agreement in ("up", "both"):
            predicted = predictions(kept.poses, self._formed(up, kept.poses.shape[:-2]))
            misfits.append(disagreement(predicted, pose_sum, shares, kept.weights))
        off = sum(misfits) / len(misfits)
        activity = ladder_activity(off, SHARPNESS)
        return Laddered(Capsules(activity.unsqueeze(-1) * direction(pose_sum), activity), kept, off, regressed)

    def extra_repr(self) -> str:
        kept = f"{self.n_kept} of {self.n_in}x{self.d_in}"
        return f"{kept} -> {self.n_out}x{self.d_out}, agreement={self.agreement}, code={self.code}"

    @torch.no_grad()
    def tell(self, capsules: Capsules | Float[Tensor, "b i d"]) -> None:
        """Let every output tell, to begin with, the mean of what these inputs keep: to be called once, before training.

        Regressors that start at random predict noise, and the fastest way to a smaller misfit is to predict zeros. Then
        every output is 0.245 active, where the pull on one class and the push on nine cancel, and squash leaves short
        vectors next to no gradient. Here misfits start as the variance of the kept poses instead.
        """
        if "down" not in self.makers or self.form.start != "told" or self.makers["down"].bias.any():
            return  # nobody regresses, another start is wanted, or it was told already
        capsules = Capsules.of(capsules)
        check_capsules("LadderCapsules", capsules.poses, self.n_in, self.d_in)
        kept = self._keep(capsules)
        mean = kept.poses.mean(0)  # [k d]
        spread = misfit(mean.unsqueeze(0), kept.poses, kept.weights).mean()
        squares = mean.square().sum().clamp(min=EPS)
        wanted = -math.log(AT_FIRST) / SHARPNESS
        wanted = wanted if self.form.squared else wanted**2  # what is compared here are squares
        # shorter than the means where poses hardly vary: an output that starts more active is pushed down by nine
        # classes of ten, until it predicts the opposite, where no gradient is left
        room = (wanted - spread).clamp(min=0) * self.n_kept / squares
        told = unsquash((1 - room.sqrt()).clamp(min=0.3) * mean)
        # up: a pose along one direction, the same for all outputs, by shares of 1/2; down: the means from such a pose
        along = mean.new_full((self.d_out,), self.d_out**-0.5)
        ways = mean * (2 * POSE / squares), told / self._told_from()
        for maker, rows in zip(self.makers.values(), ways, strict=True):
            maker.bias.copy_(rows.flatten().unsqueeze(-1) * along)

    @torch.no_grad()
    def _start(self) -> None:
        """Set random weights beside what `tell` adds: a pose as long again, and a tenth on the way down."""
        spread = self.hidden.sizes[-1] ** -0.5 / FAINT  # what a hidden layer gives is so long
        pose = 1.0 if self.agreement == "none" else POSE  # squashed it is the activity, a half
        stds = pose * (8 / (self.d_out * self.n_kept)) ** 0.5, 0.1 / self._told_from() * self.d_in**-0.5
        for maker, std in zip(self.makers.values(), stds, strict=False):
            maker.weight.normal_(std=std * spread)

    def _told_from(self) -> float:
        """Length, at first, of the vector that poses are regressed from."""
        return 1.0 if self.form.from_direction else POSE

    def _keep(self, capsules: Capsules) -> Kept:
        return keep_most_active(capsules.poses, capsules.activity, self.n_kept)

    def _made(self, code: Float[Tensor, "*b i"]) -> list[Made]:
        """Transforms and, where they are asked for, regressors, not formed yet."""
        hidden = self.hidden(code).chunk(len(self.makers))
        return [maker(part) for maker, part in zip(self.makers.values(), hidden, strict=True)]

    def _propagate(
        self,
        poses: Float[Tensor, "*b k d"],
        up: Made,
        shares: Float[Tensor, "*b j k"],
    ) -> Float[Tensor, "*b j e"]:
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


def _check(n_in: int, n_kept: int, agreement: str, code: str) -> None:
    if not 1 <= n_kept <= n_in:
        room = f"give n_kept from 1 to {n_in}, or None for all"
        raise ValueError(f"LadderCapsules: {n_kept} of {n_in} capsules cannot be kept; {room}")
    if agreement not in AGREEMENTS:
        raise ValueError(f"LadderCapsules: agreement must be one of {', '.join(AGREEMENTS)}; got {agreement!r}")
    if code not in CODES:
        raise ValueError(f"LadderCapsules: code must be one of {', '.join(CODES)}; got {code!r}")
