"""Batches that never leave the device.

All images lie on the device as bytes. What is random, the order and the augmentation of one epoch, is drawn on the host
from one generator and copied over once per epoch; a step finds its part by a counter on the device. So a CUDA graph can
replay the step, a resumed run goes on with the same draws, and CPU and GPU see the same batches.
An epoch is n // batch steps: the remainder is left out, other images each time since every epoch is drawn anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64, Real, UInt8
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data import Labelled
from torchcaps.data.batches.balance import balanced_order, members


class Batch(NamedTuple):
    images: Float[Tensor, "b c h w"]  # 0..1, unless an augmentation finishes them otherwise
    labels: Int64[Tensor, "b"]
    others: Int64[Tensor, "b"] | None = None  # where images were mixed (data/augment/mixup.py): the class of what was mixed in
    shares: Float[Tensor, "b"] | None = None  # and how much of each is still its own


class Augmentation:
    """Something that happens to images: drawn on the host, applied on the device. An own one overrides what it needs."""

    reach: ClassVar[int] = 0  # how many of the images that follow it in the batch `mix` looks at for one

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """The random numbers for `n` images, one row each; here none."""
        return torch.empty(n, 0)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Tensor) -> Real[Tensor, "b c h2 w2"]:
        """In training, on grey levels 0..255: bytes, unless something before it made them numbers of any size."""
        return images

    def fixed(self, images: UInt8[Tensor, "*b c h w"]) -> UInt8[Tensor, "*b c h2 w2"]:
        """In evaluation, instead of `apply`: nothing random."""
        return images

    def finish(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """In both, at the end, on numbers in 0..1."""
        return images

    def mix(self, batch: Batch, drawn: Tensor) -> Batch:
        """In training, at the very end: where the images of a batch meet."""
        return batch

    def shape(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        """What becomes of images of c h w; the model is built for it."""
        return c, h, w


@dataclass(frozen=True)
class Shift(Augmentation):
    """Move each image by a whole number of pixels, uniform in ±pixels per axis; zeros come in from the border."""

    pixels: int = 2

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n 2"]:
        return torch.randint(-self.pixels, self.pixels + 1, (n, 2), generator=rng)

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
    """Move each image by whole pixels to any place that keeps all of its ink, whatever is not 0, within the frame; each as likely."""

    def draw(self, n: int, rng: torch.Generator) -> Float[Tensor, "n 2"]:
        return torch.rand(n, 2, generator=rng)

    def apply(self, images: UInt8[Tensor, "b c h w"], drawn: Float[Tensor, "b 2"]) -> UInt8[Tensor, "b c h w"]:
        which = torch.arange(len(images), device=images.device)[:, None, None]
        rows, columns = (self._sources(images, axis, drawn[:, axis, None]) for axis in (0, 1))
        return rearrange(images[which, :, rows[:, :, None], columns[:, None, :]], "b h w c -> b c h w")

    def _sources(self, images: UInt8[Tensor, "b c h w"], axis: int, chance: Float[Tensor, "b 1"]) -> Int64[Tensor, "b size"]:
        """From where along the axis each row or column of the moved image comes. Around: what leaves on one side is empty."""
        size = images.shape[2 + axis]
        ink = (images.amax((1, 3) if axis == 0 else (1, 2)) > 0).byte()  # [b size]
        first, after = ink.argmax(1, keepdim=True), ink.flip(1).argmax(1, keepdim=True)  # empty before the ink, and after it
        places = first + after + 1
        move = (chance * places).long().clamp(max=size) - first
        move = torch.minimum(move, after)  # 1 - 2^-25 times a number may round up to it
        return (torch.arange(size, device=images.device) - move) % size


@dataclass(frozen=True)
class Crop(Augmentation):
    """A window of size x size, anywhere in training and in the centre in evaluation. A `border` first repeats the edge that often."""

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
        """How many windows fit along an axis of n pixels."""
        return n + 2 * self.border - self.size + 1

    def _window(self, start: Int64[Tensor, "b 1"] | int, n: int, device: torch.device) -> Int64[Tensor, "*b size"]:
        return (start % self._places(n) - self.border + torch.arange(self.size, device=device)).clamp(0, n - 1)


@dataclass(frozen=True)
class Flip(Augmentation):
    """Every second image, on average, as in a mirror: left becomes right. With `eyes` the pictures of a stereo pair change places too."""

    eyes: bool = False

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n"]:
        return torch.randint(0, 2, (n,), generator=rng)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Int64[Tensor, "b"]) -> Real[Tensor, "b c h w"]:
        mirrored = images.flip(1, 3) if self.eyes else images.flip(3)
        return torch.where(rearrange(drawn, "b -> b 1 1 1") == 1, mirrored, images)


@dataclass(frozen=True)
class Light(Augmentation):
    """Another exposure: contrast about the mean of each channel by a factor in 1 ± contrast, then up to ± brightness grey levels.

    It `saturates` at black and white, as a camera does. Without that, as in the code of Sabour 2017, `Standardise` takes the brightness
    out again, and of one channel the contrast too; of several, contrast still changes how much they differ.
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
    """Each image, all its channels together, to mean 0 and standard deviation 1, in training and evaluation alike."""

    def finish(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        least = images.shape[-3:].numel() ** -0.5 / 255  # TensorFlow's floor, which it applies to grey levels 0..255
        deviation, mean = torch.std_mean(images, dim=(-3, -2, -1), correction=0, keepdim=True)
        return (images - mean) / deviation.clamp(min=least)  # an image of one grey becomes zeros


def shape_after(augment: Sequence[Augmentation], shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The c h w that the model sees."""
    for augmentation in augment:
        shape = augmentation.shape(*shape)
    return shape


def as_seen(images: UInt8[Tensor, "*b c h w"], augment: Sequence[Augmentation] = ()) -> Float[Tensor, "*b c h2 w2"]:
    """What the model sees of these images in evaluation."""
    for augmentation in augment:
        images = augmentation.fixed(images)
    return _finished(images, augment)


def _finished(images: Real[Tensor, "*b c h w"], augment: Sequence[Augmentation]) -> Float[Tensor, "*b c h w"]:
    images = images.float() / 255
    for augmentation in augment:
        images = augmentation.finish(images)
    return images


class Batches:
    """The training images on their device and this epoch's plan.

    `balanced`: an epoch is as long as else, and every class has the same part of it, those of few images by showing them more often.
    """

    own: int | None = None  # images of a batch that are made here, where several processes share it
    columns: Int64[Tensor, "m"] | None = None  # and which those are, with what is mixed in

    def __init__(
        self, data: Labelled, batch: int, augment: tuple[Augmentation, ...], device: torch.device, *, balanced: bool = False
    ) -> None:
        n = len(data.labels)
        if n < batch:
            raise ValueError(f"a batch of {batch} was asked for and there are {n} training images; use a smaller batch")
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.batch, self.n_steps, self.augment = batch, n // batch, augment
        self.by_class = members(data.labels.cpu()) if balanced else None
        # these stay at one address, so that a captured step reads the next epoch's plan
        self.plan = [part.to(device) for part in self._drawn(torch.Generator())]

    def new_epoch(self, rng: torch.Generator) -> None:
        """Draw the order and the augmentation of one epoch."""
        for part, drawn in zip(self.plan, self._drawn(rng), strict=True):
            part.copy_(drawn)

    def divide(self, rank: int, n: int) -> None:
        """From here on make only the part of each batch that is this process's own: one stretch, and what `mix` looks at behind it.

        All processes draw the whole plan alike, so their parts make up the batch that one alone would make, no image twice.
        """
        if n == 1:
            return
        if unclear := [each for each in self.augment if type(each).mix is not Augmentation.mix and not each.reach]:
            raise ValueError(f"{unclear[0]} mixes images without saying how far it looks: give its class `reach`, or train in one process")
        assert self.batch % n == 0 and self.own is None
        self.own = self.batch // n
        reach = sum(each.reach for each in self.augment)
        self.columns = (torch.arange(self.own + reach) + rank * self.own) % self.batch
        self.plan = [part[:, self.columns.to(part.device)] for part in self.plan]

    def before(self, step: int) -> None:
        """Called on the host before each step of the epoch, for what has to be at hand then; here everything always is."""

    def at(self, step: Int64[Tensor, ""]) -> Batch:
        """The batch of this step of the epoch; `step` lies on the device, nothing waits for the host."""
        order, *drawn = (part.index_select(0, step.view(1)).squeeze(0) for part in self.plan)
        images = self.images[order]
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            images = augmentation.apply(images, numbers)
        batch = Batch(_finished(images, self.augment), self.labels[order])
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            batch = augmentation.mix(batch, numbers)
        return self._own(batch)

    def _own(self, batch: NamedTuple) -> NamedTuple:
        """Without the images that were only there to be mixed in."""
        return batch if self.own is None else type(batch)(*(part if part is None else part[: self.own] for part in batch))

    def _drawn(self, rng: torch.Generator) -> list[Tensor]:
        return self._draw(rng) if self.own is None else [part[:, self.columns] for part in self._draw(rng)]

    def _draw(self, rng: torch.Generator) -> list[Tensor]:
        n_used = self.n_steps * self.batch
        if self.by_class is None:
            order = torch.randperm(len(self.labels), generator=rng)[:n_used]
        else:
            order = balanced_order(self.by_class, n_used, rng)
        drawn = [augmentation.draw(n_used, rng) for augmentation in self.augment]
        return [part.unflatten(0, (self.n_steps, self.batch)) for part in (order, *drawn)]


def in_order(data: Labelled, batch: int, device: torch.device, augment: Sequence[Augmentation] = ()) -> Iterator[Batch]:
    """Every image once, in order: for evaluation, where nothing is random and nothing left out."""
    for start in range(0, len(data.labels), batch):
        images = data.images[start : start + batch].to(device)
        yield Batch(as_seen(images, augment), data.labels[start : start + batch].to(device))


def in_order_as_trained(data: Labelled, batch: int, device: torch.device, augment: Sequence[Augmentation], seed: int) -> Iterator[Batch]:
    """Every image once, in order, as training may have shown it; nothing is mixed. A seed draws the same every time."""
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, len(data.labels), batch):
        images = data.images[start : start + batch].to(device)
        for augmentation in augment:
            images = augmentation.apply(images, augmentation.draw(len(images), rng).to(device))
        yield Batch(_finished(images, augment), data.labels[start : start + batch].to(device))
