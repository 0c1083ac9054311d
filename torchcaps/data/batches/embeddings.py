"""Embeddings of a set of sentences: where they lie, and how a batch of them is taken.

They take much room: all phrases of SST's training trees in 13 layers of width 768 are 34 GB in bfloat16. So
- on a GPU all of them are computed once and stay in its memory where they fit (`InMemory`); where they do not, those of
  the next steps are computed shortly before these (`Window`);
- on a CPU, where computing them takes long, they are kept on disk and mapped into memory (`Shards`): files with
  the hash of their content in their name, so that a stopped computation goes on and a damaged file is made again.
Letters: t tokens of all sentences, one after the other.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data.sets.sst import GeneratedEncoder, Sentences
from torchcaps.data.sources.encoders import KEPT, TransformerEncoder
from torchcaps.data.sources.files import DataError, cache_folder
from torchcaps.runtime.files import write_whole

HALF = torch.bfloat16
AT_ONCE = 16_384  # tokens, padding included, that an encoder sees at once
PER_SHARD = 256  # sentences
SMALL = 2**28  # bytes: on a CPU what is smaller is not worth a file
SHARE = 0.6  # share of a GPU's free memory that embeddings may take; the rest is for the step
WINDOW = 2**33  # bytes of embeddings that are computed ahead where they do not all fit

Loaded = TransformerEncoder | GeneratedEncoder
Taken = tuple[Float[Tensor, "b n l m"], Float[Tensor, "b n"]]


class InMemory:
    """Embeddings that all lie on the device: a step that takes some can be captured."""

    def __init__(self, flat: Tensor, starts: Int64[Tensor, " n"], lengths: Int64[Tensor, " n"]) -> None:
        self.flat, self.starts, self.lengths = flat, starts, lengths
        self.longest = int(lengths.max())

    @classmethod
    def of(cls, encoder: Loaded, tokens: Sequence[list[int]], device: torch.device) -> InMemory:
        lengths = torch.tensor([len(ids) for ids in tokens])
        starts = lengths.cumsum(0) - lengths
        flat = torch.empty(int(lengths.sum()), encoder.n_layers, encoder.width, dtype=HALF, device=device)
        embed(encoder, tokens, starts, flat)
        return cls(flat, starts.to(device), lengths.to(device))

    def take(self, picks: Int64[Tensor, " b"], n: int) -> Taken:
        """Take `n` tokens of each sentence, zeros where it is shorter, and a mask that is 1 where there is a token."""
        places = torch.arange(n, device=picks.device)
        present = places < self.lengths[picks, None]
        rows = (self.starts[picks, None] + places).clamp(max=len(self.flat) - 1)
        return self.flat[rows].float().masked_fill(~present[..., None, None], 0), present.float()

    def prepare(self, picks: Int64[Tensor, "k b"]) -> int:
        """Make ready what the next steps take; return for how many of them it is."""
        return len(picks)


class Window(InMemory):
    """Embeddings of the next few steps, filled in by `prepare`; addresses stay, so a captured step sees them."""

    def __init__(
        self, encoder: Loaded, tokens: Sequence[list[int]], batch: int, device: torch.device, room: int = WINDOW
    ) -> None:
        lengths = torch.tensor([len(ids) for ids in tokens])
        self.encoder, self.tokens, longest = encoder, tokens, int(lengths.max())
        of_a_step = batch * longest * encoder.n_layers * encoder.width * HALF.itemsize
        self.n_steps = max(1, room // of_a_step)
        flat = torch.zeros(self.n_steps * batch * longest, encoder.n_layers, encoder.width, dtype=HALF, device=device)
        super().__init__(flat, torch.zeros(len(tokens), dtype=torch.long, device=device), lengths.to(device))

    def prepare(self, picks: Int64[Tensor, "k b"]) -> int:
        picks = picks[: self.n_steps]
        wanted = picks.flatten()
        starts = torch.arange(len(wanted)) * self.longest
        embed(self.encoder, [self.tokens[pick] for pick in wanted.tolist()], starts, self.flat)
        self.starts.index_copy_(0, wanted.to(self.starts.device), starts.to(self.starts.device))
        return len(picks)


class Shards:
    """Embeddings on disk, mapped into memory, for a CPU. Files with the right hash are taken, missing ones computed."""

    def __init__(self, folder: Path, encoder: Loaded, tokens: Sequence[list[int]]) -> None:
        self.lengths = torch.tensor([len(ids) for ids in tokens])
        self.longest = int(self.lengths.max())
        of_a_token = encoder.n_layers * encoder.width * HALF.itemsize
        self.shape = encoder.n_layers, encoder.width
        parts = [tokens[at : at + PER_SHARD] for at in range(0, len(tokens), PER_SHARD)]
        paths = [_whole(folder, number, of_a_token * sum(map(len, part))) for number, part in enumerate(parts)]
        missing = of_a_token * sum(
            len(ids) for part, path in zip(parts, paths, strict=True) if path is None for ids in part
        )
        if missing > (free := _free(folder)):
            raise DataError(
                f"embeddings of {len(tokens):,} sentences by {encoder.name} need {missing / 1e9:.1f} GB more in "
                f"{folder}, where {free / 1e9:.1f} GB are free; train on the root sentences alone, on a GPU, or set "
                "TORCHCAPS_CACHE to a disk with room"
            )
        for number, part in enumerate(parts):
            paths[number] = paths[number] or _compute(folder, number, encoder, part)
            if missing:
                print(
                    f"embeddings by {encoder.name}: {number + 1} of {len(parts)} shards in {folder}",
                    file=sys.stderr,
                    flush=True,
                )
        # private: nothing that is done to it reaches the file
        self.shards = [
            torch.from_file(str(path), shared=False, size=path.stat().st_size // HALF.itemsize, dtype=HALF).view(
                -1, *self.shape
            )
            for path in paths
        ]
        self.starts = torch.cat([within.cumsum(0) - within for within in self.lengths.split(PER_SHARD)])

    def take(self, picks: Int64[Tensor, " b"], n: int) -> Taken:
        """Take them as `InMemory` does."""
        embeddings, present = torch.zeros(len(picks), n, *self.shape), torch.zeros(len(picks), n)
        for row, pick in enumerate(picks.tolist()):
            start, length = int(self.starts[pick]), min(int(self.lengths[pick]), n)
            embeddings[row, :length] = self.shards[pick // PER_SHARD][start : start + length].float()
            present[row, :length] = 1
        return embeddings, present

    def prepare(self, picks: Int64[Tensor, "k b"]) -> int:
        return len(picks)


Store = InMemory | Shards


def store_for(data: Sentences, device: torch.device, batch: int = 1) -> Store:
    """Make the embeddings of these sentences for this device; they stay with the encoder for the next run."""
    encoder = data.encoder.load(device)
    key = hashlib.sha256(repr((data.texts, batch)).encode()).hexdigest(), str(device)
    if key in encoder.kept:
        encoder.kept.move_to_end(key)
        return encoder.kept[key]
    while len(encoder.kept) >= KEPT:
        encoder.kept.popitem(last=False)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # or the allocator keeps the room, and what is asked next is how much is free
    encoder.kept[key] = _make(encoder, encoder.tokenise(data.texts), device, batch)
    return encoder.kept[key]


def _make(encoder: Loaded, tokens: list[list[int]], device: torch.device, batch: int) -> Store:
    size = sum(map(len, tokens)) * encoder.n_layers * encoder.width * HALF.itemsize
    if device.type == "cuda":
        fits = size < SHARE * torch.cuda.mem_get_info(device)[0]
        return InMemory.of(encoder, tokens, device) if fits else Window(encoder, tokens, batch, device)
    if size <= SMALL:
        return InMemory.of(encoder, tokens, device)
    key = hashlib.sha256(repr((encoder.weights_sha256, tokens)).encode()).hexdigest()
    return Shards(cache_folder() / "embeddings" / f"{encoder.name}-{key[:16]}", encoder, tokens)


def embed(
    encoder: Loaded, tokens: Sequence[list[int]], starts: Int64[Tensor, " n"], flat: Float[Tensor, "t l m"]
) -> None:
    """Write the embeddings of each sentence into `flat`, from its start on; similar lengths are encoded together."""
    device = flat.device
    for group in groups([len(ids) for ids in tokens]):
        ids, present = padded([tokens[number] for number in group], encoder.pad)
        rows = torch.cat([torch.arange(len(tokens[number])) + starts[number] for number in group])
        hidden = encoder.hidden(ids.to(device), present.to(device))
        flat[rows.to(device)] = hidden.flatten(0, 1)[present.flatten().nonzero().squeeze(1).to(device)].to(HALF)


def groups(lengths: Sequence[int], at_once: int = AT_ONCE) -> Iterator[list[int]]:
    """Yield groups of sentences, the longest first, of at most `at_once` tokens with padding, or of one sentence."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    while order:
        many = max(1, at_once // lengths[order[0]])
        yield order[:many]
        order = order[many:]


def padded(tokens: Sequence[list[int]], fill: int) -> tuple[Int64[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """Put token numbers into one block, padded at the end, with a mask of where there is a token."""
    lengths = torch.tensor([len(ids) for ids in tokens])
    present = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(present.shape, fill)
    ids[present] = torch.tensor([number for several in tokens for number in several])
    return ids, present


def _whole(folder: Path, number: int, size: int) -> Path | None:
    """Find the shard of that number, if its content has the hash in its name; delete it otherwise."""
    for path in sorted(folder.glob(f"{number:05d}-*.bin")):
        content = path.read_bytes()
        if len(content) == size and path.stem == f"{number:05d}-{hashlib.sha256(content).hexdigest()[:16]}":
            return path
        path.unlink()
    return None


def _compute(folder: Path, number: int, encoder: Loaded, tokens: Sequence[list[int]]) -> Path:
    flat = InMemory.of(encoder, tokens, torch.device("cpu")).flat
    content = flat.view(torch.uint8).numpy().tobytes()
    return write_whole(folder / f"{number:05d}-{hashlib.sha256(content).hexdigest()[:16]}.bin", content)


def _free(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free
