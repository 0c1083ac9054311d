"""Dynamic routing on a CPU with a transform for every pair, by few large matrix products and without votes.

Votes are a small product for every input, a thousand in CapsNet. Where the library has no batched product that is a
thousand calls, each longer than its work. But a parent's weighted sum of votes is one product over inputs and pose
dimensions at once, of poses times couplings, and its agreement with all votes is its pose sent back through all
transforms, times the poses (as in `votes.agreements`). Only the logits [j b i] and the sums [j b e] of an iteration are
kept for the backward pass, and a few images are routed at a time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.autograd import full_precision, gradients_of_plain_form, plain_form_wanted, with_pull
from torchcaps.ops.couplings import CouplingRule
from torchcaps.ops.squash import squash
from torchcaps.ops.votes import has_transform_per_pair

MANY_CALLS = not torch.backends.mkl.is_available()  # for a batch of small products: MKL takes it in one
BLOCK_BYTES = 12 << 20  # size of the tensor [j b d i] made at once


class Settings(NamedTuple):
    """Arguments of the routing that are the same for all blocks."""

    n_out: int
    n_iters: int
    rule: CouplingRule


class Packed(NamedTuple):
    """Transforms as the products want them: towards the parents, and back."""

    down: Float[Tensor, "j di e"]
    back: Float[Tensor, "j e di"]


class Iteration(NamedTuple):
    """Tensors of one iteration that the backward pass needs."""

    logits: Float[Tensor, "j b i"]
    total: Float[Tensor, "j b e"]


def suits(poses: Float[Tensor, "b i d"], weight: Tensor, settings: Settings, most: int) -> bool:
    """Whether this way is faster, and one image takes at most so many bytes.

    Each pair needs a transform of its own, and [i j d] must not be much larger than the votes: four times as large took
    longer than they, twice as large did not.
    """
    each = MANY_CALLS and has_transform_per_pair(poses, weight) and not settings.rule.fixed
    return each and weight.shape[-2] <= 2 * weight.shape[-1] and _bytes_per_image(weight) <= most


def by_pairs(
    poses: Float[Tensor, "b i d"], weight: Float[Tensor, "i j d e"], bias, prior, settings: Settings, most: int
) -> tuple[Tensor, Tensor]:
    """Compute output poses and their sum over all iterations but the last."""
    # every block reads all transforms, as blocks of votes do
    block_bytes = min(most, max(BLOCK_BYTES, 3 * weight.nbytes // 4))
    n_images = max(1, block_bytes // max(1, _bytes_per_image(weight)))
    recorded = torch.is_grad_enabled()  # inside the function it is always off
    return _ByPairs.apply(poses, weight, bias, prior, settings, n_images, recorded)


def _bytes_per_image(weight: Tensor) -> int:
    return weight.nbytes // max(1, weight.shape[-1])


class _ByPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, poses, weight, bias, prior, settings: Settings, n_images: int, recorded: bool):
        packed, outputs, kept = _pack(weight), [], []
        for block in poses.split(n_images):
            made = _iterations(_turned(block), packed, bias, prior, settings)
            outputs.append(_outputs(made))
            if recorded and any(ctx.needs_input_grad):
                kept += [tensor for each in made for tensor in each]
        ctx.save_for_backward(poses, weight, bias, prior, *kept)
        ctx.settings, ctx.n_images = settings, n_images
        whole = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        ctx.mark_non_differentiable(*(whole[number] for number in sums_that_are_constant(settings)))
        return whole

    @staticmethod
    def backward(ctx, *grads):
        # asked for once: `torch.utils.checkpoint` makes them once
        poses, weight, bias, prior, *kept = ctx.saved_tensors
        inputs, wanted, settings = (poses, weight, bias, prior), ctx.needs_input_grad[:4], ctx.settings
        with full_precision():
            if plain_form_wanted(grads):
                found = gradients_of_plain_form(lambda *x: _whole(*x, settings), inputs, grads, wanted)
            else:
                made, n = [Iteration(*pair) for pair in zip(kept[::2], kept[1::2], strict=True)], settings.n_iters
                blocks = [made[at : at + n] for at in range(0, len(made), n)]
                found = _gradients(inputs, wanted, blocks, grads, settings, ctx.n_images)
        return *found, None, None, None


def sums_that_are_constant(settings: Settings) -> tuple[int, ...]:
    """Number the outputs without a gradient: a sum over no iterations has none, like the reference's."""
    return (1,) if settings.n_iters == 1 else ()


def _whole(poses, weight, bias, prior, settings: Settings) -> tuple[Tensor, Tensor]:
    return _outputs(_iterations(_turned(poses), _pack(weight), bias, prior, settings))


def _outputs(made: list[Iteration]) -> tuple[Float[Tensor, "b j e"], Float[Tensor, "b j e"]]:
    *earlier, last = (squash(each.total).transpose(0, 1) for each in made)
    return last, sum(earlier, torch.zeros_like(last))


def _iterations(
    poses: Float[Tensor, "b d i"], packed: Packed, bias: Tensor | None, prior: Tensor | None, settings: Settings
) -> list[Iteration]:
    shape = settings.n_out, len(poses), poses.shape[-1]
    logits = (poses.new_zeros(()) if prior is None else prior.T.unsqueeze(1)).expand(shape)
    made = []
    for t in range(settings.n_iters):
        total = _spread(settings.rule.share(logits, dim=0), poses) @ packed.down
        made.append(Iteration(logits, total if bias is None else total + bias.unsqueeze(1)))
        if t < settings.n_iters - 1:
            logits = logits + (_sent_back(squash(made[-1].total), packed, poses) * poses).sum(2)
    return made


def _gradients(
    inputs,
    wanted: Sequence[bool],
    blocks: Sequence[list[Iteration]],
    grads: Sequence[Tensor],
    settings: Settings,
    n_images: int,
) -> list[Tensor | None]:
    """Compute the gradients of poses, weight, bias and prior, each where it is wanted."""
    poses, weight, bias, prior = inputs
    packed, of_poses = _pack(weight), []
    parameters = zip((packed.down, bias, prior), wanted[1:], strict=True)
    shared = [torch.zeros_like(x) if needed else None for x, needed in parameters]
    split = [grad.split(n_images) for grad in grads]
    for images, made, *own in zip(poses.split(n_images), blocks, *split, strict=True):
        block = _turned(images)
        totals = _Totals(torch.zeros_like(block) if wanted[0] else None, *shared)
        totals.add(block, packed, made, [grad.transpose(0, 1) for grad in own], settings.rule)
        of_poses.append(totals.poses)
    down, *small = shared
    of_weight = rearrange(down, "j (d i) e -> i j d e", i=poses.shape[-2]) if wanted[1] else None
    return [torch.cat(of_poses).mT if wanted[0] else None, of_weight, *small]


class _Totals(NamedTuple):
    """Gradients so far, None where nobody wants them: one block's poses, and what every block adds to."""

    poses: Float[Tensor, "b d i"] | None
    down: Float[Tensor, "j di e"] | None
    bias: Float[Tensor, "j e"] | None
    prior: Float[Tensor, "i j"] | None

    def add(
        self,
        poses: Float[Tensor, "b d i"],
        packed: Packed,
        made: list[Iteration],
        grads: list[Tensor],
        rule: CouplingRule,
    ) -> None:
        """Add what one block contributes, from the last iteration to the first."""
        # gradient of the logits of all later iterations: what this one's parents agree with is a term of each
        later = None
        for each in reversed(made):
            last = later is None
            parents, pull_total = with_pull(squash, each.total)
            couplings, pull_logits = with_pull(lambda logits: rule.share(logits, dim=0), each.logits)
            of_total = pull_total(grads[0] if last else grads[1] + self._hear(poses, packed, parents, later))
            back = _sent_back(of_total, packed, poses)
            of_logits = pull_logits((back * poses).sum(2))
            if self.bias is not None:
                self.bias.add_(of_total.sum(1))
            if self.down is not None:
                self.down.baddbmm_(_spread(couplings, poses).mT, of_total)
            if self.poses is not None:
                self.poses.add_(back.mul_(couplings.unsqueeze(2)).sum(0))
            later = of_logits if last else later + of_logits
        if self.prior is not None:
            self.prior.add_(later.sum(1).T)

    def _hear(self, poses, packed: Packed, parents, later) -> Float[Tensor, "j b e"]:
        """Gradient of an iteration's parents by the logits that they agreed on."""
        heard = _spread(later, poses)
        if self.down is not None:
            self.down.baddbmm_(heard.mT, parents)
        if self.poses is not None:
            self.poses.add_(_sent_back(parents, packed, poses).mul_(later.unsqueeze(2)).sum(0))
        return heard @ packed.down


def _pack(weight: Float[Tensor, "i j d e"]) -> Packed:
    down, back = "i j d e -> j (d i) e", "i j d e -> j e (d i)"
    return Packed(rearrange(weight, down).contiguous(), rearrange(weight, back).contiguous())


def _turned(poses: Float[Tensor, "b i d"]) -> Float[Tensor, "b d i"]:
    return poses.mT.contiguous()  # couplings of neighbouring inputs then meet neighbouring pose dimensions


def _spread(shares: Float[Tensor, "j b i"], poses: Float[Tensor, "b d i"]) -> Float[Tensor, "j b di"]:
    """Multiply every pose by each parent's share of it."""
    return (shares.unsqueeze(2) * poses).flatten(2)


def _sent_back(
    parents: Float[Tensor, "j b e"], packed: Packed, poses: Float[Tensor, "b d i"]
) -> Float[Tensor, "j b d i"]:
    return (parents @ packed.back).unflatten(-1, poses.shape[1:])
