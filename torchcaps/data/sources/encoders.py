"""Frozen transformers that turn a sentence into embeddings, one for every token in every layer.

The last layer is taken after the final norm. Any encoder or decoder that the transformers library loads will do. A
tokenizer that ends a sentence with nothing of its own, as a decoder's, gets its end-of-sentence token appended, and
that token counts as one of the sentence. Letters: n tokens, l hidden states (one more than the transformer has
blocks), m width of an embedding.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.data.sources.files import DataError, cache_folder
from torchcaps.models.capsule_head import hidden_states, most_tokens

KEPT = 3  # sets whose embeddings stay in memory: a run's training, validation and test part
NO_LIMIT = 10**6  # tokenizers without a limit say some very large number


@dataclass(frozen=True)
class Encoder:
    """Transformer by name. Its files lie in a folder `encoders/<name>` below `root`, TORCHCAPS_DATA or the cache.

    Example:

        encoder = Encoder("my-bert", n_layers=13, width=768, root="models")  # its files: models/encoders/my-bert
        known = encoder_of("sst5-mpnet")
        known.name, known.n_layers, known.width  # ('all-mpnet-base-v2', 13, 768)
    """

    name: str
    n_layers: int = field(repr=False)  # hidden states
    width: int = field(repr=False)
    longest: int = field(default=0, repr=False)  # tokens of the longest sentence of SST; 0: nobody counted
    hub: str = field(default="", repr=False)  # its name on the Hugging Face hub, for whoever looks for the files
    root: str | Path | None = field(default=None, repr=False, compare=False)

    def folder(self) -> Path:
        """Find its files, for AutoModel.from_pretrained."""
        tried = []
        for place in self._places():
            if (place / "config.json").is_file():
                return place
            tried.append(f"\n  {place}: no config.json there")
        source = f" (on the Hugging Face hub: {self.hub})" if self.hub else ""
        raise DataError(
            f"the encoder {self.name} is not at hand:{''.join(tried)}\nput the files that `save_pretrained` writes, or "
            f"those of the hub, into one of these folders{source}; `torchcaps data get` with the name of the data set "
            "fetches those that it knows a mirror of"
        )

    def load(self, device: torch.device) -> TransformerEncoder:
        """Load it onto the device, frozen. The last one loaded is kept with what it embedded, for the next run."""
        return _loaded(self, str(self.folder()), str(device))

    def _places(self) -> list[Path]:
        named = [Path(place).expanduser() for place in (self.root or os.environ.get("TORCHCAPS_DATA"),) if place]
        return [*(place / "encoders" / self.name for place in named), cache_folder() / "encoders" / self.name]


@lru_cache(maxsize=1)
def _loaded(encoder: Encoder, folder: str, device: str) -> TransformerEncoder:
    transformers = import_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype="auto")
    found = TransformerEncoder(encoder.name, model, tokenizer, torch.device(device))
    if (found.n_layers, found.width) != (encoder.n_layers, encoder.width):
        raise DataError(
            f"{encoder.name} has {encoder.n_layers} hidden states of {encoder.width} dimensions; what lies in {folder} "
            f"has {found.n_layers} of {found.width}; put the right files there, or say so of an encoder of your own"
        )
    return found


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ValueError("embeddings of sentences need transformers; pip install 'torchcaps[sentences]'") from error
    return transformers


class TransformerEncoder:
    """Model and tokenizer of the transformers library: texts -> token numbers -> all hidden states.

    On CUDA it computes in bfloat16, else in float32; the model is moved and frozen. A sequence-to-sequence
    model gives its encoder.
    """

    def __init__(self, name: str, model: nn.Module, tokenizer: Any, device: torch.device | str = "cpu") -> None:
        model = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
        self.name, self.tokenizer, self.device = name, tokenizer, torch.device(device)
        self.weights_sha256 = weights_sha256(model)
        self.model = (
            model.eval()
            .requires_grad_(False)
            .to(self.device, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        )
        self.n_layers, self.width = model.config.num_hidden_layers + 1, model.config.hidden_size
        said = (
            getattr(model.config, "max_position_embeddings", None),
            most_tokens(model),
        )  # XLNet says -1: as many as there are
        self.limit = min(tokenizer.model_max_length, *(limit for limit in said if limit and limit > 0), NO_LIMIT)
        last = tokenizer("a")["input_ids"][-1]
        self.end = (
            [] if last in tokenizer.all_special_ids or tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        )
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.kept: OrderedDict[Any, Any] = OrderedDict()  # embeddings by what they are of: see embeddings.py

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn each text into token numbers, special ones included."""
        check_not_empty(texts)
        found = [[*ids, *self.end] for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]] if texts else []
        return check_not_too_long(found, texts, self.name, self.limit)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Write tokens as people read them."""
        plain = self.tokenizer.convert_ids_to_tokens(list(ids))
        return [token.replace("\u0120", "").replace("\u2581", "") or token for token in plain]

    @torch.no_grad()
    def hidden(self, ids: Int64[Tensor, "b n"], present: Bool[Tensor, "b n"]) -> Float[Tensor, "b n l m"]:
        """Compute all hidden states of padded sentences; values at padding mean nothing."""
        return torch.stack(hidden_states(self.model, ids, present.long()), dim=2)


def check_not_empty(texts: Sequence[str]) -> None:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise ValueError(f"sentence {number:,} of {len(texts):,} is empty; give it a word, or leave it out")


def check_not_too_long(tokens: list[list[int]], texts: Sequence[str], encoder: str, limit: int) -> list[list[int]]:
    for number, (text, ids) in enumerate(zip(texts, tokens, strict=True), start=1):
        if len(ids) > limit:
            raise ValueError(
                f"sentence {number:,} of {len(texts):,} has {len(ids):,} tokens and {encoder} takes {limit:,}: "
                f"{text[:40]!r}...; cut it, or take an encoder for longer texts"
            )
    return tokens


def weights_sha256(model: nn.Module) -> str:
    """Hash names and values, rounded to float16: a copy of the weights in half precision has the same hash."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            digest.update(f"{name} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().half().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


ENCODERS = {
    "mpnet": Encoder("all-mpnet-base-v2", 13, 768, 66, "sentence-transformers/all-mpnet-base-v2"),
    "minilm": Encoder("all-MiniLM-L6-v2", 7, 384, 66, "sentence-transformers/all-MiniLM-L6-v2"),
    "smollm2": Encoder("SmolLM2-135M-Instruct-Q4_1", 31, 576, 65),  # a decoder, in 4 bits a weight
    "gpt2-large": Encoder("gpt2-large", 37, 1280, 66, "openai-community/gpt2-large"),
}
