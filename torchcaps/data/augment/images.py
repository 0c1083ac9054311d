"""Augmentations of single images: moved, cropped, mirrored, partly erased, in another light, standardised."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int64, Real, UInt8
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data.augment.base import Augmentation


@dataclass(frozen=True)
class Shift(Augmentation):
    """Move each image by a whole number of pixels, uniform in ±pixels per axis; zeros come in from the border.

    Example:

        moved = Shift(2).apply(torch.eye(4, dtype=torch.uint8)[None, None], torch.tensor([[0, 1]]))
        moved[0, 0, 0].tolist()  # [0, 1, 0, 0]
    """

    pixels: int = 2

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n 2"]:
        return torch.randint(-self.pixels, self.pixels + 1, (n, 2), generator=rng)

    @property
    def n_variants(self) -> int:
        return (2 * self.pixels + 1) ** 2

    def variant(self, number: Int64[Tensor, "n"]) -> Int64[Tensor, "n 2"]:
        side = 2 * self.pixels + 1
        return torch.stack([number // side, number % side], dim=1) - self.pixels

    def apply(self, images: UInt8[Tensor, "b c h w"], drawn: Int64[Tensor, "b 2"]) -> UInt8[Tensor, "b c h w"]:
        height, width = images.shape[-2:]
        padded = pad(images, [self.pixels] * 4)
        device = images.device
        which = torch.arange(len(images), device=device)[:, None, None]
        rows = torch.arange(height, device=device) + (self.pixels - drawn[:, :1])
        columns = torch.arange(width, device=device) + (self.pixels - drawn[:, 1:])
        return rearrange(padded[which, :, rows[:, :, None], columns[:, None, :]], "b h w c -> b c h w")


@dataclass(frozen=True)
class Anywhere(Augmentation):
    """Move each image to any place that keeps all of its ink, whatever is not 0, within the frame; each as likely.

    Example:

        change, rng = Anywhere(), torch.Generator().manual_seed(0)
        list(change.apply(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), change.draw(4, rng)).shape)  # [4, 1, 28, 28]
    """

    def draw(self, n: int, rng: torch.Generator) -> Float[Tensor, "n 2"]:
        return torch.rand(n, 2, generator=rng)

    def apply(self, images: UInt8[Tensor, "b c h w"], drawn: Float[Tensor, "b 2"]) -> UInt8[Tensor, "b c h w"]:
        which = torch.arange(len(images), device=images.device)[:, None, None]
        rows, columns = (self._sources(images, axis, drawn[:, axis, None]) for axis in (0, 1))
        return rearrange(images[which, :, rows[:, :, None], columns[:, None, :]], "b h w c -> b c h w")

    def _sources(
        self, images: UInt8[Tensor, "b c h w"], axis: int, chance: Float[Tensor, "b 1"]
    ) -> Int64[Tensor, "b size"]:
        """Give the old row or column of each new one. They wrap around: what leaves on one side is empty."""
        size = images.shape[2 + axis]
        ink = (images.amax((1, 3) if axis == 0 else (1, 2)) > 0).byte()  # [b size]
        first, after = (
            ink.argmax(1, keepdim=True),
            ink.flip(1).argmax(1, keepdim=True),
        )  # empty before the ink, and after it
        places = first + after + 1
        move = (chance * places).long().clamp(max=size) - first
        move = torch.minimum(move, after)  # 1 - 2^-25 times a number may round up to it
        return (torch.arange(size, device=images.device) - move) % size


@dataclass(frozen=True)
class Crop(Augmentation):
    """Cut out size x size, anywhere in training, in the centre in evaluation; `border` first repeats the edge.

    Example:

        list(Crop(24).fixed(torch.zeros(4, 3, 32, 32, dtype=torch.uint8)).shape)  # [4, 3, 24, 24]
    """

    size: int
    border: int = 0

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n 2"]:
        # the size of the images is not known here; of a number this large any remainder is as likely as the next
        return torch.randint(0, 2**31, (n, 2), generator=rng)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Int64[Tensor, "b 2"]) -> Real[Tensor, "b c size size"]:
        which = torch.arange(len(images), device=images.device)[:, None, None]
        rows, columns = (self._window(drawn[:, axis, None], images.shape[2 + axis], images.device) for axis in (0, 1))
        return rearrange(images[which, :, rows[:, :, None], columns[:, None, :]], "b h w c -> b c h w")

    def fixed(self, images: UInt8[Tensor, "*b c h w"]) -> UInt8[Tensor, "*b c size size"]:
        self.shape(*images.shape[-3:])  # a window that does not fit would show something all the same
        rows, columns = (self._window((self._places(n) - 1) // 2, n, images.device) for n in images.shape[-2:])
        return images[..., rows[:, None], columns]

    def shape(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        if min(self._places(h), self._places(w)) < 1 or self.size < 1 or self.border < 0:
            raise ValueError(f"{self} does not fit into images of {h}x{w}; use a smaller size, or a border")
        return c, self.size, self.size

    def _places(self, n: int) -> int:
        """Count the windows that fit along an axis of n pixels."""
        return n + 2 * self.border - self.size + 1

    def _window(self, start: Int64[Tensor, "b 1"] | int, n: int, device: torch.device) -> Int64[Tensor, "*b size"]:
        return (start % self._places(n) - self.border + torch.arange(self.size, device=device)).clamp(0, n - 1)


@dataclass(frozen=True)
class Erase(Augmentation):
    """Blacken size x size pixels of each image, anywhere within it.

    Example:

        change, rng = Erase(4), torch.Generator().manual_seed(0)
        whites = change.apply(torch.ones(2, 1, 8, 8), change.draw(2, rng))
        whites.sum((1, 2, 3)).tolist()  # [48.0, 48.0]
    """

    size: int = 4

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n 2"]:
        return torch.randint(0, 2**31, (n, 2), generator=rng)  # as for Crop

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Int64[Tensor, "b 2"]) -> Real[Tensor, "b c h w"]:
        inside = []
        for axis in (0, 1):
            n = images.shape[2 + axis]
            first = drawn[:, axis, None] % (n - self.size + 1)
            place = torch.arange(n, device=images.device)
            inside.append((place >= first) & (place < first + self.size))  # [b n]
        rows, columns = inside
        return images.masked_fill((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), 0)

    def shape(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        if not 1 <= self.size <= min(h, w):
            raise ValueError(f"{self} does not fit into images of {h}x{w}; use a size from 1 to {min(h, w)}")
        return c, h, w


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirror every second image, on average; with `eyes` the two images of a stereo pair change places too.

    Example:

        Flip().apply(torch.tensor([[[[1, 2, 3]]]]), torch.tensor([1])).tolist()  # [[[[3, 2, 1]]]]
    """

    eyes: bool = False

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n"]:
        return torch.randint(0, 2, (n,), generator=rng)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Int64[Tensor, "b"]) -> Real[Tensor, "b c h w"]:
        mirrored = images.flip(1, 3) if self.eyes else images.flip(3)
        return torch.where(rearrange(drawn, "b -> b 1 1 1") == 1, mirrored, images)


@dataclass(frozen=True)
class Light(Augmentation):
    """Change contrast about the mean of each channel by a factor in 1 ± contrast, then brightness by ± grey levels.

    It `saturates` at black and white, as a camera does. Without that, as in the code of Sabour 2017, `Standardise`
    takes the brightness out again, and for one channel the contrast too; several channels still differ more or less.

    Example:

        change, rng = Light(brightness=32, contrast=0.3), torch.Generator().manual_seed(0)
        list(change.apply(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), change.draw(4, rng)).shape)  # [4, 3, 32, 32]
    """

    brightness: int = 63
    contrast: float = 0.8
    saturates: bool = True

    def draw(self, n: int, rng: torch.Generator) -> Float[Tensor, "n 2"]:
        return 2 * torch.rand(n, 2, generator=rng) - 1

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Float[Tensor, "b 2"]) -> Real[Tensor, "b c h w"]:
        levels = images.float()
        offset, factor = (rearrange(numbers, "b -> b 1 1 1") for numbers in drawn.unbind(1))
        mean = levels.mean(dim=(-2, -1), keepdim=True)
        exposed = (levels - mean) * (1 + self.contrast * factor) + mean + self.brightness * offset
        return exposed.round().clamp(0, 255).to(torch.uint8) if self.saturates else exposed


@dataclass(frozen=True)
class Standardise(Augmentation):
    """Bring each image, all its channels together, to mean 0 and standard deviation 1, in evaluation too.

    Example:

        float(Standardise().finish(torch.rand(3, 32, 32)).std(correction=0).round(decimals=2))  # 1.0
    """

    def finish(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        return _standardised(images)


@dataclass(frozen=True)
class StandardiseFirst(Augmentation):
    """Standardise each image before what follows crops it and changes its light, which then stays (Hinton 2018).

    Light's 255 grey levels are one standard deviation from here on, and nothing saturates.

    Example:

        float(StandardiseFirst().fixed(torch.rand(3, 32, 32)).std(correction=0).round(decimals=2))  # 255.0
    """

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Tensor) -> Float[Tensor, "b c h w"]:
        return self.fixed(images)

    def fixed(self, images: Real[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        return _standardised(images.float() / 255) * 255


def _standardised(images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
    least = images.shape[-3:].numel() ** -0.5 / 255  # TensorFlow's floor, which it applies to grey levels 0..255
    deviation, mean = torch.std_mean(images, dim=(-3, -2, -1), correction=0, keepdim=True)
    return (images - mean) / deviation.clamp(min=least)  # an image of one grey becomes zeros
