"""EM routing of sentences, from the embedding of every token in every transformer layer to one capsule per label.

Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", section 5 and figure 5: 140,480 parameters for five
labels on 37 layers of width 1280, 138,944 for two. Letters: n tokens, l transformer layers, m embedding dimensions.
Paper's names: the depth-of-layer parameter `depth`, the nonlinear transformation `features`, the routing layers `parts`
and `classes`. It takes embeddings, not images, so it is in `SENTENCE_MODELS`.
"""

from collections.abc import Iterator

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.layers import Capsules, EMCapsules
from torchcaps.models.checks import check_dtype, check_tensor, checked_classes
from torchcaps.ops import EMStep

Present = Float[Tensor, "b n"] | Bool[Tensor, "b n"] | Int64[Tensor, "b n"]


class EMSentenceNet(nn.Module):
    """Embeddings [b n l m] of sentences of any length -> one capsule per label, with the label's logit as score.

    `present` [b n]: 1 for a token, 0 for padding, between 0 and 1 for mixup. `depth`: adds a learnt embedding of the
    layer, which the routing would not see otherwise. A sentence of padding alone has scores of 0.

    Example:

        model = EMSentenceNet(n_layers=4, d_embedding=32, n_classes=5, n_parts=8)
        list(model(torch.randn(2, 7, 4, 32)).score.shape)  # [2, 5]
    """

    def __init__(
        self,
        n_layers: int = 37,
        d_embedding: int = 1280,
        n_classes: int = 5,
        *,
        d_features: int = 64,
        n_parts: int = 64,
        d_pose: int = 2,
        n_iters: int = 3,
        depth: bool = True,
        cost: str = "separate",
        density: str = "gaussian",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.n_layers, self.d_embedding = n_layers, d_embedding
        self.n_classes = checked_classes("EMSentenceNet", n_classes)
        self.depth = nn.Parameter(torch.zeros(n_layers, d_embedding)) if depth else None
        affine = nn.Linear(d_embedding, d_features)
        nn.init.kaiming_normal_(affine.weight)
        self.features = nn.Sequential(affine, nn.SiLU(), nn.LayerNorm(d_features))
        rule = {"cost": cost, "density": density, "backend": backend, "init": "paper"}
        self.parts = EMCapsules(None, n_parts, 1, d_features, d_pose, n_iters, sharing="inputs", **rule)
        self.classes = EMCapsules(n_parts, n_classes, 1, d_pose, d_pose, n_iters, **rule)

    def forward(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Capsules:
        return self.classes(self.parts(self.primary_capsules(embeddings, present)))

    def primary_capsules(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Capsules:
        """Compute the primary capsules, ordered (token, layer). `present` None: no padding."""
        check_tensor("EMSentenceNet", "embeddings", embeddings)
        self._check(embeddings, present)
        if present is None:
            present = embeddings.new_ones(embeddings.shape[:2])
        # padding may hold any value, and zero times a NaN gradient is not zero
        embeddings = embeddings.masked_fill((present == 0)[..., None, None], 0)
        if self.depth is not None:
            embeddings = embeddings + self.depth  # half precision becomes that of the weights here
        dtype = self.parts.weight.dtype
        check_dtype("EMSentenceNet", "embeddings", embeddings, dtype)
        features = self.features(embeddings)
        # back from autocast: scores are sums over thousands of capsules
        scores = repeat(present.to(dtype).logit(), "b n -> b (n l)", l=self.n_layers)
        return Capsules.scored(rearrange(features, "b n l d -> b (n l) 1 d").to(dtype), scores)

    def steps(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Iterator[EMStep]:
        """Yield every routing iteration between part and label capsules."""
        return self.classes.steps(self.parts(self.primary_capsules(embeddings, present)))

    def used(self, embeddings: Float[Tensor, "b n l m"], present: Present | None = None) -> Float[Tensor, "b k n l"]:
        """Compute how much each class used of each token and layer (paper: D^use of both routing layers, multiplied).

        From the last routing iteration, summed over all parts. The fractions of a present token sum to at most 1 over
        the classes; the rest went to inactive parts.
        """
        *_, first = self.parts.steps(self.primary_capsules(embeddings, present))
        *_, second = self.classes.steps(Capsules.scored(first.poses, first.scores))
        through = torch.einsum("bij,bjk->bki", first.used, second.used)
        return rearrange(through, "b k (n l) -> b k n l", l=self.n_layers)

    def _check(self, embeddings: Tensor, present: Tensor | None) -> None:
        if (
            embeddings.ndim != 4
            or tuple(embeddings.shape[2:]) != (self.n_layers, self.d_embedding)
            or embeddings.shape[1] == 0
        ):
            raise ValueError(
                f"EMSentenceNet expects embeddings [b, at least one token, {self.n_layers} layers, "
                f"{self.d_embedding} dimensions], got {list(embeddings.shape)}"
            )
        if present is not None and present.shape != embeddings.shape[:2]:
            raise ValueError(
                f"EMSentenceNet: present must be {list(embeddings.shape[:2])}, one number per token, got "
                f"{list(present.shape)}"
            )
