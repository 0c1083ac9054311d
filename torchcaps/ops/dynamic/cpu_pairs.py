"""Dynamic routing on a CPU, a transform for every pair of capsules, by few large matrix products and without votes.

Votes are a small product for every input, a thousand in CapsNet. Where the library has no batched product that is a thousand calls, each
longer than its work. But a parent's weighted sum of votes is one product over inputs and their numbers at once, of poses times couplings,
and its agreement with all votes is its pose sent back through all transforms, times the poses (as in `votes.agreements`).
Of a pass only the logits [j b i] and the sums [j b e] are kept for the backward pass, and a few images are routed at a time.
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
BLOCK_BYTES = 12 << 20  # of [j b d i] numbers made at once


class Settings(NamedTuple):
    """What stays the same over all blocks."""

    n_out: int
    n_iters: int
    rule: CouplingRule
    detach: bool


class Packed(NamedTuple):
    """The transforms as the products want them: towards the parents, and back."""

    down: Float[Tensor, "j di e"]
    back: Float[Tensor, "j e di"]


class Pass(NamedTuple):
    logits: Float[Tensor, "j b i"]
    total: Float[Tensor, "j b e"]


def suits(poses: Float[Tensor, "b i d"], weight: Tensor, settings: Settings, most: int) -> bool:
    """Whether there is a transform for each pair, an image's numbers are not more than so many bytes, and [i j d] are not much more than
    votes: four times as many took longer than they, twice as many did not."""
    each = MANY_CALLS and has_transform_per_pair(poses, weight) and not settings.rule.fixed
    return each and weight.shape[-2] <= 2 * weight.shape[-1] and _bytes_per_image(weight) <= most


def by_pairs(
    poses: Float[Tensor, "b i d"], weight: Float[Tensor, "i j d e"], bias, prior, settings: Settings, most: int
) -> tuple[Tensor, Tensor]:
    """Output poses and their sum over all passes but the last."""
    # every block reads all transforms, as blocks of votes do
    block_bytes = min(most, max(BLOCK_BYTES, 3 * weight.nbytes // 4))
    n_images = max(1, block_bytes // max(1, _bytes_per_image(weight)))
    return _ByPairs.apply(
        poses, weight, bias, prior, settings, n_images, torch.is_grad_enabled()
    )  # which within is always off


def _bytes_per_image(weight: Tensor) -> int:
    return weight.nbytes // max(1, weight.shape[-1])


class _ByPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, poses, weight, bias, prior, settings: Settings, n_images: int, recorded: bool):
        packed, routed, kept = _pack(weight), [], []
        for block in poses.split(n_images):
            made = _passes(_turned(block), packed, bias, prior, settings)
            routed.append(_outputs(made))
            kept += [tensor for each in made for tensor in each] if recorded and any(ctx.needs_input_grad) else []
        ctx.save_for_backward(poses, weight, bias, prior, *kept)
        ctx.settings, ctx.n_images = settings, n_images
        return with_honest_sum(ctx, settings, tuple(torch.cat(parts) for parts in zip(*routed, strict=True)))

    @staticmethod
    def backward(ctx, *grads):
        poses, weight, bias, prior, *kept = (
            ctx.saved_tensors
        )  # asked for once: `torch.utils.checkpoint` makes them once
        inputs, wanted, settings = (poses, weight, bias, prior), ctx.needs_input_grad[:4], ctx.settings
        with full_precision():
            if plain_form_wanted(grads):
                found = gradients_of_plain_form(lambda *x: _whole(*x, settings), inputs, grads, wanted)
            else:
                passes = [Pass(*pair) for pair in zip(kept[::2], kept[1::2], strict=True)]
                blocks = [passes[at : at + settings.n_iters] for at in range(0, len(passes), settings.n_iters)]
                found = _gradients(inputs, wanted, blocks, grads, settings, ctx.n_images)
        return *found, None, None, None


def with_honest_sum(ctx, settings: Settings, routed: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Poses and their sum, which like the reference's has a gradient only where an earlier pass passes one on."""
    if settings.n_iters == 1 or (settings.detach and not any(ctx.needs_input_grad[2:4])):  # bias and prior
        ctx.mark_non_differentiable(routed[1])
    return routed


def _whole(poses, weight, bias, prior, settings: Settings) -> tuple[Tensor, Tensor]:
    return _outputs(_passes(_turned(poses), _pack(weight), bias, prior, settings))


def _outputs(made: list[Pass]) -> tuple[Float[Tensor, "b j e"], Float[Tensor, "b j e"]]:
    *earlier, last = (squash(each.total).transpose(0, 1) for each in made)
    return last, sum(earlier, torch.zeros_like(last))


def _passes(
    poses: Float[Tensor, "b d i"], packed: Packed, bias: Tensor | None, prior: Tensor | None, settings: Settings
) -> list[Pass]:
    shape = settings.n_out, len(poses), poses.shape[-1]
    logits = (poses.new_zeros(()) if prior is None else prior.T.unsqueeze(1)).expand(shape)
    quiet = (
        (poses.detach(), Packed(*(transforms.detach() for transforms in packed)))
        if settings.detach
        else (poses, packed)
    )
    made = []
    for t in range(settings.n_iters):
        passed, through = (poses, packed) if t == settings.n_iters - 1 else quiet
        total = _spread(settings.rule.share(logits, dim=0), passed) @ through.down
        made.append(Pass(logits, total if bias is None else total + bias.unsqueeze(1)))
        if t < settings.n_iters - 1:
            logits = logits + (_sent_back(squash(made[-1].total), through, passed) * passed).sum(2)
    return made


def _gradients(
    inputs,
    wanted: Sequence[bool],
    blocks: Sequence[list[Pass]],
    grads: Sequence[Tensor],
    settings: Settings,
    n_images: int,
) -> list:
    """Of poses, weight, bias and prior, each where it is wanted."""
    poses, weight, bias, prior = inputs
    packed, of_poses = _pack(weight), []
    shared = [
        torch.zeros_like(x) if needed else None
        for x, needed in zip((packed.down, bias, prior), wanted[1:], strict=True)
    ]
    for images, made, *own in zip(
        poses.split(n_images), blocks, *(grad.split(n_images) for grad in grads), strict=True
    ):
        block = _turned(images)
        totals = _Totals(torch.zeros_like(block) if wanted[0] else None, *shared)
        totals.add(block, packed, made, [grad.transpose(0, 1) for grad in own], settings)
        of_poses.append(totals.poses)
    down, *small = shared
    of_weight = rearrange(down, "j (d i) e -> i j d e", i=poses.shape[-2]) if wanted[1] else None
    return [torch.cat(of_poses).mT if wanted[0] else None, of_weight, *small]


class _Totals(NamedTuple):
    """Gradients so far, None where nobody wants them: of one block's poses, and of what every block adds to."""

    poses: Float[Tensor, "b d i"] | None
    down: Float[Tensor, "j di e"] | None
    bias: Float[Tensor, "j e"] | None
    prior: Float[Tensor, "i j"] | None

    def add(
        self, poses: Float[Tensor, "b d i"], packed: Packed, made: list[Pass], grads: list[Tensor], settings: Settings
    ) -> None:
        """From the last pass to the first."""
        later = (
            None  # gradient of the logits of all later passes: what this pass's parents agree with is a term of each
        )
        for each in reversed(made):
            last = later is None
            live = self if last or not settings.detach else self._replace(poses=None, down=None)
            parents, pull_total = with_pull(squash, each.total)
            couplings, pull_logits = with_pull(lambda logits: settings.rule.share(logits, dim=0), each.logits)
            of_total = pull_total(grads[0] if last else grads[1] + live._hear(poses, packed, parents, later))
            back = _sent_back(of_total, packed, poses)
            of_logits = pull_logits((back * poses).sum(2))
            if self.bias is not None:
                self.bias.add_(of_total.sum(1))
            if live.down is not None:
                live.down.baddbmm_(_spread(couplings, poses).mT, of_total)
            if live.poses is not None:
                live.poses.add_(back.mul_(couplings.unsqueeze(2)).sum(0))
            later = of_logits if last else later + of_logits
        if self.prior is not None:
            self.prior.add_(later.sum(1).T)

    def _hear(self, poses, packed: Packed, parents, later) -> Float[Tensor, "j b e"]:
        """The gradient of a pass's parents by the logits that they agreed on."""
        heard = _spread(later, poses)
        if self.down is not None:
            self.down.baddbmm_(heard.mT, parents)
        if self.poses is not None:
            self.poses.add_(_sent_back(parents, packed, poses).mul_(later.unsqueeze(2)).sum(0))
        return heard @ packed.down


def _pack(weight: Float[Tensor, "i j d e"]) -> Packed:
    return Packed(
        rearrange(weight, "i j d e -> j (d i) e").contiguous(), rearrange(weight, "i j d e -> j e (d i)").contiguous()
    )


def _turned(poses: Float[Tensor, "b i d"]) -> Float[Tensor, "b d i"]:
    return poses.mT.contiguous()  # couplings of neighbouring inputs then meet neighbouring numbers


def _spread(shares: Float[Tensor, "j b i"], poses: Float[Tensor, "b d i"]) -> Float[Tensor, "j b di"]:
    """Of every number of every pose the share of each parent."""
    return (shares.unsqueeze(2) * poses).flatten(2)


def _sent_back(
    parents: Float[Tensor, "j b e"], packed: Packed, poses: Float[Tensor, "b d i"]
) -> Float[Tensor, "j b d i"]:
    return (parents @ packed.back).unflatten(-1, poses.shape[1:])
