"""Dynamic routing on a CPU, a transform for every pair of capsules, by few large matrix products and without votes.

Votes are a small product for every input, a thousand in CapsNet. Where the library has no batched product that is a thousand calls, each
longer than its work. But a parent's weighted sum of votes is one product over inputs and their numbers at once, of poses times couplings,
and its agreement with all votes is its pose sent back through all transforms, times the poses (as in `votes.agreements`).
Of a pass only the logits [j b i] and the sums [j b e] are kept for the backward pass, and a few images are routed at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.by_hand import full_precision, gradients_to_differentiate, with_pull
from torchcaps.ops.squash import squash

MANY_CALLS = not torch.backends.mkl.is_available()  # for a batch of small products: MKL takes it in one
BLOCK_BYTES = 12 << 20  # of [j b d i] numbers made at once


class Rule(NamedTuple):
    """What stays the same over all blocks."""

    n_out: int
    n_iters: int
    share: Callable[..., Tensor]
    fixed: bool
    detach: bool


class Packed(NamedTuple):
    """The transforms as the products want them: towards the parents, and back."""

    down: Float[Tensor, "j di e"]
    back: Float[Tensor, "j e di"]


class Pass(NamedTuple):
    logits: Float[Tensor, "j b i"]
    total: Float[Tensor, "j b e"]


def suits(poses: Float[Tensor, "b i d"], weight: Tensor, rule: Rule, most: int) -> bool:
    """Whether there is a transform for each pair, and an image's numbers are not more than so many bytes."""
    return MANY_CALLS and weight.ndim == 4 and weight.shape[0] == poses.shape[-2] and not rule.fixed and _bytes_per_image(weight) <= most


def by_pairs(poses: Float[Tensor, "b i d"], weight: Float[Tensor, "i j d e"], bias, prior, rule: Rule) -> tuple[Tensor, Tensor]:
    """Output poses and their sum over all passes but the last."""
    return _ByPairs.apply(poses, weight, bias, prior, rule, max(1, BLOCK_BYTES // max(1, _bytes_per_image(weight))))


def _bytes_per_image(weight: Tensor) -> int:
    return weight.nbytes // max(1, weight.shape[-1])


class _ByPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, poses, weight, bias, prior, rule: Rule, n_images: int):
        packed, routed, kept = _pack(weight), [], []
        for block in poses.split(n_images):
            made = _passes(_turned(block), packed, bias, prior, rule)
            routed.append(_outputs(made))
            kept += [tensor for each in made for tensor in each] if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(poses, weight, bias, prior, *kept)
        ctx.rule, ctx.n_images = rule, n_images
        return tuple(torch.cat(parts) for parts in zip(*routed, strict=True))

    @staticmethod
    def backward(ctx, *grads):
        inputs, kept = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        wanted, rule = ctx.needs_input_grad[:4], ctx.rule
        with full_precision():
            if torch.is_grad_enabled():
                found = gradients_to_differentiate(lambda *x: _whole(*x, rule), inputs, grads, wanted)
            else:
                passes = [Pass(*pair) for pair in zip(kept[::2], kept[1::2], strict=True)]
                blocks = [passes[at : at + rule.n_iters] for at in range(0, len(passes), rule.n_iters)]
                found = _gradients(inputs, blocks, grads, rule, ctx.n_images)
                found = [gradient if needed else None for gradient, needed in zip(found, wanted, strict=True)]
        return *found, None, None


def _whole(poses, weight, bias, prior, rule: Rule) -> tuple[Tensor, Tensor]:
    return _outputs(_passes(_turned(poses), _pack(weight), bias, prior, rule))


def _outputs(made: list[Pass]) -> tuple[Float[Tensor, "b j e"], Float[Tensor, "b j e"]]:
    *earlier, last = (squash(each.total).transpose(0, 1) for each in made)
    return last, sum(earlier, torch.zeros_like(last))


def _passes(poses: Float[Tensor, "b d i"], packed: Packed, bias: Tensor | None, prior: Tensor | None, rule: Rule) -> list[Pass]:
    shape = rule.n_out, len(poses), poses.shape[-1]
    logits = (poses.new_zeros(()) if prior is None else prior.T.unsqueeze(1)).expand(shape)
    quiet = (poses.detach(), Packed(*(transforms.detach() for transforms in packed))) if rule.detach else (poses, packed)
    made = []
    for t in range(rule.n_iters):
        passed, through = (poses, packed) if t == rule.n_iters - 1 else quiet
        total = _spread(rule.share(logits, dim=0), passed) @ through.down
        made.append(Pass(logits, total if bias is None else total + bias.unsqueeze(1)))
        if t < rule.n_iters - 1:
            logits = logits + (_sent_back(squash(made[-1].total), through, passed) * passed).sum(2)
    return made


def _gradients(inputs: Sequence[Tensor | None], blocks: Sequence[list[Pass]], grads: Sequence[Tensor], rule: Rule, n_images: int) -> list:
    """Of poses, weight, bias and prior."""
    poses, weight, bias, prior = inputs
    packed, of_poses = _pack(weight), []
    totals = _Totals(torch.zeros_like(packed.down), *(None if tensor is None else torch.zeros_like(tensor) for tensor in (bias, prior)))
    for block, made, *own in zip(poses.split(n_images), blocks, *(grad.split(n_images) for grad in grads), strict=True):
        of_poses.append(totals.add(_turned(block), packed, made, [grad.transpose(0, 1) for grad in own], rule))
    down = rearrange(totals.down, "j (d i) e -> i j d e", i=poses.shape[-2])
    return [torch.cat(of_poses).mT, down, totals.bias, totals.prior]


class _Totals(NamedTuple):
    """Gradients that every block adds to."""

    down: Float[Tensor, "j di e"]
    bias: Float[Tensor, "j e"] | None
    prior: Float[Tensor, "i j"] | None

    def add(self, poses: Float[Tensor, "b d i"], packed: Packed, made: list[Pass], grads: list[Tensor], rule: Rule) -> Tensor:
        """From the last pass to the first; returns the gradient of the block's poses."""
        of_poses = torch.zeros_like(poses)
        later = None  # gradient of the logits of all later passes: what this pass's parents agree with is a term of each
        for each in reversed(made):
            last = later is None
            live = last or not rule.detach
            parents, pull_total = with_pull(squash, each.total)
            couplings, pull_logits = with_pull(lambda logits: rule.share(logits, dim=0), each.logits)
            of_parents = grads[0] if last else grads[1] + self._hear(poses, packed, parents, later, of_poses if live else None)
            of_total = pull_total(of_parents)
            if self.bias is not None:
                self.bias.add_(of_total.sum(1))
            if live:
                self.down.baddbmm_(_spread(couplings, poses).mT, of_total)
            back = _sent_back(of_total, packed, poses)
            of_logits = pull_logits((back * poses).sum(2))
            if live:
                of_poses += back.mul_(couplings.unsqueeze(2)).sum(0)
            later = of_logits if last else later + of_logits
        if self.prior is not None:
            self.prior.add_(later.sum(1).T)
        return of_poses

    def _hear(self, poses, packed: Packed, parents, later, of_poses: Tensor | None) -> Float[Tensor, "j b e"]:
        """The gradient of a pass's parents by the logits that they agreed on."""
        heard = _spread(later, poses)
        if of_poses is not None:
            self.down.baddbmm_(heard.mT, parents)
            of_poses += _sent_back(parents, packed, poses).mul_(later.unsqueeze(2)).sum(0)
        return heard @ packed.down


def _pack(weight: Float[Tensor, "i j d e"]) -> Packed:
    return Packed(rearrange(weight, "i j d e -> j (d i) e").contiguous(), rearrange(weight, "i j d e -> j e (d i)").contiguous())


def _turned(poses: Float[Tensor, "b i d"]) -> Float[Tensor, "b d i"]:
    return poses.mT.contiguous()  # couplings of neighbouring inputs then meet neighbouring numbers


def _spread(shares: Float[Tensor, "j b i"], poses: Float[Tensor, "b d i"]) -> Float[Tensor, "j b di"]:
    """Of every number of every pose the share of each parent."""
    return (shares.unsqueeze(2) * poses).flatten(2)


def _sent_back(parents: Float[Tensor, "j b e"], packed: Packed, poses: Float[Tensor, "b d i"]) -> Float[Tensor, "j b d i"]:
    return (parents @ packed.back).unflatten(-1, poses.shape[1:])
