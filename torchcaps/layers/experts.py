"""Expert capsules of a product of experts, trained by contrastive divergence, not backpropagation (Hauser 2019)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules, vectors
from torchcaps.layers.inputs import check_dtype
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops.experts import Phase, Rule, agreement_routing, firing, on_probability

STD = 0.01  # "e.g. N(0, 0.01)", read as a standard deviation


class ExpertCapsules(nn.Module):
    """Fully connected experts; couplings follow the cosine of a vote and the sum of votes. [*b i d] -> [*b j e].

    `n_plain`: number of the d_out pose dimensions that do not lie on the sphere. The decoder of a layer is a second
    `ExpertCapsules` with inputs and outputs swapped.

    Example:

        layer = ExpertCapsules(n_in=32, n_out=20, d_in=8, d_out=16)
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 20, 16]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        *,
        n_iters: int = 3,
        over: str = "inputs",
        start: str = "zero",
        n_plain: int = 0,
    ) -> None:
        super().__init__()
        check_sizes("ExpertCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out)
        if not 0 <= n_plain < d_out:
            raise ValueError(
                f"ExpertCapsules: of {d_out} dimensions at least one lies on the sphere; got n_plain={n_plain}"
            )
        self.n_in, self.n_out, self.d_in, self.d_out, self.n_plain = n_in, n_out, d_in, d_out, n_plain
        self.rule = Rule(n_iters=n_iters, over=over, start=start)
        self.rule.check()
        self.weight = nn.Parameter(STD * torch.randn(n_in, n_out, d_in, d_out))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        sums = self.phase(capsules).sums
        return Capsules(firing(sums, n_plain=self.n_plain), on_probability(sums, self.n_plain))

    def phase(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Phase:
        """Compute poses, sums and couplings, the terms of the contrastive update."""
        poses = vectors("ExpertCapsules", capsules, self.n_in, self.d_in)
        check_dtype("ExpertCapsules", "poses", poses, self.weight.dtype)
        # on CUDA the weights are channels last, which would mean strided reads
        return agreement_routing(poses, self.weight.contiguous(), self.rule)

    @torch.no_grad()
    def scale_to(self, capsules: Capsules | Float[Tensor, "*b i d"], mean_length: float) -> None:
        """Scale the weights, by bisection, so that the experts' mean probability of being on equals `mean_length`."""
        if not 0 < mean_length < 1:
            raise ValueError(f"ExpertCapsules: a mean length lies between 0 and 1, got {mean_length}")
        poses = Capsules.of(capsules).poses
        if not poses.any():
            raise ValueError(
                "ExpertCapsules: all capsules of the batch have length 0, so no weights bring the experts to any length"
            )
        phase = self.phase(poses)  # couplings do not depend on the scale
        low, high = -40.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            short = on_probability(phase.sums * 2.0**middle, self.n_plain).mean() < mean_length
            low, high = (middle, high) if short else (low, middle)
        self.weight.mul_(2.0**low)

    def backend_here(self, compiling: bool = False, n_images: int = 1) -> str:
        """Return "compiled" inside a compiled training step, else "reference": there is one implementation."""
        return "compiled" if compiling else "reference"

    def extra_repr(self) -> str:
        plain = f", {self.n_plain} of them plain" if self.n_plain else ""
        return f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}{plain}, {self.rule}"
