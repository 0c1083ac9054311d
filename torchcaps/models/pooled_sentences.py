"""Baseline for the routing of sentences: the mean over tokens in every layer, then a linear classifier or an MLP.

It uses the same embeddings as `EMSentenceNet` (Heinsen 2019, figure 5). Letters: n tokens, l transformer layers,
m embedding dimensions.
"""

from itertools import pairwise

from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.models.checks import check_dtype, check_tensor, checked_classes

Present = Float[Tensor, "b n"] | Bool[Tensor, "b n"] | Int64[Tensor, "b n"]
LAYERS = ("all", "last")


class PooledSentences(nn.Module):
    """Embeddings [b n l m] of sentences of any length -> label logits [b k].

    `hidden` empty: a linear probe. `layers`: the concatenated means of all layers, or of the last one only. Each mean
    is normalised to mean 0 and variance 1, without parameters, since layers differ in scale.

    Example:

        model = PooledSentences(n_layers=4, d_embedding=32, n_classes=5)
        list(model(torch.randn(2, 7, 4, 32)).shape)  # [2, 5]
    """

    def __init__(
        self,
        n_layers: int = 37,
        d_embedding: int = 1280,
        n_classes: int = 5,
        *,
        hidden: tuple[int, ...] = (),
        layers: str = "all",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if layers not in LAYERS:
            raise ValueError(f"PooledSentences: layers must be one of {', '.join(LAYERS)}; got {layers!r}")
        self.n_layers, self.d_embedding, self.layers = n_layers, d_embedding, layers
        self.n_classes = checked_classes("PooledSentences", n_classes)
        self.norm = nn.LayerNorm(d_embedding, elementwise_affine=False)
        sizes = d_embedding * (n_layers if layers == "all" else 1), *hidden
        parts = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.SiLU(), nn.Dropout(dropout))]
        self.classes = nn.Sequential(nn.Dropout(dropout), *parts, nn.Linear(sizes[-1], n_classes))

    def forward(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Float[Tensor, "b k"]:
        return self.classes(self.features(embeddings, present))

    def features(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Float[Tensor, "b f"]:
        """Compute the normalised means over tokens, weighted by `present`."""
        check_tensor("PooledSentences", "embeddings", embeddings)
        if (
            embeddings.ndim != 4
            or tuple(embeddings.shape[2:]) != (self.n_layers, self.d_embedding)
            or embeddings.shape[1] == 0
        ):
            raise ValueError(
                f"PooledSentences expects embeddings [b, at least one token, {self.n_layers} layers, "
                f"{self.d_embedding} dimensions], got {list(embeddings.shape)}"
            )
        check_dtype("PooledSentences", "embeddings", embeddings, self.classes[-1].weight.dtype)
        if self.layers == "last":
            embeddings = embeddings[:, :, -1:]
        present = embeddings.new_ones(embeddings.shape[:2]) if present is None else present.to(embeddings.dtype)
        # padding may hold any value. Tokens of mixup sentences are weighted already, so they are not weighted again
        total = embeddings.masked_fill((present == 0)[..., None, None], 0).sum(1)
        return self.norm(total / present.sum(1)[:, None, None]).flatten(1)
