"""Ladder capsules: a capsule's activity is how well its pose reconstructs its parts (Jeong 2019)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, vectors
from torchcaps.layers.code_nets import FAINT, CodeNets, MatrixLayer
from torchcaps.layers.initialisation import check_init
from torchcaps.layers.inputs import check_dtype
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import length, squash, unsquash
from torchcaps.ops.ladder import (
    ORDERS,
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

# sources of a parent's activity
AGREEMENTS = {
    "down": "parents regress the poses of their parts: the paper's ladder",
    "up": "parts agree in their predictions of a parent",
    "both": "mean of both misfits",
    "none": "no ladder: length of the squashed pose",
}
CODES = ("kept", "constant")
POSE = 3.0  # length of a pose at initialisation
# Inputs of length 0.32 to 0.9 that nothing predicts give activities of 0.8 to 0.15; from 0.3 on would need another law.
ALIVE_SHARPNESS = 2.3


@dataclass(frozen=True, kw_only=True)
class LadderForm:
    """Options in which the paper's text and the authors' withdrawn code differ.

    Example:

        layer = LadderCapsules(64, 10, 8, 16, n_kept=16, form=LadderForm(squared=False))
        list(layer(torch.rand(4, 64, 8) / 4).poses.shape)  # [4, 10, 16]
    """

    hidden: tuple[int, ...] = (3, 2, 1)  # hidden sizes of the transform networks, in units of `width`
    share_hidden: tuple[int, ...] = (3, 2, 1)  # hidden sizes of the share networks, in units of `n_kept`
    from_direction: bool = False  # regress from the direction of the pose, not from the pose
    squared: bool = True  # squared distances in the misfit
    start: str = "told"  # initialisation of the networks, one of `STARTS`


class Laddered(NamedTuple):
    """Parents and the intermediate results that led to them.

    Example:

        layer = LadderCapsules(64, 10, 8, 16, n_kept=16)
        list(layer.ladder(torch.rand(4, 64, 8) / 4).kept.index.shape)  # [4, 16]
    """

    capsules: Capsules
    kept: Kept
    misfit: Float[Tensor, "*b j"]  # 1 - activity where there is no ladder
    regressed: Float[Tensor, "*b j k d"] | None  # kept poses as each parent regresses them; None without a ladder


class LadderCapsules(nn.Module):
    """Ladder of the `n_kept` most active inputs; networks turn the code into transforms. [*b i d] -> [*b j e].

    `agreement`: source of the activity, one of `AGREEMENTS`. `shared`: one network of each kind for all outputs, with
    an embedding per output. `width`: unit of the hidden layers, d_in · d_out in the paper. `code` "constant": the
    networks do not see which inputs were kept. `order` of the kept inputs: by index or by activity.
    Call `tell` with a first batch before training, as `ClassifyLadder` does; without it the layer may never learn.
    `init` "alive": a sharpness that `calibrate` fits to the inputs; "paper": the paper's.

    Example:

        layer = LadderCapsules(n_in=64, n_out=10, d_in=8, d_out=16, n_kept=16)
        list(layer(torch.rand(4, 64, 8) / 4).poses.shape)  # [4, 10, 16]
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
        order: str = "index",
        form: LadderForm = LadderForm(),  # noqa: B008, frozen
        init: str = "alive",
    ) -> None:
        super().__init__()
        check_init("LadderCapsules", init)
        check_sizes("LadderCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out)
        n_kept = n_in if n_kept is None else n_kept
        _check(n_in, n_kept, agreement, code, order)
        self.n_in, self.n_out, self.d_in, self.d_out, self.n_kept = n_in, n_out, d_in, d_out, n_kept
        self.agreement, self.code, self.order, self.form = agreement, code, order, form
        # no unused regressors: parameters that never get a gradient break distributed training
        kinds = ("up", "down") if agreement in ("down", "both") else ("up",)
        n_nets, n_copies = (1, n_out) if shared else (n_out, 1)
        unit = width or d_in * d_out
        sizes = [unit * n for n in form.hidden]
        nets = {"n_copies": n_copies, "n_active": n_kept, "start": form.start}
        # all kinds and outputs side by side, except the last layer, whose gradients would have to be concatenated
        self.hidden = CodeNets(n_in, sizes, len(kinds) * n_nets, linear=False, **nets)
        last = (n_nets, sizes[-1], n_kept * d_in, d_out)
        self.makers = nn.ModuleDict({kind: MatrixLayer(*last, start=form.start) for kind in kinds})
        self.shares = CodeNets(n_in, (*(n_kept * n for n in form.share_hidden), n_kept), n_nets, **nets)
        if form.start == "told":
            self._start()
        self.register_buffer("sharpness", torch.tensor(ALIVE_SHARPNESS) if init == "alive" else None)

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        return self.ladder(capsules).capsules

    def ladder(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Laddered:
        """Compute the outputs with intermediate results: the code for its loss, the rest for figures."""
        kept = self._keep(capsules)
        told = kept.code if self.code == "kept" else torch.full_like(kept.code, self.n_kept / self.n_in)
        up, *down = self._made(told)
        shares = self.shares(told).flatten(0, 1).movedim(0, -2)  # [*b j k]: nets and copies index the outputs
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
        activity = ladder_activity(off, SHARPNESS if self.sharpness is None else self.sharpness)
        return Laddered(Capsules(activity.unsqueeze(-1) * direction(pose_sum), activity), kept, off, regressed)

    def extra_repr(self) -> str:
        kept = f"{self.n_kept} of {self.n_in}x{self.d_in}"
        return f"{kept} -> {self.n_out}x{self.d_out}, agreement={self.agreement}, code={self.code}"

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "b i d"]) -> Capsules:
        """Initialise every output to regress these inputs (`tell`), and fit the sharpness; return the outputs."""
        kept = self._keep(capsules).poses
        if not kept.isfinite().all() or not kept.any():
            raise ValueError(
                "LadderCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        self.tell(capsules)
        if self.agreement == "none":
            up = self.makers["up"]
            return scale_until_alive(
                self, capsules, lambda factor: (up.weight.mul_(factor), up.bias.mul_(factor)), n_tries=200
            )
        if self.sharpness is not None:
            # upper median: it becomes the median of the activities, which fall with the misfit
            off = -(-self.ladder(capsules).misfit).median().clamp(max=-EPS)
            self.sharpness.copy_(-math.log(first_activity(self.n_out)) / off)
        return self(capsules)

    @torch.no_grad()
    def tell(self, capsules: Capsules | Float[Tensor, "b i d"]) -> None:
        """Initialise every output to regress the mean of the kept poses of these inputs; call once before training.

        Randomly initialised regressors predict noise, and predicting zeros is the fastest way to a smaller misfit. Then
        every activity ends at `first_activity`, where gradients cancel, and squash gives short vectors almost none.
        With this initialisation the misfits start as the variance of the kept poses.
        """
        if "down" not in self.makers or self.form.start != "told" or self.makers["down"].bias.any():
            return  # no regressors, another initialisation, or called before
        kept = self._keep(capsules)
        mean = kept.poses.sum(0) / len(kept.poses)  # [k d]
        spread = misfit(mean.expand(len(kept.poses), 1, -1, -1), kept.poses, kept.weights).mean()
        squares = mean.square().sum(-1).sum().clamp(min=EPS)
        wanted = -math.log(first_activity(self.n_out)) / SHARPNESS
        wanted = wanted if self.form.squared else wanted**2  # squares are compared here
        # shorter than the mean if poses hardly vary: nine of ten classes push an output that starts more active down,
        # until it predicts the opposite, where no gradient is left
        room = (wanted - spread).clamp(min=0) * self.n_kept / squares
        told = unsquash((1 - room.sqrt()).clamp(min=0.3) * mean)
        # up: a pose along one direction, the same for all outputs, with shares of 1/2; down: the means from that pose
        along = mean.new_full((self.d_out,), self.d_out**-0.5)
        ways = mean * (2 * POSE / squares), told / self._told_from()
        for maker, rows in zip(self.makers.values(), ways, strict=True):
            maker.bias.copy_(rows.flatten().unsqueeze(-1) * along)

    @torch.no_grad()
    def _start(self) -> None:
        """Draw random weights beside the biases of `tell`: as long a pose upwards, a tenth of the length downwards."""
        spread = self.hidden.sizes[-1] ** -0.5 / FAINT  # inverse of a hidden layer's output length
        pose = 1.0 if self.agreement == "none" else POSE  # squashed, 1 is an activity of 1/2
        stds = pose * (8 / (self.d_out * self.n_kept)) ** 0.5, 0.1 / self._told_from() * self.d_in**-0.5
        for maker, std in zip(self.makers.values(), stds, strict=False):
            maker.weight.normal_(std=std * spread)

    def _told_from(self) -> float:
        """Return the initial length of the vector that poses are regressed from."""
        return 1.0 if self.form.from_direction else POSE

    def _keep(self, capsules: Capsules | Tensor) -> Kept:
        poses = vectors("LadderCapsules", capsules, self.n_in, self.d_in)
        check_dtype("LadderCapsules", "poses", poses, next(self.parameters()).dtype)
        activity = capsules.activity if isinstance(capsules, Capsules) else length(poses)
        return keep_most_active(poses, activity, self.n_kept, self.order)

    def _made(self, code: Float[Tensor, "*b i"]) -> list[Made]:
        """Return transforms and, if there are any, regressors, in factored form."""
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
        """Reshape to (network, row), which enumerates (output, batch) for separate and for shared networks."""
        return rearrange(values, "... j f -> j (...) f").reshape(*made.hidden.shape[:2], values.shape[-1])

    def _to_outputs(self, rows: Float[Tensor, "n r f"], batch: torch.Size) -> Float[Tensor, "*b j f"]:
        return rows.reshape(self.n_out, *batch, rows.shape[-1]).movedim(0, -2)


def first_activity(n_out: int) -> float:
    """Return the activity where the margin loss's gradients of one class and of all the others cancel.

    One output is pulled up by 2 (0.9 - a), n_out - 1 are pushed down by 0.5 · 2 (a - 0.1); at least 0.2, to be alive.
    """
    others = 0.5 * (n_out - 1)
    return max(round((0.9 + 0.1 * others) / (1 + others), 3), 0.2)


def _check(n_in: int, n_kept: int, agreement: str, code: str, order: str) -> None:
    if not 1 <= n_kept <= n_in:
        room = f"give n_kept from 1 to {n_in}, or None for all"
        raise ValueError(f"LadderCapsules: {n_kept} of {n_in} capsules cannot be kept; {room}")
    if agreement not in AGREEMENTS:
        raise ValueError(f"LadderCapsules: agreement must be one of {', '.join(AGREEMENTS)}; got {agreement!r}")
    if code not in CODES:
        raise ValueError(f"LadderCapsules: code must be one of {', '.join(CODES)}; got {code!r}")
    if order not in ORDERS:
        raise ValueError(f"LadderCapsules: order must be one of {', '.join(ORDERS)}; got {order!r}")
