"""Many small networks at once, all of them functions of the same code (Jeong 2019, table 1)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from torchcaps.ops.ladder import Made
from torchcaps.ops.weight_product import weight_product

STARTS = {
    "told": "He's, by the number of ones in a code, but fainter; whoever owns the nets sets the last layer",
    "linear": "as PyTorch's linear layers: small, biases too, so that at first nothing is told",
    "xavier": "Xavier's, biases zero",
}
# of hidden layers that start so. A step of Adam's moves a sum by the rate times all that it sums: less of what the last layer makes,
# the larger its weights are and the smaller its inputs, and more of what the first layer makes
FAINT = 0.3


class CodeNets(nn.Module):
    """`n_nets` fully connected networks with `n_copies` each. A code [*b i] -> [n_nets n_copies *b o].

    Copies share all weights and differ in the bias of the first layer: the class they are asked for, as an embedding. Hidden layers
    have a ReLU, the last is linear. `n_active`: how many ones a code has, which is what the first layer's sums are made of.
    The code is multiplied as it is, zeros too: in bfloat16 on an H200 faster than picking its rows, with 1152 and with 4608
    of them; in float32 with 4608 it is not (`torchcaps bench ops --only code`, bench/h200-code.txt).
    `d_matrix`: the last layer makes matrices [m e] of so many columns, and its weight lies as `Made` wants it, [n m (h e)].
    """

    def __init__(
        self,
        n_in: int,
        sizes: Sequence[int],
        n_nets: int,
        n_copies: int = 1,
        *,
        n_active: int,
        start: str = "told",
        d_matrix: int | None = None,
    ) -> None:
        super().__init__()
        if start not in STARTS:
            raise ValueError(f"CodeNets: start must be one of {', '.join(STARTS)}; got {start!r}")
        self.n_in, self.sizes, self.n_nets, self.n_copies, self.d_matrix = n_in, tuple(sizes), n_nets, n_copies, d_matrix
        first, *_ = self.sizes
        # rows of one capsule of the code, all nets side by side: one product for all of them
        self.code_weight = nn.Parameter(torch.empty(n_in, n_nets * first))
        self.code_bias = nn.Parameter(torch.zeros(n_nets, n_copies, first))
        self.weights = nn.ParameterList(torch.empty(n_nets, *pair) for pair in pairwise(self.sizes))
        self.biases = nn.ParameterList(torch.zeros(n_nets, 1, size) for size in self.sizes[1:])
        self._start(start, n_active)
        if d_matrix is not None:
            self.weights[-1] = nn.Parameter(rearrange(self.weights[-1].data, "n h (m e) -> n m (h e)", e=d_matrix))
            self.biases[-1] = nn.Parameter(rearrange(self.biases[-1].data, "n 1 (m e) -> n m e", e=d_matrix))

    @torch.no_grad()
    def _start(self, start: str, n_active: int) -> None:
        layers = [(self.code_weight, self.code_bias), *zip(self.weights, self.biases, strict=True)]
        for (weight, bias), (n_from, n_to) in zip(layers, pairwise((self.n_in, *self.sizes)), strict=True):
            if start == "linear":
                weight.uniform_(-(n_from**-0.5), n_from**-0.5)
                bias.uniform_(-(n_from**-0.5), n_from**-0.5)
            elif start == "xavier" or weight is self.weights[-1]:
                weight.normal_(std=(2 / (n_from + n_to)) ** 0.5)
            else:  # a ReLU halves the squares, hence 2 over the inputs; of a code only the ones are any
                faint, n_from = (FAINT, n_active) if weight is self.code_weight else (1.0, n_from)
                weight.normal_(std=faint * (2 / n_from) ** 0.5)
            if weight is self.code_weight and self.n_copies > 1:
                bias.normal_(std=FAINT if start == "told" else 1.0)  # or all classes would be the same

    def forward(self, code: Float[Tensor, "*b i"]) -> Float[Tensor, "n c *b o"]:
        if self.d_matrix is None:
            product = weight_product(self.hidden(code), self.weights[-1])
            made = product + self.biases[-1].to(product.dtype)  # autocast's dtype, as a linear layer's bias
        else:
            made = self.made(code).matrices()
        return made.reshape(self.n_nets, self.n_copies, *code.shape[:-1], self.sizes[-1])

    def made(self, code: Float[Tensor, "*b i"]) -> Made:
        """What nets with `d_matrix` make, before they do."""
        return Made(self.hidden(code), self.weights[-1], self.biases[-1])

    def hidden(self, code: Float[Tensor, "*b i"]) -> Float[Tensor, "n r h"]:
        """What the last layer is given; `r` = (c b)."""
        if code.shape[-1] != self.n_in:
            raise ValueError(f"CodeNets expects a code of {self.n_in} capsules, got {list(code.shape)}")
        product = weight_product(code.reshape(1, -1, self.n_in), self.code_weight.unsqueeze(0))
        product = rearrange(product, "1 b (n h) -> n 1 b h", n=self.n_nets)
        hidden = relu(product + self.code_bias.unsqueeze(2).to(product.dtype))  # [n c b h]
        hidden = rearrange(hidden, "n c b h -> n (c b) h")
        *between, _ = zip(self.weights, self.biases, strict=True)  # no slice of a ParameterList: torch 2.11's compiler stops there
        for weight, bias in between:
            product = weight_product(hidden, weight)
            hidden = relu(product + bias.to(product.dtype))
        return hidden

    def extra_repr(self) -> str:
        copies = f" of {self.n_copies} copies" if self.n_copies > 1 else ""
        return f"{self.n_in} -> {' -> '.join(map(str, self.sizes))}, {self.n_nets} nets{copies}"
