"""The ladder: keep the most active capsules, predict their parents, and ask each parent to predict its parts again.

Jeong, Lee, Kim 2019, "Ladder Capsule Network", sections 3 and 4. One letter beyond the usual: `k` a kept capsule, one
of the row `i`. Paper's symbols: U_K `Kept.poses`, code vector c `Kept.code`, f_j|i `transforms`, p_j|i `shares`, s_j
`pose_sum`, f_reg `regressors`, u_reg `regressed`, |u_reg - U_K|² `misfit`, gamma `SHARPNESS`, d_j the activity of a
parent. The code and which capsules are kept have no gradient: a capsule that is not kept learns from `code_loss` alone.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.ops.squash import EPS, length, squash
from torchcaps.ops.weight_product import weight_product

SHARPNESS = 5.12  # the paper's: exp(-0.01 · 5.12) = 0.95


class Made(NamedTuple):
    """Factors of transforms or regressors [n r m e], which the last layer of a net makes: hidden · weight + bias.

    `n` a net, `r` one of the rows that it is asked for (classes that share it, and images), `h` a hidden unit,
    `m` = (k d), `f` = (h e).
    """

    hidden: Float[Tensor, "n r h"]
    weight: Float[Tensor, "n m f"]
    bias: Float[Tensor, "n m e"]

    def matrices(self) -> Float[Tensor, "n r m e"]:
        """Form all matrices: with 70 kept capsules and ten classes 0.36 MB of float32 per image, up or down alone."""
        weight = self.weight.unflatten(2, (self.hidden.shape[2], -1)).transpose(1, 2).flatten(2)  # [n h (m e)]
        product = weight_product(self.hidden, weight)
        return (product + self.bias.flatten(1).unsqueeze(1).to(product.dtype)).unflatten(-1, self.bias.shape[1:])


ORDERS = ("index", "activity")


class Kept(NamedTuple):
    """Capsules that are left, in the order that was asked for.

    By "index", as they stood: the code alone then says which row is which. By "activity", the most active first: then
    only `index` says it.

    Example:

        kept = keep_most_active(torch.randn(6, 8), torch.tensor([0.1, 0.9, 0.2, 0.8, 0.3, 0.7]), n_kept=3)
        kept.index.tolist(), kept.code.tolist()  # ([1, 3, 5], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    """

    poses: Float[Tensor, "*b k d"]
    code: Float[Tensor, "*b i"]  # 1 for a capsule that is kept, 0 for the others and for those that are not there
    index: Int64[Tensor, "*b k"]  # rising in the order "index"
    weights: Float[Tensor, "*b k"]  # weight of each row in means: 1, or 0 where fewer capsules are there


def keep_most_active(
    poses: Float[Tensor, "*b i d"], activity: Float[Tensor, "*b i"], n_kept: int, order: str = "index"
) -> Kept:
    """Keep the `n_kept` most active capsules (section 3.1). Ties go to the first in the row, on any device.

    A capsule whose activity is 0 is not there: if it fills a row that is left over, it has no weight and no code.
    `order` of the kept ones: their place in the row ("index"), or the most active first ("activity").
    """
    if order not in ORDERS:
        raise ValueError(f"keep_most_active: order must be one of {', '.join(ORDERS)}; got {order!r}")
    n = activity.shape[-1]
    if poses.shape[:-1] != activity.shape:
        raise ValueError(
            f"keep_most_active wants one activity per capsule, {list(poses.shape[:-1])}; got {list(activity.shape)}"
        )
    if not 1 <= n_kept <= n:
        raise ValueError(f"keep_most_active: {n_kept} of {n} capsules cannot be kept; ask for 1 to {n}")
    with torch.no_grad():
        # least activity of the kept; a value does not depend on ties
        least = activity.topk(n_kept, sorted=False).values.amin(-1, keepdim=True)
        more, equal = activity > least, activity == least
        room = n_kept - more.sum(-1, keepdim=True)
        mask = more | (equal & (equal.cumsum(-1) <= room))
        # Every capsule is written to a place of its own, the kept in front: ONNX forbids to write one twice, and where
        # NaN is kept nowhere every index still lies in the row, as a diverged run has to end by its loss, not by an
        # illegal address. Not by searchsorted, of which TorchInductor of PyTorch 2.11 makes Triton code that does not
        # compile, where a sum follows.
        rank = mask.cumsum(-1)
        capsule = torch.arange(n, device=activity.device).expand_as(rank)
        place = torch.where(mask, rank - 1, rank[..., -1:] + capsule - rank)
        index = torch.zeros_like(place).scatter(-1, place, capsule)[..., :n_kept]
        if order == "activity":
            index = index.gather(-1, activity.gather(-1, index).sort(dim=-1, descending=True, stable=True).indices)
    rows = poses.gather(-2, index.unsqueeze(-1).expand(*index.shape, poses.shape[-1]))
    there = activity != 0  # NaN is there, so that a diverged run ends by its loss
    return Kept(rows, (mask & there).to(poses.dtype), index, there.gather(-1, index).to(rows.dtype))


def propagate(
    poses: Float[Tensor, "*b k d"], transforms: Float[Tensor, "*b j k d e"], shares: Float[Tensor, "*b j k"]
) -> Float[Tensor, "*b j e"]:
    """Sum the kept capsules' predictions of each parent, each by its share (Eq. 1).

    For transforms that are there already, and what `propagate_made` is tested against, by which the layer does it.
    """
    weighted = shares.unsqueeze(-1) * poses.unsqueeze(-3)  # [*b j k d]
    # multiplied and summed: a compiler then reads the transforms, the largest thing here, once
    return (transforms * weighted.unsqueeze(-1)).sum((-3, -2))


def propagate_made(weighted: Float[Tensor, "n r m"], made: Made) -> Float[Tensor, "n r e"]:
    """`propagate`, given poses times shares, without forming the transforms.

    Both orders of sum_h sum_m weighted_m hidden_h weight_mhe multiply as often. With the poses first what lies between
    is [h e] for an image and class, not [k d e]: 2,048 for 8,960 in the paper's network with K = 70.
    """
    mixed = weight_product(weighted, made.weight).unflatten(-1, (made.hidden.shape[2], -1))  # [n r h e]
    mixed = mixed.to(weighted.dtype)
    return (mixed * made.hidden.unsqueeze(-1)).sum(-2) + torch.bmm(weighted, made.bias).to(weighted.dtype)


def regress_made(pose_sum: Float[Tensor, "n r e"], made: Made) -> Float[Tensor, "n r m"]:
    """`regress` before its squash, without forming the regressors: the order of `propagate_made`, reversed."""
    outer = (made.hidden.unsqueeze(-1) * pose_sum.unsqueeze(-2)).flatten(2)  # [n r f]
    by_weight, by_bias = weight_product(outer, made.weight, transposed=True), torch.bmm(pose_sum, made.bias.mT)
    # back from autocast first: a sum of bfloat16 is rounded again
    return by_weight.to(pose_sum.dtype) + by_bias.to(pose_sum.dtype)


def predictions(poses: Float[Tensor, "*b k d"], transforms: Float[Tensor, "*b j k d e"]) -> Float[Tensor, "*b j k e"]:
    """Predictions of each parent by each kept capsule (paper: ũ_j|i)."""
    return (transforms * poses[..., None, :, :, None]).sum(-2)


def regress(pose_sum: Float[Tensor, "*b j e"], regressors: Float[Tensor, "*b j k d e"]) -> Float[Tensor, "*b j k d"]:
    """Predict the kept capsules from each parent, every row squashed by itself (Eq. 2 and 3).

    The layer does it by `regress_made`.
    """
    return squash((regressors * pose_sum[..., None, None, :]).sum(-1))


def misfit(
    regressed: Float[Tensor, "*b j k d"], poses: Float[Tensor, "*b k d"], weights: Float[Tensor, "*b k"]
) -> Float[Tensor, "*b j"]:
    """Mean squared distance between the poses and a parent's prediction, over the rows that count (under Eq. 4)."""
    return _mean((regressed - poses.unsqueeze(-3)).square().sum(-1), weights)


def mean_distance(
    regressed: Float[Tensor, "*b j k d"], poses: Float[Tensor, "*b k d"], weights: Float[Tensor, "*b k"]
) -> Float[Tensor, "*b j"]:
    """`misfit` without the square, as the authors' withdrawn file has it."""
    return _mean(length(regressed - poses.unsqueeze(-3)), weights)


def disagreement(
    predicted: Float[Tensor, "*b j k e"],
    pose_sum: Float[Tensor, "*b j e"],
    shares: Float[Tensor, "*b j k"],
    weights: Float[Tensor, "*b k"],
) -> Float[Tensor, "*b j"]:
    """Distance of the predictions from their mean: the other direction, which the paper leaves to later work.

    Both are squashed, so that it has the range of `misfit`; `pose_sum` is the sum by `shares`, the mean is that divided
    by the sum of shares.
    """
    mean = squash(pose_sum / (shares.sum(-1, keepdim=True) + EPS))
    return _mean((squash(predicted) - mean.unsqueeze(-2)).square().sum(-1), weights)


def ladder_activity(
    misfit: Float[Tensor, "*b j"], sharpness: float | Float[Tensor, ""] = SHARPNESS
) -> Float[Tensor, "*b j"]:
    """Activity of a parent (Eq. 4): 1 if it predicts all of its parts exactly."""
    return torch.exp(-sharpness * misfit)


def code_loss(code: Float[Tensor, "*b i"], activity: Float[Tensor, "*b i"]) -> Float[Tensor, "*b"]:
    """Draw the kept to an activity of 1 and the others to 0: |c - A|² (section 4), one number per image."""
    return _differences("code_loss", code, activity).square().sum(-1)


def mean_code_loss(code: Float[Tensor, "*b i"], activity: Float[Tensor, "*b i"]) -> Float[Tensor, "*b"]:
    """Mean of |c - A|, hundreds of times weaker: the withdrawn file's loss."""
    return _differences("mean_code_loss", code, activity).abs().mean(-1)


def distance_loss(
    distances: Float[Tensor, "*b j"], present: Float[Tensor, "*b j"], *, far: float = 0.8
) -> Float[Tensor, "*b"]:
    """Draw the true class to distance 0 and the others to `far` or more: the withdrawn file's loss."""
    if distances.shape != present.shape:
        raise ValueError(
            f"distance_loss wants distances and present alike, got {list(distances.shape)} and {list(present.shape)}"
        )
    return (present * distances.square() + (1 - present) * (far - distances).clamp(min=0).square()).sum(-1)


def _mean(rows: Float[Tensor, "*b j k"], weights: Float[Tensor, "*b k"]) -> Float[Tensor, "*b j"]:
    """Mean over the rows that count; there is one at least."""
    weights = weights.unsqueeze(-2)
    return (rows * weights).sum(-1) / weights.sum(-1).clamp(min=1)


def _differences(loss: str, code: Tensor, activity: Tensor) -> Tensor:
    if code.shape != activity.shape:
        raise ValueError(
            f"{loss} wants a code for every capsule, got {list(code.shape)} for activities {list(activity.shape)}"
        )
    return code.detach() - activity
