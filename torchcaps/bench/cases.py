"""Benchmark cases: op, shape, backends, and the problem that each is checked on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from torchcaps.ops import (
    EMRouted,
    LocalGrid,
    MatrixEMRouted,
    dynamic_routing,
    em_routing,
    keep_most_active,
    local_grid,
    local_routing,
    matrix_em_routing,
    squash,
)
from torchcaps.ops.couplings import coupling_rule
from torchcaps.ops.dynamic.cpu import Settings, route

Draw = Callable[..., Tensor]  # draw(*shape, scale=1.0): normal random numbers


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op at one shape. `call(backend, **inputs)` computes the output, `make(draw)` draws the inputs."""

    op: str
    shape: str
    batch: int
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    make: Callable[[Draw], dict[str, Tensor]]
    backends: Sequence[str] = ("reference",)
    n_votes: int = 0  # size of the votes that the reference materialises
    backward: bool = True  # False: forward only, as in inference
    # smaller problem that is checked instead, if this one needs more than 2 GB in float64. With triton it runs the same
    # kernels with the same flags; a test compares the launches
    stand_in: "Case | None" = None
    cannot: dict[str, str] = field(default_factory=dict)  # backends that are listed but not run, and why
    in_all: bool = False  # also report total memory, with inputs and gradients

    @property
    def name(self) -> str:
        """Op and shape."""
        return f"{self.op} {self.shape}"

    def inputs(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Draw the inputs directly on the device in their dtype; on a CPU the largest would take minutes."""
        rng = torch.Generator(device).manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*shape, generator=rng, device=device, dtype=dtype).mul_(scale)

        return {name: tensor.requires_grad_(self.backward) for name, tensor in self.make(draw).items()}

    def checked_on(self, backend: str) -> str:
        """Describe the stand-in that was checked; "" for the reference, or if the case itself was checked."""
        if self.stand_in is None or backend == "reference":
            return ""
        alike = ", which runs the same kernels with the same flags" if backend == "triton" else ""
        return f"checked on a smaller problem, {self.stand_in.shape}{alike}"


def _plain_einsum(poses: Tensor, weight: Tensor, bias: Tensor, n_iters: int) -> Tensor:
    """Route with einsum, as most implementations do; the reference multiplies and sums."""
    votes = torch.einsum("bid,ijde->bije", poses, weight)
    logits = votes.new_zeros(votes.shape[:-1])
    for t in range(n_iters):
        parents = squash(torch.einsum("bij,bije->bje", logits.softmax(-1), votes) + bias)
        if t < n_iters - 1:
            logits = logits + torch.einsum("bije,bje->bij", votes, parents)
    return parents


def _plain_bmm(poses: Tensor, weight: Tensor, bias: Tensor, n_iters: int) -> Tensor:
    """Route with the blocked backend as a single block."""
    settings = Settings(weight.shape[1], n_iters, coupling_rule("softmax"))
    return route(poses, weight, bias, None, settings)[0]


PLAIN = {"plain einsum": _plain_einsum, "plain bmm": _plain_bmm}


def dynamic(
    batch: int, n_in: int, n_out: int, d_in: int = 8, d_out: int = 16, n_iters: int = 3, *, types: int | None = None,
    label: str = "", backward: bool = True, **how,
) -> Case:  # fmt: skip
    """Make a case of dynamic routing. `types` None: one transform per pair of capsules. `how`: fields of Case."""

    def make(draw: Draw) -> dict[str, Tensor]:
        weight = draw(types or n_in, n_out, d_in, d_out, scale=n_in**-0.5)
        return {
            "poses": draw(batch, n_in, d_in, scale=d_in**-0.5),
            "weight": weight,
            "bias": draw(n_out, d_out, scale=0.1),
        }

    def call(backend: str, **inputs: Tensor) -> Tensor:
        if backend in PLAIN:
            return PLAIN[backend](**inputs, n_iters=n_iters)
        return dynamic_routing(**inputs, n_iters=n_iters, backend=backend).poses

    words = [
        f"b{batch} {n_in}x{d_in} -> {n_out}x{d_out} r{n_iters}",
        f"{types} types" if types else "",
        label,
        "" if backward else "forward",
    ]
    how |= {"n_votes": batch * n_in * n_out * d_out, "backward": backward}
    return Case(op="dynamic_routing", shape=" ".join(filter(None, words)), batch=batch, call=call, make=make, **how)


def em(
    batch: int, n_in: int, n_out: int, rows: int = 4, d_in: int = 4, d_out: int = 4, n_iters: int = 3, **how
) -> Case:
    """Make a case of EM routing with transforms shared by all inputs."""

    def make(draw: Draw) -> dict[str, Tensor]:
        # weights initialised as in the paper's code; betas that give output scores of order 1
        return {
            "scores": draw(batch, n_in), "poses": draw(batch, n_in, rows, d_in),
            "weight": draw(n_out, d_in, d_out, scale=1 / d_in), "bias": draw(n_out, rows, d_out, scale=0.1),
            "beta_use": draw(n_out, scale=n_out / n_in), "beta_ignore": draw(n_out, scale=1 / n_in),
        }  # fmt: skip

    def call(backend: str, **inputs: Tensor) -> EMRouted:
        return em_routing(**inputs, n_iters=n_iters, backend=backend)

    shape = f"b{batch} {n_in}x{rows}x{d_in} -> {n_out}x{rows}x{d_out} r{n_iters} shared"
    return Case(
        op="em_routing",
        shape=shape,
        batch=batch,
        call=call,
        make=make,
        n_votes=batch * n_in * n_out * rows * d_out,
        **how,
    )


def _grid_maker(size: int, kernel: int, stride: int = 1) -> Callable[[torch.device], LocalGrid]:
    """Make tables of a square grid on a device, once each, before anything is captured."""

    @cache
    def grid_on(device: torch.device) -> LocalGrid:
        return local_grid(size, size, kernel, stride).to(device)

    return grid_on


def matrix_em(batch: int, size: int, n_in: int, n_out: int, kernel: int, stride: int, **how) -> Case:
    """Make a case of EM routing of 4x4 matrix capsules on a square grid, soft as stacked layers want it."""

    def make(draw: Draw) -> dict[str, Tensor]:
        return {
            "scores": draw(batch, n_in * size * size), "poses": draw(batch, n_in * size * size, 4, 4),
            "weight": draw(n_in, kernel * kernel, n_out, 4, 4, scale=0.5),
            "beta_use": draw(n_out, scale=0.1), "beta_activate": draw(n_out),
        }  # fmt: skip

    grid_on = _grid_maker(size, kernel, stride)
    compiled = cache(lambda: torch.compile(matrix_em_routing, fullgraph=True))

    def call(backend: str, **inputs: Tensor) -> MatrixEMRouted:
        op = compiled() if backend == "compiled" else matrix_em_routing
        named = "reference" if backend == "compiled" else backend
        return op(**inputs, grid=grid_on(inputs["poses"].device), density_power=0.2, backend=named)

    shape = f"b{batch} {n_in}x{size}x{size}x4x4 -> {n_out}x4x4 k{kernel} s{stride} r3"
    places = ((size - kernel) // stride + 1) ** 2
    n_votes = batch * places * n_in * kernel * kernel * n_out * 16
    return Case(op="matrix_em_routing", shape=shape, batch=batch, call=call, make=make, n_votes=n_votes, **how)


def local(batch: int, size: int, n_in: int, n_out: int, d_in: int, d_out: int, kernel: int) -> Case:
    """Make a case of local routing on a square grid."""

    def make(draw: Draw) -> dict[str, Tensor]:
        weight = draw(n_in, kernel * kernel, n_out, d_in, d_out, scale=(n_in * kernel) ** -0.5)
        return {"poses": draw(batch, n_in * size * size, d_in), "weight": weight, "bias": draw(n_out, d_out, scale=0.1)}

    grid_on = _grid_maker(size, kernel)

    def call(backend: str, **inputs: Tensor) -> Tensor:
        return local_routing(**inputs, grid=grid_on(inputs["poses"].device)).poses

    shape = f"b{batch} {n_in}x{size}x{size}x{d_in} -> {n_out}x{d_out} k{kernel}"
    return Case(op="local_routing", shape=shape, batch=batch, call=call, make=make)


def squashing(batch: int, n: int, d: int) -> Case:
    """Make a case of `squash`."""
    return Case(
        op="squash",
        shape=f"b{batch} {n}x{d}",
        batch=batch,
        call=lambda backend, vectors: squash(vectors),
        make=lambda draw: {"vectors": draw(batch, n, d)},
    )


class _Rows(torch.autograd.Function):
    """Sum of the weight's rows of the kept capsules. The gradient is a dense product, since it covers every row."""

    @staticmethod
    def forward(ctx, weight: Tensor, code: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(code)
        return embedding_bag(index, weight, mode="sum")

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (code,) = ctx.saved_tensors
        return code.T @ gradient, None, None


def code_product(batch: int, n_in: int, n_kept: int, n_out: int) -> Case:
    """Make a case of a ladder network's first layer: a sparse code times a matrix.

    The reference is a dense product; the backend `rows` sums the rows of the ones.
    """

    @cache  # made once, before anything is captured
    def codes(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        activity = torch.rand(batch, n_in, generator=torch.Generator().manual_seed(1))
        kept = keep_most_active(activity.unsqueeze(-1), activity, n_kept)
        return kept.code.to(device, dtype), kept.index.to(device)

    def call(backend: str, weight: Tensor) -> Tensor:
        code, index = codes(weight.device, weight.dtype)
        return _Rows.apply(weight, code, index) if backend == "rows" else code @ weight

    shape = f"b{batch} {n_kept} of {n_in} -> {n_out}"
    scale = n_kept**-0.5
    make = lambda draw: {"weight": draw(n_in, n_out, scale=scale)}  # noqa: E731
    return Case(op="code_product", shape=shape, batch=batch, call=call, make=make, backends=("reference", "rows"))


def big_images(batch: int, n_types: int, places: int, n_out: int) -> Case:
    """Make a case of primary capsules on the full grid of a large image, whose votes exceed any memory."""
    case = partial(
        dynamic,
        batch,
        n_types * places,
        n_out,
        types=n_types,
        label="224x224",
        backends=("reference", "triton"),
        in_all=True,
    )
    sizes = batch, n_types * places, n_out, 16
    shape, size = " x ".join(f"{n:,}" for n in sizes), 4 * case().n_votes / 1e9
    votes = f"its votes alone, {shape} numbers, are {size:,.0f} GB in float32 (computed)"
    # enough images for the same tile and for more couplings than are kept; enough places for several tiles of a type
    return case(stand_in=dynamic(21, 16 * n_types, n_out, types=n_types), cannot={"reference": f"cannot run: {votes}"})


_ALL = ("reference", "compiled", "triton")
_PLAIN = ("reference", *PLAIN, "blocked")
CASES = {
    "cuda": [
        dynamic(128, 1152, 10, backends=_ALL),
        dynamic(128, 1152, 10, n_iters=1, backends=_ALL),
        dynamic(32, 4608, 10, backends=_ALL),
        dynamic(32, 18_432, 200, label="64x64", backends=("reference", "triton"), stand_in=dynamic(17, 656, 200)),
        big_images(32, 32, 104 * 104, 200),
        em(20, 5184, 64, backends=_ALL, stand_in=em(20, 848, 64)),
        matrix_em(64, 14, 32, 32, kernel=3, stride=2, backends=_ALL, stand_in=matrix_em(64, 14, 2, 32, 3, 2)),
        squashing(128, 1152, 8),
        code_product(100, 1152, 70, 10 * (2 * 384 + 210)),
        code_product(100, 4608, 70, 10 * (2 * 384 + 210)),
    ],
    "cpu": [
        dynamic(128, 1152, 10, backends=_PLAIN),
        dynamic(128, 1152, 10, backends=_PLAIN, backward=False),
        dynamic(32, 128, 10, backends=_PLAIN),
        em(4, 256, 8, backends=("reference", "blocked")),
        em(4, 5184, 64, backends=("reference", "blocked"), stand_in=em(4, 848, 64)),
        matrix_em(16, 14, 8, 16, kernel=3, stride=2, backends=("reference", "blocked")),
        local(8, 6, 8, 8, 8, 8, kernel=3),
        squashing(128, 1152, 8),
        code_product(16, 1152, 70, 978),
    ],
}


def select(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Select the cases whose name contains any of the texts; all without texts. Commas separate texts, too."""
    wanted = [part.strip() for text in only for part in text.split(",") if part.strip()]
    for part in wanted:
        if not any(part in case.name for case in cases):
            raise ValueError(f"--only {part!r} fits no case; there are:\n  " + "\n  ".join(case.name for case in cases))
    return [case for case in cases if not wanted or any(part in case.name for part in wanted)]
