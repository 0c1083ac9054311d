"""Many small networks of the same input code, computed together (Jeong 2019, table 1)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from torchcaps.ops.ladder import Made
from torchcaps.ops.weight_product import weight_product

# initialisations
STARTS = {
    "told": "He, with the number of ones in a code as fan-in, scaled by FAINT; the caller sets the last layer",
    "linear": "PyTorch's default for linear layers: small weights and biases",
    "xavier": "Xavier, zero biases",
}
# scale of the first layer with the initialisation "told". A step of Adam changes a sum by the learning rate times the
# sum of its inputs. Smaller inputs and larger weights make the last layer change less per step, the first layer more
FAINT = 0.3


class CodeNets(nn.Module):
    """Fully connected ReLU networks, `n_nets` with `n_copies` each. A code [*b i] -> [n_nets n_copies *b o].

    Copies share all weights but the first bias, a class embedding. `linear`: no ReLU after the last layer. `n_active`:
    number of ones in a code. The product with the code is dense: in bfloat16 on an H200 that is faster than gathering
    rows, for 1152 and 4608 inputs; in float32 with 4608 it is not (bench/h200-code.txt).

    Example:

        nets = CodeNets(n_in=64, sizes=(32, 16), n_nets=1, n_copies=10, n_active=8)
        list(nets(torch.eye(64)[:4]).shape)  # [1, 10, 4, 16]
    """

    def __init__(
        self,
        n_in: int,
        sizes: Sequence[int],
        n_nets: int,
        n_copies: int = 1,
        *,
        n_active: int,
        linear: bool = True,
        start: str = "told",
    ) -> None:
        super().__init__()
        if start not in STARTS:
            raise ValueError(f"CodeNets: start must be one of {', '.join(STARTS)}; got {start!r}")
        self.n_in, self.sizes, self.n_nets, self.n_copies, self.linear = n_in, tuple(sizes), n_nets, n_copies, linear
        first, *_ = self.sizes
        # first layers of all nets side by side, so that one product computes them
        self.code_weight = nn.Parameter(torch.empty(n_in, n_nets * first))
        self.code_bias = nn.Parameter(torch.zeros(n_nets, n_copies, first))
        self.weights = nn.ParameterList(torch.empty(n_nets, *pair) for pair in pairwise(self.sizes))
        self.biases = nn.ParameterList(torch.zeros(n_nets, 1, size) for size in self.sizes[1:])
        self._start(start, n_active)

    @torch.no_grad()
    def _start(self, start: str, n_active: int) -> None:
        layers = [(self.code_weight, self.code_bias), *zip(self.weights, self.biases, strict=True)]
        for (weight, bias), (n_from, n_to) in zip(layers, pairwise((self.n_in, *self.sizes)), strict=True):
            if start != "told" or (self.linear and weight is self.weights[-1]):
                _start_linear(weight, bias, n_from, n_to, start)
            else:  # a ReLU halves the squares, hence 2 / fan-in; only the ones of a code count as inputs
                faint, n_from = (FAINT, n_active) if weight is self.code_weight else (1.0, n_from)
                weight.normal_(std=faint * (2 / n_from) ** 0.5)
            if weight is self.code_weight and self.n_copies > 1:
                bias.normal_(std=FAINT if start == "told" else 1.0)  # otherwise all classes would be the same

    def forward(self, code: Float[Tensor, "*b i"]) -> Float[Tensor, "n c *b o"]:
        if code.shape[-1] != self.n_in:
            raise ValueError(f"CodeNets expects a code of {self.n_in} capsules, got {list(code.shape)}")
        product = weight_product(code.reshape(1, -1, self.n_in), self.code_weight.unsqueeze(0))
        product = rearrange(product, "1 b (n h) -> n 1 b h", n=self.n_nets)
        # [n c b h]; in autocast's dtype, like the bias of a linear layer
        made = product + self.code_bias.unsqueeze(2).to(product.dtype)
        made = rearrange(made, "n c b h -> n (c b) h")
        for weight, bias in zip(self.weights, self.biases, strict=True):
            product = weight_product(relu(made), weight)
            made = product + bias.to(product.dtype)
        made = made if self.linear else relu(made)
        return made.reshape(self.n_nets, self.n_copies, *code.shape[:-1], self.sizes[-1])

    def extra_repr(self) -> str:
        copies = f" of {self.n_copies} copies" if self.n_copies > 1 else ""
        return f"{self.n_in} -> {' -> '.join(map(str, self.sizes))}, {self.n_nets} nets{copies}"


class MatrixLayer(nn.Module):
    """Linear last layer of networks that output matrices [m e]. Hidden [n c *b h] -> `Made`, with `r` = (c b).

    The weight has three axes, [n m (h e)]: `propagate_made` and `regress_made` read this layout directly, and a change
    to channels last does not affect it.
    """

    def __init__(self, n_nets: int, n_hidden: int, n_rows: int, d_out: int, *, start: str = "told") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_nets, n_rows, n_hidden * d_out))
        self.bias = nn.Parameter(torch.zeros(n_nets, n_rows, d_out))
        _start_linear(self.weight, self.bias, n_hidden, n_rows * d_out, start)

    def forward(self, hidden: Float[Tensor, "n c *b h"]) -> Made:
        return Made(hidden.flatten(1, -2), self.weight, self.bias)

    def extra_repr(self) -> str:
        n_nets, n_rows, d_out = self.bias.shape
        return f"{self.weight.shape[2] // d_out} -> {n_rows}x{d_out}, {n_nets} nets"


@torch.no_grad()
def _start_linear(weight: Tensor, bias: Tensor, n_from: int, n_to: int, start: str) -> None:
    if start == "linear":
        weight.uniform_(-(n_from**-0.5), n_from**-0.5)
        bias.uniform_(-(n_from**-0.5), n_from**-0.5)
    else:
        weight.normal_(std=(2 / (n_from + n_to)) ** 0.5)
