"""The blocked CPU backend: the reference's maths whatever is cut into blocks, and never all the votes at once."""

from functools import partial
from itertools import product
from weakref import ref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from torchcaps.ops import COUPLINGS, by_images, dynamic_routing, dynamic_routing_backend, recover_couplings
from torchcaps.ops.dynamic import cpu, cpu_pairs
from torchcaps.ops.dynamic.cpu import _blocks
from torchcaps.ops.testing import compare_routing

WEIGHTS = {"per pair": (6, 3, 4, 5), "per type": (2, 3, 4, 5), "per output": (3, 4, 5), "for all": (4, 5)}
# bytes of a block, largest block, images of a block of inputs; the votes of one image take 6 x 3 x 5 floats, 360 bytes
MODES = {
    "whole": (1 << 20, 1 << 20, 16),
    "by images": (1500, 1 << 20, 16),
    "by inputs": (300, 0, 3),
    "input by input": (1, 0, 1),
}
MODES |= {"by pairs": MODES["whole"]}


@pytest.fixture(params=MODES)
def mode(request, monkeypatch):
    for name, value in zip(
        ("BLOCK_BYTES", "LARGEST_BLOCK_BYTES", "IMAGES_OF_A_BLOCK_OF_INPUTS"), MODES[request.param], strict=True
    ):
        monkeypatch.setattr(cpu, name, value)
    monkeypatch.setattr(cpu_pairs, "MANY_CALLS", request.param == "by pairs")
    monkeypatch.setattr(cpu_pairs, "BLOCK_BYTES", 1000)  # three images of 6 x 3 x 4 floats, 288 bytes
    return request.param


def arguments(weight: tuple[int, ...], prior: bool = True) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = {"poses": (2, 5, 6, 4), "weight": weight, "bias": (3, 5)} | ({"prior": (6, 3)} if prior else {})
    return {name: 0.5 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


# couplings see logits, whatever the weight that the votes came of
RULES = [
    pytest.param(weight, couplings, marks=() if weight == "per pair" or couplings == "softmax" else pytest.mark.slow)
    for weight in WEIGHTS
    for couplings in COUPLINGS
]


@pytest.mark.parametrize(("weight", "couplings"), RULES)
def test_every_way_of_cutting_is_right_in_value_and_gradient(mode, weight, couplings):
    for n_iters in (1, 3):
        for prior in {True, couplings == "random"}:
            op = partial(dynamic_routing, couplings=couplings, n_iters=n_iters)
            compare_routing(op, arguments(WEIGHTS[weight], prior), backend="blocked")


def test_the_modes_are_what_they_say(mode, monkeypatch):
    """Otherwise the test above would check one way five times."""
    called = []
    for function in (by_images._ByImages, cpu._Iteration, cpu_pairs._ByPairs):
        name = function.__name__
        monkeypatch.setattr(
            function, "apply", lambda *args, name=name, apply=function.apply: called.append(name) or apply(*args)
        )
    dynamic_routing(**arguments(WEIGHTS["per pair"]), backend="blocked")
    assert called == {"whole": [], "by images": ["_ByImages"], "by pairs": ["_ByPairs"]}.get(mode, ["_Iteration"] * 3)


def test_pairs_are_for_a_transform_each_that_agreement_decides(mode, monkeypatch):
    """All else has few transforms, one pass or short votes, and an image of too many numbers is cut by its inputs."""
    called = []
    monkeypatch.setattr(cpu_pairs, "by_pairs", lambda *args: called.append(args) or cpu.route(*args[:-1]))
    for weight in WEIGHTS.values():
        dynamic_routing(**arguments(weight), backend="blocked")
        dynamic_routing(**arguments(weight), couplings="uniform", backend="blocked")
    assert len(called) == (mode == "by pairs")
    long = arguments(WEIGHTS["per pair"]) | {"weight": torch.zeros(6, 3, 4, 1), "bias": None}
    dynamic_routing(**long, backend="blocked")
    assert len(called) == (mode == "by pairs")
    monkeypatch.setattr(cpu, "LARGEST_BLOCK_BYTES", 287)
    dynamic_routing(**arguments(WEIGHTS["per pair"]), backend="blocked")
    assert len(called) == (mode == "by pairs")


@pytest.mark.parametrize("weight", WEIGHTS)
def test_blocks_cover_every_image_and_input_once(mode, weight):
    poses, transforms = torch.zeros(10, 6, 4), torch.zeros(WEIGHTS[weight])
    seen = torch.zeros(10, 6)
    for images, inputs, rows in _blocks(poses, transforms, 60):
        seen[images, inputs] += 1
        if weight == "per pair":
            assert rows == inputs
        if weight == "per type":
            assert {i // 3 for i in range(6)[inputs]} == set(range(2)[rows])
    assert (seen == 1).all()


@pytest.mark.parametrize("wanted", ["poses", "weight", "bias", "prior"])
def test_a_single_gradient_is_the_same_alone(mode, wanted):
    gradients = []
    for needed in ([wanted], ["poses", "weight", "bias", "prior"]):
        args = {name: x.requires_grad_(name in needed) for name, x in arguments(WEIGHTS["per pair"]).items()}
        dynamic_routing(**args, backend="blocked").poses.square().sum().backward()
        gradients.append(args[wanted].grad)
        assert all(args[name].grad is None for name in args if name not in needed)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("weight", ["per pair", "per output"])
def test_who_has_a_gradient_is_as_in_the_reference(mode, weight):
    """The sum of earlier poses has none where there is no earlier iteration."""
    for needed, n_iters in product((["poses", "weight"], ["bias"], ["prior"]), (1, 3)):
        found = []
        for backend in ("reference", "blocked"):
            args = {name: x.requires_grad_(name in needed) for name, x in arguments(WEIGHTS[weight]).items()}
            routed = dynamic_routing(**args, n_iters=n_iters, backend=backend)
            found.append([part.requires_grad for part in routed])
            routed.poses.sum().backward()  # which the mark must not disturb
        assert found[0] == found[1], (needed, n_iters)


def test_an_empty_batch_and_no_batch(mode):
    args = arguments(WEIGHTS["per pair"])
    assert dynamic_routing(**args | {"poses": args["poses"][:0]}, backend="blocked").poses.shape == (0, 5, 3, 5)
    one = dynamic_routing(**args | {"poses": args["poses"][1, 2]}, backend="blocked").poses
    torch.testing.assert_close(one, dynamic_routing(**args, backend="reference").poses[1, 2])


def test_no_block_makes_more_votes_than_it_may(mode, monkeypatch):
    """The promise of the backend: a batch's votes, 10 x 360 bytes here, are never made at once unless they are few."""
    made = []
    votes_of = cpu.votes_of
    monkeypatch.setattr(cpu, "votes_of", lambda *args: made.append(votes_of(*args).nbytes) or votes_of(*args))
    args = {name: x.requires_grad_() for name, x in arguments(WEIGHTS["per output"]).items()}
    dynamic_routing(**args, backend="blocked").poses.sum().backward()
    assert (
        max(made) <= {"whole": 3600, "by pairs": 3600, "by images": 1500, "by inputs": 300, "input by input": 60}[mode]
    )


def test_pairs_make_no_votes_and_few_numbers_at_once(mode, monkeypatch):
    """The same promise: of [j b d i] numbers, 10 x 288 bytes, those of three images."""
    made = []
    spread = cpu_pairs._spread
    monkeypatch.setattr(cpu_pairs, "_spread", lambda *args: made.append(spread(*args).nbytes) or spread(*args))
    if mode == "by pairs":
        monkeypatch.setattr(cpu, "votes_of", None)
    args = {name: x.requires_grad_() for name, x in arguments(WEIGHTS["per pair"]).items()}
    dynamic_routing(**args, backend="blocked").poses.sum().backward()
    assert max(made, default=0) == (3 * 288 if mode == "by pairs" else 0)


@pytest.mark.parametrize(("d_out", "most", "n_images"), [(5, 1 << 20, 3), (50, 1 << 20, 37), (50, 2000, 6)])
def test_many_transforms_make_larger_blocks_of_pairs_within_bounds(monkeypatch, d_out, most, n_images):
    """Three quarters of the weight's 1,440 and 14,400 bytes, at least 1,000 and at most so many, over the 288 of an
    image.
    """
    monkeypatch.setattr(cpu_pairs, "BLOCK_BYTES", 1000)
    taken = []
    monkeypatch.setattr(cpu_pairs._ByPairs, "apply", lambda *args: taken.append(args[5]))
    cpu_pairs.by_pairs(torch.zeros(1, 6, 4), torch.zeros(6, 3, 4, d_out), None, None, None, most)
    assert taken == [n_images]


def test_what_it_cannot_do_is_refused_with_the_reason():
    args = arguments(WEIGHTS["per pair"])
    with pytest.raises(
        ValueError, match=r"backend 'blocked' computes in float32 or float64, got torch.bfloat16; convert the input"
    ):
        dynamic_routing(**{name: x.bfloat16() for name, x in args.items()}, backend="blocked")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="does not run under autocast"):
        dynamic_routing(**args, backend="blocked")
    with pytest.raises(ValueError, match="passes gradients through every iteration; leave out detach=True"):
        dynamic_routing(**args, detach=True, backend="blocked")
    assert dynamic_routing_backend(args["poses"], args["weight"], detach=True) == "reference"
    with pytest.raises(ValueError, match="needs tensors on the CPU, got one on meta"):
        dynamic_routing(**{name: x.to("meta") for name, x in args.items()}, backend="blocked")


def test_gradients_can_be_differentiated_again(mode):
    """A gradient penalty under a linear loss must not vanish in silence."""
    penalties = []
    for backend in ("reference", "blocked"):
        args = {name: x.double().requires_grad_() for name, x in arguments(WEIGHTS["per pair"]).items()}
        (slope,) = torch.autograd.grad(
            dynamic_routing(**args, backend=backend).poses[..., 0].sum(), args["poses"], create_graph=True
        )
        slope.square().sum().backward()
        penalties.append([args[name].grad for name in ("poses", "weight", "bias", "prior")])
    torch.testing.assert_close(*penalties)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_many_gradients_at_once(mode, weight, again):
    """A Jacobian by `vectorize` hands over gradients that only some operations take."""
    found = []
    for backend, at_once in (("reference", False), ("blocked", True)):
        args = tuple(x.double() for x in arguments(WEIGHTS[weight]).values())

        def summed(poses, weight, bias, prior, backend=backend):
            routed = dynamic_routing(poses, weight, bias, prior=prior, backend=backend)
            return routed.poses.sum((0, 1))

        found.append(torch.autograd.functional.jacobian(summed, args, create_graph=again, vectorize=at_once))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("again", [False, True])
def test_a_layer_within_a_checkpoint_has_its_gradients(mode, again):
    """A checkpoint gives each saved tensor once."""
    gradients = []
    for call in (lambda function, *args: function(*args), partial(checkpoint, use_reentrant=False)):
        args = [x.requires_grad_() for x in arguments(WEIGHTS["per pair"], prior=False).values()]
        poses = call(lambda *x: dynamic_routing(*x, backend="blocked").poses, *args)
        gradients.append(torch.autograd.grad(poses.square().sum(), args, create_graph=again))
    torch.testing.assert_close(*gradients)


def test_pairs_keep_nothing_where_no_gradient_is_recorded(mode, monkeypatch):
    """Weights want gradients then too, and logits of the whole batch would wait for a backward pass that never
    comes.
    """
    outputs = cpu_pairs._outputs
    args = {name: x.requires_grad_() for name, x in arguments(WEIGHTS["per pair"]).items()}
    for recorded, expected in ((True, [0, 3, 6, 9]), (False, [0, 0, 0, 0])):
        sums, alive = [], []

        def counted(made, sums=sums, alive=alive):
            alive.append(sum(each() is not None for each in sums))
            sums.extend(ref(each.total) for each in made)
            return outputs(made)

        monkeypatch.setattr(cpu_pairs, "_outputs", counted)
        with torch.set_grad_enabled(recorded):
            dynamic_routing(**args, backend="blocked")
        assert alive == (expected if mode == "by pairs" else [])


def test_a_prior_and_a_bias_of_another_dtype_are_taken_like_the_reference_takes_them(mode):
    args = arguments(WEIGHTS["per pair"])
    args |= {"prior": args["prior"].double(), "bias": args["bias"].double()}
    torch.testing.assert_close(*(dynamic_routing(**args, backend=backend) for backend in ("blocked", "reference")))


def test_backward_under_autocast_is_not_made_coarser(mode):
    gradients = []
    for enabled in (False, True):
        args = {name: x.requires_grad_() for name, x in arguments(WEIGHTS["per pair"]).items()}
        loss = dynamic_routing(**args, backend="blocked").poses.square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss.backward()
        gradients.append(args["weight"].grad)
    if mode != "whole":  # plain PyTorch's own backward there, which is PyTorch's business
        assert torch.equal(*gradients)


def test_auto_steps_aside_inside_torch_func(mode):
    args = arguments(WEIGHTS["per pair"])
    slope = torch.func.grad(lambda poses: dynamic_routing(**args | {"poses": poses}).poses.sum())(args["poses"])
    args["poses"].requires_grad_()
    dynamic_routing(**args).poses.sum().backward()
    torch.testing.assert_close(slope, args["poses"].grad)


@pytest.mark.parametrize("couplings", ["softmax", "leaky", "max-min", "uniform"])
def test_empty_axes_are_answered_as_the_reference_does(couplings):
    """Every way to leave axes empty that the reference takes, with and without inputs to share a transform."""

    def outcome(backend: str, letters: str, sizes: dict[str, int]) -> list[list[int]] | str:
        args = {
            "poses": torch.ones(sizes["b"], sizes["i"], sizes["d"], requires_grad=True),
            "weight": torch.ones([sizes[letter] for letter in letters], requires_grad=True),
            "bias": torch.zeros(sizes["j"], sizes["e"]),
        }
        try:
            routed = dynamic_routing(**args, couplings=couplings, backend=backend)
        except ValueError as error:
            return str(error)
        routed.poses.sum().backward()
        return [list(part.shape) for part in routed] + [args[name].grad.tolist() for name in ("poses", "weight")]

    n = 0
    for letters, empty in product(("ijde", "njde", "jde", "de"), product((False, True), repeat=5)):
        sizes = {
            letter: 0 if gone else size for letter, size, gone in zip("bijde", (2, 4, 3, 2, 5), empty, strict=True)
        } | {"n": 2}
        if any(empty):
            n += 1
            assert outcome("blocked", letters, sizes) == outcome("reference", letters, sizes), (letters, sizes)
    assert n == 4 * 31


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_float16_votes_and_sums_are_float32(weight):
    """Votes of 1e5 and their sums overflow float16; poses and results do not."""
    rng = torch.Generator().manual_seed(0)
    poses = (1e4 * torch.randn(2, 6, 4, generator=rng)).half()
    weight, bias = (10 * torch.randn(weight, generator=rng)).half(), torch.zeros(3, 5).half()
    found = dynamic_routing(poses, weight, bias)
    exact = dynamic_routing(poses.double(), weight.double(), bias.double(), backend="reference")
    assert found.poses.dtype == torch.float16
    torch.testing.assert_close(found.poses.double(), exact.poses, rtol=2e-3, atol=1e-3)
    support = recover_couplings(poses, weight, found.pose_sum)
    assert support.isfinite().all()
