"""Batches that never leave the device.

All images lie on the device as bytes. Random draws, the order and the augmentation of one epoch, are made on the
host from one generator and copied over once per epoch; a step finds its part by a counter on the device. So a CUDA
graph can replay the step, a resumed run goes on with the same draws, and CPU and GPU draw the same batches; a compiled
step rounds some augmentations differently, in the last bit, or a warped pixel by one grey level. An epoch
is n // batch steps: the remainder is left out, other images each time since every epoch is drawn anew.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.data import Labelled
from torchcaps.data.augment.base import Augmentation, Batch, as_seen, finished
from torchcaps.data.batches.balance import balanced_order, members
from torchcaps.data.batches.hard import Hard
from torchcaps.data.batches.records import Records


class Batches:
    """Training images on their device and this epoch's plan.

    `balanced`: an epoch has its usual length and every class the same share of it; small classes are shown more often.
    `records`: an epoch is every variant of every image, in the order of record files.
    `hard`: an epoch is a share of the images, chosen by the loss that `note` was last given for each.

    Example:

        from torchcaps.data import load
        batches = Batches(load("generated", "train"), batch=64, augment=(), device=torch.device("cpu"))
        batches.new_epoch(torch.Generator().manual_seed(0))
        batches.n_steps, list(batches.at(torch.tensor(0)).images.shape)  # (8, [64, 1, 28, 28])
    """

    records: Records | None = None
    hard: Hard | None = None
    own: int | None = None  # images of a batch that are made here, where several processes share it
    columns: Int64[Tensor, "m"] | None = None  # and which those are, with what is mixed in

    def __init__(
        self,
        data: Labelled,
        batch: int,
        augment: tuple[Augmentation, ...],
        device: torch.device,
        *,
        balanced: bool = False,
        records: Records | None = None,
        hard: Hard | None = None,
    ) -> None:
        if bool(balanced) + bool(records) + bool(hard) > 1:
            raise ValueError(
                "an epoch has one order: give a stage either balanced or records or hard; got "
                f"balanced={balanced}, records={records}, hard={hard}"
            )
        if hard and (mixing := [each for each in augment if type(each).mix is not Augmentation.mix]):
            raise ValueError(
                f"hard images are chosen by the loss of each, and {mixing[0]} mixes several; "
                "leave it out, or give the stage hard=None"
            )
        n = len(data.labels)
        if n < batch:
            raise ValueError(f"a batch of {batch} was asked for and there are {n} training images; use a smaller batch")
        if hard and hard.n_images(n) < batch:
            raise ValueError(
                f"a batch of {batch} was asked for and {hard} shows {hard.n_images(n)} of {n} training images; "
                "use a larger share or a smaller batch"
            )
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.records, self.hard, self.augment, self.batch = records, hard, augment, batch
        shown = hard.n_images(n) if hard else n * (records.n_variants(augment) if records else 1)
        self.n_steps = shown // batch
        if hard:
            self.losses = torch.full((n,), torch.inf, device=device)  # of each image, when last shown
            self.known = torch.full((n,), torch.inf)  # on the host: what an epoch is drawn by
        self.by_class = members(data.labels.cpu()) if balanced else None
        # these stay at one address, so that a captured step reads the next epoch's plan
        self.plan = [part.to(device) for part in self._drawn(torch.Generator())]

    def look(self) -> None:
        """Copy the losses to the host, so that the next epoch is drawn by them. Waits for the device."""
        if self.hard:
            self.known.copy_(self.losses)

    def note(self, step: Int64[Tensor, ""], losses: Float[Tensor, "b"]) -> None:
        """Keep the losses of the images of this step of the epoch, on the device."""
        order = self.plan[0].index_select(0, step.view(1)).squeeze(0)
        self.losses.index_copy_(0, order, losses.detach().float())

    def new_epoch(self, rng: torch.Generator) -> None:
        """Draw the order and the augmentation of one epoch."""
        for part, drawn in zip(self.plan, self._drawn(rng), strict=True):
            part.copy_(drawn)

    def divide(self, rank: int, n: int) -> None:
        """Make only this process's part of each batch from now on, and the images behind it that `mix` looks at.

        All processes draw the same plan, so their parts make up the batch that one process would make, no image twice.
        """
        if n == 1:
            return
        if self.hard:
            raise ValueError(
                f"hard images are chosen by the losses of all, and {n} processes know {n} parts of them; "
                "train in one process, or give the stage hard=None"
            )
        if unclear := [each for each in self.augment if type(each).mix is not Augmentation.mix and not each.reach]:
            raise ValueError(
                f"{unclear[0]} mixes images without saying how far it looks: give its class `reach`, "
                "or train in one process"
            )
        assert self.batch % n == 0 and self.own is None
        self.own = self.batch // n
        reach = sum(each.reach for each in self.augment)
        self.columns = (torch.arange(self.own + reach) + rank * self.own) % self.batch
        self.plan = [part[:, self.columns.to(part.device)] for part in self.plan]

    def before(self, step: int) -> None:
        """Prepare a step of the epoch, on the host; images are always ready."""

    def at(self, step: Int64[Tensor, ""]) -> Batch:
        """Make the batch of this step of the epoch; `step` lies on the device, nothing waits for the host."""
        order, *drawn = (part.index_select(0, step.view(1)).squeeze(0) for part in self.plan)
        images = self.images[order]
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            images = augmentation.apply(images, numbers)
        batch = Batch(finished(images, self.augment), self.labels[order])
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            batch = augmentation.mix(batch, numbers)
        return self._own(batch)

    def _own(self, batch: NamedTuple) -> NamedTuple:
        """Leave out the images that were only there to be mixed in."""
        return (
            batch if self.own is None else type(batch)(*(part if part is None else part[: self.own] for part in batch))
        )

    def _drawn(self, rng: torch.Generator) -> list[Tensor]:
        return self._draw(rng) if self.own is None else [part[:, self.columns] for part in self._draw(rng)]

    def _draw(self, rng: torch.Generator) -> list[Tensor]:
        n_used = self.n_steps * self.batch
        if self.records:
            order, drawn = self.records.draw(len(self.labels), n_used, self.augment, rng)
            return [part.unflatten(0, (self.n_steps, self.batch)) for part in (order, *drawn)]
        if self.hard:
            order = self.hard.draw(self.known, n_used, rng)
        elif self.by_class is None:
            order = torch.randperm(len(self.labels), generator=rng)[:n_used]
        else:
            order = balanced_order(self.by_class, n_used, rng)
        drawn = [augmentation.draw(n_used, rng) for augmentation in self.augment]
        return [part.unflatten(0, (self.n_steps, self.batch)) for part in (order, *drawn)]


def in_order(data: Labelled, batch: int, device: torch.device, augment: Sequence[Augmentation] = ()) -> Iterator[Batch]:
    """Yield every image once, in order, for evaluation: nothing is random and nothing left out."""
    for start in range(0, len(data.labels), batch):
        images = data.images[start : start + batch].to(device)
        yield Batch(as_seen(images, augment), data.labels[start : start + batch].to(device))


def in_order_as_trained(
    data: Labelled, batch: int, device: torch.device, augment: Sequence[Augmentation], seed: int
) -> Iterator[Batch]:
    """Yield every image once, in order, augmented as in training but not mixed; a seed draws the same every time."""
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, len(data.labels), batch):
        images = data.images[start : start + batch].to(device)
        for augmentation in augment:
            images = augmentation.apply(images, augmentation.draw(len(images), rng).to(device))
        yield Batch(finished(images, augment), data.labels[start : start + batch].to(device))
