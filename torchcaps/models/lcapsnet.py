"""L-CapsNet: the most active of CapsNet's primary capsules, with a ladder in place of routing.

Jeong, Lee, Kim 2019, "Ladder Capsule Network", section 5, table 1 and figure 3. Paper's names: ReLuConv1 `conv`,
PrimaryCaps `primary`; pruning, propagation and ladder layer together are `classes`. With K = 70 on 28x28 it has
42,795,724 parameters, which the paper does not say.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers import Capsules, LadderCapsules, Laddered, LadderForm, PrimaryCapsules
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import convolve_relu

FAINT = 0.3  # scale of the features at initialisation
LOUDEST, FAINTEST = 3.0, 0.5  # initial bias lengths of the primary capsule types; 0.9 and 0.2 when squashed


@dataclass(frozen=True)
class Preset:
    """Variant of the network: the paper's equations, the authors' withdrawn code, or one network for all classes."""

    form: LadderForm = LadderForm()  # noqa: RUF009, frozen
    rectify: bool = False  # a ReLU before the squash of the primary capsules
    shared: bool = False
    width: int | None = None  # unit of the networks' hidden layers; d_primary · d_class if None


PRESETS = {
    "paper": Preset(),
    # the code was withdrawn and could not run; its losses are settings of the task
    "withdrawn": Preset(
        form=LadderForm(
            hidden=(1, 2, 3),
            share_hidden=(1, 1, 1),
            from_direction=True,
            squared=False,
            start="xavier",
        ),
        rectify=True,
    ),
    # 96 makes it smaller than a CapsNet with decoder
    "shared": Preset(shared=True, width=96),
}


class LCapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class, active if the kept poses can be regressed from its pose.

    `n_kept`: number of primary capsules kept (paper: K); None keeps all.
    `agreement`, `code` and `order`: see `LadderCapsules`. `start`: initialisation, one of `STARTS`; the preset's if
    None.
    Call `tell(images)` with a first batch before training, as `ClassifyLadder` does.

    Example:

        model = LCapsNet((1, 28, 28), n_classes=10, preset="shared", n_kept=16, channels=32, n_types=4)
        list(model(torch.rand(2, 1, 28, 28)).activity.shape)  # [2, 10]
    """

    decoder = None  # the paper has none; callers check this attribute

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        preset: str = "paper",
        n_kept: int | None = 70,
        channels: int = 256,
        kernel: int = 9,
        n_types: int = 32,
        d_primary: int = 8,
        primary_kernel: int = 9,
        primary_stride: int = 2,
        d_class: int = 16,
        agreement: str = "down",
        code: str = "kept",
        order: str = "index",
        start: str | None = None,
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"LCapsNet: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        plan = PRESETS[preset]
        form = plan.form if start is None else replace(plan.form, start=start)
        self.image, self.n_classes = checked_image("LCapsNet", image), checked_classes("LCapsNet", n_classes)
        self.preset = preset
        self.conv = nn.Conv2d(self.image[0], channels, kernel)
        sizes = (channels, n_types, d_primary, primary_kernel, primary_stride)
        self.primary = PrimaryCapsules(*sizes, rectify=plan.rectify)
        self.grid = tuple(self.primary.places(size - kernel + 1) for size in self.image[1:])
        if min(self.grid) < 1:
            raise ValueError(
                f"LCapsNet: an image of {self.image[1]}x{self.image[2]} is too small for kernels of "
                f"{kernel} and {primary_kernel}; give smaller kernels"
            )
        self.classes = LadderCapsules(
            n_types * self.grid[0] * self.grid[1], n_classes, d_primary, d_class, n_kept,
            agreement=agreement, shared=plan.shared, width=plan.width, code=code, order=order, form=form, init="paper",
        )  # fmt: skip
        self._start(form.start)

    @torch.no_grad()
    def _start(self, start: str) -> None:
        for weight, after in ((self.conv.weight, "relu"), (self.primary.weight, "linear")):
            if start == "xavier":
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.kaiming_normal_(weight, nonlinearity=after)
        if start != "told":
            return
        # the same poses from smaller features: a step of Adam changes a pose through all 20,736 features of its kernel
        self.conv.weight.mul_(FAINT)
        self.primary.weight.div_(FAINT)
        nn.init.zeros_(self.conv.bias)
        # initial biases make the first types long, as many types as the kept capsules fill: so at first all images keep
        # the same capsules and have the same code
        types = self.primary.bias.view(self.primary.n_types, -1)
        share = torch.exp(torch.arange(len(types)) * (-self.grid[0] * self.grid[1] / self.classes.n_kept))
        lengths = FAINTEST + (LOUDEST - FAINTEST) * share
        types.copy_(nn.functional.normalize(torch.randn_like(types), dim=-1) * lengths.unsqueeze(-1))

    def tell(self, images: Float[Tensor, "b c h w"]) -> None:
        """Initialise every class to regress the mean of the kept poses of these images (`LadderCapsules.tell`)."""
        with torch.no_grad():
            self.classes.tell(self.primary_capsules(images))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return self.classes(self.primary_capsules(images))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules before pruning, ordered (type, row, column) over `grid`."""
        check_images("LCapsNet", images, self.image, self.conv.weight.dtype)
        return self.primary(convolve_relu(images, self.conv.weight, self.conv.bias))

    def ladder(self, images: Float[Tensor, "b c h w"]) -> tuple[Capsules, Laddered]:
        """Compute primary capsules, and class capsules with intermediate results."""
        primary = self.primary_capsules(images)
        return primary, self.classes.ladder(primary)
