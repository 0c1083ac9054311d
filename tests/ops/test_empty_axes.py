"""Axes of size zero: an answer without NaN, or the usual message; never an error of Python's or torch's own."""

from itertools import product

import pytest
import torch

from torchcaps.ops import em_routing, inverted_routing, matrix_em_routing, self_attention_routing, self_routing


def made(b: int, i: int, j: int, d: int, e: int, n: int):
    """Arguments of every op that has no other test of empty axes, for n types of inputs."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    poses, weight = some(b, i, d), some(n, j, d, e)
    rows, betas = some(b, i, 2, d), (some(j), some(j))
    return {
        "em": lambda: em_routing(
            some(b, i), rows, some(i, j, d, e), some(i, j, 2, e), some(i, j), some(i, j), backend="reference"
        ),
        "matrix_em": lambda: matrix_em_routing(some(b, i), rows, weight, *betas),
        "inverted": lambda: inverted_routing(poses, weight),
        "inverted of rows": lambda: inverted_routing(some(b, i, 2 * d), weight, rows=2),
        "self_attention": lambda: self_attention_routing(poses, weight),
        "self_routing": lambda: self_routing(some(b, i).sigmoid(), poses, weight, some(n, d, j)),
    }


@pytest.mark.parametrize("n_types", [0, 2])
@pytest.mark.parametrize("op", made(1, 2, 1, 1, 2, 1))
def test_an_empty_axis_is_answered_or_refused_with_the_reason(op, n_types):
    answered = 0
    for gone in product((False, True), repeat=5):
        b, i, j, d, e = (0 if empty else size for size, empty in zip((2, 4, 3, 2, 4), gone, strict=True))
        try:
            found = made(b, i, j, d, e, n_types)[op]()
        except ValueError as error:
            assert str(error).startswith(f"{op.split()[0]}_routing".replace("self_routing_routing", "self_routing"))
            continue
        parts = [found] if isinstance(found, torch.Tensor) else found
        assert not any(part.isnan().any() for part in parts), f"{op}: NaN for {(b, i, j, d, e)}"
        assert parts[0].shape[0] == b
        answered += 1
    assert (answered > 0) == (n_types > 0 or op == "em")
