"""Classification head for any transformer: routes the hidden states of all layers and tokens to one capsule per class.

The network of Heinsen 2019, figure 5, on a model of the transformers library, which is passed in, not imported.
Letters: n tokens, l hidden states, m dimensions of each.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.layers import Capsules
from torchcaps.models.checks import checked_classes
from torchcaps.models.em_sentences import EMSentenceNet

MARK = "torchcaps.CapsuleHead"
Inputs = Int64[Tensor, "b n"] | Float[Tensor, "b c h w"]
TABLES = ("position_embeddings", "wpe", "embed_positions")  # the library's names of learnt position embeddings


class CapsuleHead(nn.Module):
    """Token ids and padding mask, as tokenizers return them, or images, for a vision transformer -> class logits [b k].

        encoder = AutoModel.from_pretrained(name)
        model = CapsuleHead(encoder, n_classes=2)
        batch = AutoTokenizer.from_pretrained(name)(texts, padding=True, return_tensors="pt")
        loss = torch.nn.functional.cross_entropy(model(**batch), labels)
        model.save("head.safetensors")  # and CapsuleHead.load("head.safetensors", encoder)

    The encoder is frozen and in evaluation mode; `train_encoder` trains it too, and then `save` includes its weights.
    Other settings go to `EMSentenceNet` (n_parts, n_iters, depth, ...). A sequence-to-sequence model contributes its
    encoder. Padding may be left or right; only a model with absolute positions and no `position_ids` (BART) needs it on
    the right. For a decoder-only model, let the tokenizer append an end token. A vision transformer (ViT, DINOv2)
    takes `pixel_values` [b c h w] in place of token ids; its tokens are a class token and patches.
    """

    def __init__(self, encoder: nn.Module, n_classes: int, *, train_encoder: bool = False, **settings: Any) -> None:
        super().__init__()
        n_classes = checked_classes("CapsuleHead", n_classes)
        encoder = encoder.get_encoder() if getattr(encoder.config, "is_encoder_decoder", False) else encoder
        self.encoder, self.train_encoder, self.settings = encoder, train_encoder, {"n_classes": n_classes, **settings}
        self.head = EMSentenceNet(
            encoder.config.num_hidden_layers + 1, encoder.config.hidden_size, n_classes, **settings
        )
        self.sees_images = getattr(encoder, "main_input_name", "input_ids") == "pixel_values"
        self.limit, self.count_places = most_tokens(encoder), _counts_padding(encoder)
        encoder.requires_grad_(train_encoder)
        self.train(self.training)

    def forward(
        self, input_ids: Inputs | None = None, attention_mask: Int64[Tensor, "b n"] | None = None, **more: Any
    ) -> Tensor:
        """Compute class logits [b k]. `more`: other inputs of the encoder, such as token_type_ids or pixel_values."""
        return self.capsules(input_ids, attention_mask, **more).logit

    def capsules(
        self, input_ids: Inputs | None = None, attention_mask: Int64[Tensor, "b n"] | None = None, **more: Any
    ) -> Capsules:
        """Compute the class capsules with their poses."""
        return self.head(*self._embedded(input_ids, attention_mask, more))

    def used(
        self, input_ids: Inputs | None = None, attention_mask: Int64[Tensor, "b n"] | None = None, **more: Any
    ) -> Float[Tensor, "b k n l"]:
        """Compute how much each class used of each token and layer: see `EMSentenceNet.used`."""
        return self.head.used(*self._embedded(input_ids, attention_mask, more))

    def train(self, mode: bool = True) -> "CapsuleHead":
        """Set training mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if not self.train_encoder:
            self.encoder.eval()  # no dropout in a frozen encoder
        return self

    def save(self, path: Path | str) -> None:
        """Save the head, and the encoder if it was trained, as one safetensors file."""
        from safetensors.torch import save_file  # here, so that models alone need only torch

        kept = self if self.train_encoder else self.head
        # cloned, since safetensors refuses tensors that share memory, such as tied embeddings
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in kept.state_dict().items()}
        save_file(tensors, path, {MARK: json.dumps({**self.settings, "train_encoder": self.train_encoder})})

    @classmethod
    def load(cls, path: Path | str, encoder: nn.Module) -> "CapsuleHead":
        """Load a saved head onto `encoder`; overwrite the encoder's weights if they were trained."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get(MARK, "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is not a whole file of a CapsuleHead ({error}); give one that save() wrote"
            ) from error
        if about is None:
            raise ValueError(f"{path} is a safetensors file of something else; give one that CapsuleHead.save() wrote")
        model = cls(encoder, **about)
        wanted = model if model.train_encoder else model.head
        try:
            wanted.load_state_dict(tensors)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise ValueError(
                f"{path} was saved with another encoder ({reason}); load it on the one that it was trained with"
            ) from error
        return model

    def _embedded(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, more: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        if self.sees_images:
            return self._embedded_images(input_ids, attention_mask, more), None
        self._check(input_ids, attention_mask)
        if self.count_places and attention_mask is not None and "position_ids" not in more:
            more = {**more, "position_ids": (attention_mask.long().cumsum(1) - 1).clamp(min=0)}
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
            states = hidden_states(self.encoder, input_ids, attention_mask, **more)
        return torch.stack(states, dim=2).to(self.head.parts.weight.dtype), attention_mask

    def _embedded_images(self, first: Tensor | None, attention_mask: Tensor | None, more: dict[str, Any]) -> Tensor:
        """Embed images, given by position or as `pixel_values`. Every patch is there, so nothing is masked."""
        images = more.get("pixel_values", first)
        if images is None or images.ndim != 4 or attention_mask is not None:
            came = "an attention_mask" if attention_mask is not None else None if images is None else list(images.shape)
            raise ValueError(
                f"CapsuleHead on a vision transformer expects pixel_values [b, c, h, w] and no mask, got {came}; "
                "give what the image processor returns"
            )
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
            states = _every_layer(self.encoder(**more | {"pixel_values": images}, output_hidden_states=True))
        if len(shapes := {tuple(state.shape) for state in states}) > 1:
            raise ValueError(
                f"CapsuleHead needs hidden states of one shape, and those of {type(self.encoder).__name__} have "
                f"{len(shapes)}; take a transformer without stages, such as ViT or DINOv2"
            )
        return torch.stack(states, dim=2).to(self.head.parts.weight.dtype)

    def _check(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> None:
        if input_ids is None:
            raise ValueError("CapsuleHead expects token numbers [b n], as a tokenizer returns them, got no input_ids")
        if input_ids.ndim != 2 or input_ids.shape[1] == 0:
            raise ValueError(f"CapsuleHead expects token numbers [b, at least one token], got {list(input_ids.shape)}")
        n = input_ids.shape[1]
        if self.limit is not None and n > self.limit:
            raise ValueError(
                f"CapsuleHead: the texts have {n:,} tokens, padding included, and the encoder takes {self.limit:,}; "
                "cut them "
                f"(truncation=True, max_length={self.limit} for the tokenizer), or take an encoder for longer texts"
            )
        if attention_mask is None:
            return
        if attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"CapsuleHead: attention_mask must be {list(input_ids.shape)}, one number per token, got "
                f"{list(attention_mask.shape)}"
            )
        if not torch.compiler.is_compiling() and not (there := attention_mask.bool().any(1)).all():
            number = int((~there).nonzero()[0]) + 1
            raise ValueError(
                f"CapsuleHead: text {number:,} of {len(there):,} is empty, all padding; give it a word, or leave it out"
            )


def hidden_states(
    encoder: nn.Module, input_ids: Int64[Tensor, "b n"], attention_mask: Int64[Tensor, "b n"] | None, **more: Any
) -> list[Float[Tensor, "b n m"]]:
    """Return the hidden states of every layer; the last one after the final norm, which some models' lists omit."""
    return _every_layer(encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, **more))


def _every_layer(said: Any) -> list[Float[Tensor, "b n m"]]:
    return [*said.hidden_states[:-1], said.last_hidden_state]


def most_tokens(encoder: nn.Module) -> int | None:
    """Return the maximum number of tokens of a transformer with learnt positions; None for others."""
    table = _position_table(encoder)
    if table is None:
        return None
    # some start counting after the id of the padding token, for example RoBERTa and MPNet
    behind_padding = 0 if table.padding_idx is None else table.padding_idx + 1
    return table.num_embeddings - getattr(table, "offset", behind_padding)


def _counts_padding(encoder: nn.Module) -> bool:
    """Return whether positions count left padding and `position_ids` can correct it.

    Models whose position table has a padding index or an offset handle padding themselves.
    """
    table = _position_table(encoder)
    looks = table is None or table.padding_idx is not None or hasattr(table, "offset")
    return not looks and "position_ids" in inspect.signature(encoder.forward).parameters


def _position_table(encoder: nn.Module) -> nn.Embedding | None:
    named = ((name.rpartition(".")[2], part) for name, part in encoder.named_modules())
    return next((part for name, part in named if name in TABLES and isinstance(part, nn.Embedding)), None)
