"""EM routing on a CPU without votes: the reference's results, whatever the poses."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from em_problems import D_IN, D_OUT, INF, N_IN, N_OUT, ROWS, gradients, problem
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps.ops import em as em_module
from torchcaps.ops import em_routing, em_routing_backend, own_output_prior
from torchcaps.ops.em import cpu
from torchcaps.ops.em.densities import EPS
from torchcaps.ops.testing import compare_routing

WEIGHTS = ("ijde", "njde", "jde", "de")
PARAMETERS = ("weight", "bias", "beta_use", "beta_ignore")
# bytes of a block, bytes kept
TWO = 2 * cpu.bytes_of_image(1, N_IN, N_OUT, ROWS, D_IN, D_OUT, 4)  # two images, and a last block of one
MODES = {"whole": (1 << 30, 1 << 30), "by images": (1, 1 << 30), "in twos": (TWO, 1 << 30), "computed again": (1, 0)}


@pytest.fixture(params=MODES)
def mode(request, monkeypatch):
    for name, value in zip(("BLOCK_BYTES", "KEPT_BYTES"), MODES[request.param], strict=True):
        monkeypatch.setattr(cpu, name, value)
    return request.param


def narrow(weight="jde", **how):
    """Inputs in float32; weight njde: two types of three places."""
    args = problem(weight.replace("n", "i"), dtype=torch.float32, **how)
    return {name: x[:2] if "n" in weight and name not in ("scores", "poses") else x for name, x in args.items()}


def prior_of(kind, batch):
    if kind is None:
        return {}
    prior = torch.randn((*batch, N_IN, N_OUT) if kind == "each" else (N_IN, N_OUT))
    if kind == "closed":
        prior[0, 1:], prior[1, 0] = -INF, -INF
    return {"prior": prior}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("n_iters", [1, 2, 4])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_value_and_gradients_are_right(mode, weight, n_iters, batch):
    margins = compare_routing(partial(em_routing, n_iters=n_iters), narrow(weight, batch=batch), backend="blocked")
    assert {"scores", "poses", "variances", "grad weight", "grad beta_ignore"} <= set(margins)


@pytest.mark.parametrize("prior", ["shared", "each", "closed"])
def test_a_prior_starts_the_routing_and_closes_pairs(mode, prior):
    args = narrow(batch=(3,)) | prior_of(prior, (3,))
    if prior == "closed":  # the gradient of -inf is undefined
        fixed = args.pop("prior")
        compare_routing(lambda **how: em_routing(**how, prior=fixed.to(how["poses"].dtype)), args, backend="blocked")
    else:
        compare_routing(em_routing, args, backend="blocked")


def test_own_outputs_come_first():
    args = narrow("de", j=N_IN)
    args["scores"][0, 3] = -INF
    prior = own_output_prior(args["scores"])
    found, wanted = (em_routing(**args, prior=prior, backend=name) for name in ("blocked", "reference"))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "sizes",
    [
        {"i": 1}, {"i": 1, "j": 1, "r": 1, "d": 1, "e": 1}, {"i": 7, "j": 13, "r": 3, "d": 1, "e": 2},
        {"r": 1, "d": 9, "e": 3}, {"i": 300, "j": 20, "r": 4, "d": 4, "e": 4},
    ],
    ids=str,
)  # fmt: skip
def test_odd_sizes(sizes):
    compare_routing(em_routing, narrow(**sizes), backend="blocked")


def test_a_single_output_gets_everything():
    args = narrow(j=1)
    found, exact = gradients(args, backend="blocked"), gradients({name: x.double() for name, x in args.items()})
    for name, wanted in exact.items():  # ignoring nothing, up to rounding
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-6, atol=1e-6)


def test_no_bias_and_tied_betas():
    args = narrow() | {"bias": None}
    args.pop("beta_ignore")
    compare_routing(lambda **how: em_routing(**how, beta_ignore=how["beta_use"]), args, backend="blocked")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_inputs_are_routed_in_float64(dtype):
    args = problem(dtype=dtype)
    found, exact = em_routing(**args, backend="blocked"), em_routing(**{name: x.double() for name, x in args.items()})
    for x, wanted in zip(found, exact, strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("padding", [0.0, 1e30, INF, float("nan")])
@pytest.mark.parametrize("weight", ["ijde", "jde", "de"])
def test_a_masked_input_is_as_good_as_removed(weight, padding):
    args, keep, gone = narrow(weight), [0, 2, 5], [1, 3, 4]
    args["scores"][:, gone] = -INF
    args["poses"][:, gone] = padding
    per_input = {} if weight != "ijde" else {name: args[name][keep] for name in PARAMETERS}
    cut = args | {name: args[name][:, keep] for name in ("scores", "poses")} | per_input
    cut = {name: x.double() for name, x in cut.items()}
    for found, wanted in zip(em_routing(**args, backend="blocked"), em_routing(**cut), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    whole, part = gradients(args, backend="blocked"), gradients(cut)
    for name in ("scores", "poses", *per_input):
        inputs = 1 if name in ("scores", "poses") else 0
        assert (whole[name].index_select(inputs, torch.tensor(gone)) == 0).all()
        whole[name] = whole[name].index_select(inputs, torch.tensor(keep))
    for name, wanted in part.items():
        torch.testing.assert_close(whole[name].double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_sample_that_is_all_mask_gives_nothing_and_harms_nobody():
    args = narrow()
    args["scores"][0] = -INF
    args["poses"][0] = float("nan")
    routed = em_routing(**args, backend="blocked")
    assert (routed.scores[0] == 0).all() and (routed.poses[0] == 0).all()
    torch.testing.assert_close(routed.variances[0], torch.full_like(routed.variances[0], EPS))
    alone = {name: x[1:] if name in ("scores", "poses") else x for name, x in args.items()}
    torch.testing.assert_close([x[1:] for x in routed], list(em_routing(**alone, backend="blocked")))
    found = gradients(args, backend="blocked")
    assert all(x.isfinite().all() for x in found.values()) and (found["poses"][0] == 0).all()


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4, 1e15])
def test_extreme_poses_and_scores_stay_finite(scale):
    args = narrow()
    args |= {"poses": args["poses"] * scale, "scores": args["scores"] * max(scale, 1.0)}
    found = em_routing(**args, backend="blocked")
    assert all(x.isfinite().all() for x in (*found, *gradients(args, backend="blocked").values()))


@pytest.mark.parametrize("weight", ["jde", "njde"])
def test_what_all_poses_of_a_type_have_in_common_does_not_cancel(weight):
    """Poses are 100,000 times as large as they differ; a second type lies on the other side, and their votes agree."""
    args = narrow(weight, i=50, r=1)
    if weight == "njde":
        args["poses"] = torch.cat([args["poses"][:, :25], args["poses"][:, 25:] - 2e5], 1)
        args["bias"][1] += 2e5 * args["weight"][1].sum(-2, keepdim=True)
    args["poses"] += 1e5
    compare_routing(em_routing, args, backend="blocked")
    found, exact = em_routing(**args, backend="blocked"), em_routing(**{name: x.double() for name, x in args.items()})
    torch.testing.assert_close(found.variances.double(), exact.variances, rtol=1e-5, atol=0)


def test_scores_far_below_zero_keep_their_digits():
    """The logarithm of a share that no float64 holds."""
    args = narrow()
    args |= {"beta_use": args["beta_use"] * 1e4, "beta_ignore": args["beta_ignore"] * 1e4}
    found, exact = em_routing(**args, backend="blocked"), em_routing(**{name: x.double() for name, x in args.items()})
    assert exact.scores.min() < -1e3
    for x, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double(), wanted, rtol=1e-6, atol=1e-6)


def test_a_variance_that_cancels_is_not_negative():
    """One pose is 1e9 times the others, and the centre lies between: no float64 holds their squares and differences."""
    args = narrow(i=50, r=2, d=3, e=2)
    args["poses"][:, 7] *= 1e9
    args["scores"].fill_(2.0)
    found = em_routing(**args, backend="blocked")
    assert all(x.isfinite().all() for x in found) and (found.variances > 0).all()


@pytest.mark.parametrize(("score", "pose"), [(-110.0, float("nan")), (-110.0, 1e9), (-88.0, 1e7), (-30.0, 1e9)])
def test_an_input_that_is_all_but_masked_harms_nobody(score, pose):
    """Its gate is 0 in float32 below -104; what all poses have in common is of those that are there."""
    args = narrow(i=50)
    args["scores"][:, 7], args["poses"][:, 7] = score, pose
    if pose == pose:
        compare_routing(em_routing, args, backend="blocked")
    found, exact = em_routing(**args, backend="blocked"), em_routing(**args, backend="reference")
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sizes", [{"batch": (0,)}, {"i": 0}, {"e": 0}, {"r": 0}], ids=str)
def test_empty_axes(sizes):
    args = narrow(**sizes)
    found, wanted = em_routing(**args, backend="blocked"), em_routing(**args, backend="reference")
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("weight", "n_places"), [("jde", 400), ("njde", 20), ("njde", 200)])
def test_what_is_kept_for_the_backward_pass_was_foreseen(weight, n_places):
    args = narrow(weight, batch=(1,), i=2 * n_places if "n" in weight else n_places, j=30, r=4, d=4, e=4)
    kept = {}
    leaves = {name: x.requires_grad_() for name, x in args.items()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.setdefault(x.untyped_storage().data_ptr(), x) is None or x, lambda x: x
    ):
        em_routing(**leaves, backend="blocked")
    found = sum(x.untyped_storage().nbytes() for x in kept.values())
    n_types = 2 if "n" in weight else 1
    foreseen = cpu.bytes_of_image(n_types, args["poses"].shape[1], 30, 4, 4, 4, 3)
    assert 0.5 < found / foreseen < 2


def test_poses_that_are_all_alike_have_no_variance():
    args = narrow()
    args["poses"] = args["poses"][:, :1].expand_as(args["poses"]).contiguous()
    found = em_routing(**args, backend="blocked")
    torch.testing.assert_close(found.variances, torch.full_like(found.variances, EPS), rtol=1e-2, atol=0)
    assert all(x.isfinite().all() for x in gradients(args, backend="blocked").values())


def test_second_derivatives_are_right(mode):
    """Of the poses, along a random direction."""

    def second(backend, dtype):
        args = {name: x.to(dtype).requires_grad_(name == "poses") for name, x in narrow(batch=(2,)).items()}
        routed = em_routing(**args, n_iters=2, backend=backend)
        (slope,) = torch.autograd.grad(sum(x.square().sum() for x in routed), args["poses"], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), args["poses"])[0].double()

    torch.testing.assert_close(
        second("blocked", torch.float32), second("reference", torch.float64), rtol=1e-4, atol=1e-4
    )


class Largest(TorchDispatchMode):
    """Notes the most numbers that any operation returns."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        if isinstance(found, torch.Tensor):
            self.most = max(self.most, found.numel())
        return found


@pytest.mark.parametrize(("backend", "stores"), [("blocked", False), ("reference", True)])
def test_votes_are_never_made(backend, stores):
    args = narrow(i=200, j=30, r=4, d=4, e=4)
    with Largest() as seen:
        em_routing(**args, backend=backend)
    n_pairs = args["scores"].numel() * 30
    assert (seen.most >= n_pairs * 16) == stores and (stores or seen.most <= n_pairs * 2)


def test_blocks_are_computed_again_only_where_they_would_fill_memory(mode, monkeypatch):
    calls = []
    monkeypatch.setattr(cpu, "checkpoint", lambda *args, **how: calls.append(args) or args[0](*args[1:]))
    args = narrow(batch=(3,))
    em_routing(**args, backend="blocked")
    assert len(calls) == (3 if mode == "computed again" else 0)
    with torch.no_grad():
        em_routing(**args, backend="blocked")
    assert len(calls) == (3 if mode == "computed again" else 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "at most 32 bits in float64, got torch.float64; convert the input"),
        ({"mixed": True}, "needs poses and weight of one type, got torch.bfloat16 and torch.float32"),
        ({"density": "laplace"}, "knows the Gaussian model of the votes only, got density='laplace'"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_what_it_cannot_run_is_refused_and_auto_takes_the_reference(change, reason, monkeypatch):
    monkeypatch.setattr(cpu, "FEW_VOTES", 0)
    monkeypatch.setattr(cpu, "COST_VOTE", 1e9)
    assert em_routing_backend(**narrow()) == "blocked"
    args = problem(dtype=change.get("dtype", torch.float32))
    args["poses"] = args["poses"].bfloat16() if "mixed" in change else args["poses"]
    how = {"density": change.get("density", "gaussian")}
    with pytest.raises(ValueError, match=f"em_routing: backend 'blocked' .*{reason}"):
        em_routing(**args, **how, backend="blocked")
    assert em_routing_backend(**args, **how) == "reference"


def test_regions_that_it_leaves_to_the_reference():
    args = narrow()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="does not run under autocast"):
        em_routing(**args, backend="blocked")
    alone = {name: x for name, x in args.items() if name != "poses"}
    with pytest.raises(ValueError, match=r"does not run inside torch\.func transforms"):
        torch.func.vmap(lambda poses: em_routing(poses=poses, **alone, backend="blocked"), 0)(args["poses"][None])


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ({"i": 5184, "j": 64, "r": 4, "d": 4, "e": 4}, "blocked"),
        ({"i": 1024, "j": 64, "r": 1, "d": 16, "e": 16}, "blocked"),
        ({"i": 16, "j": 2, "r": 4, "d": 4, "e": 4}, "reference"),  # few votes
        ({"weight": "ijde", "i": 512, "j": 64, "r": 4, "d": 4, "e": 4}, "reference"),  # a transform per pair
        ({"i": 512, "j": 10, "r": 1, "d": 64, "e": 64}, "reference"),  # 2,145 features
        ({"weight": "njde", "i": 10, "j": 64, "r": 4, "d": 4, "e": 4}, "reference"),  # two types of five places
        ({"weight": "njde", "i": 100, "j": 64, "r": 4, "d": 4, "e": 4}, "blocked"),
    ],
    ids=str,
)
def test_auto_takes_the_faster(sizes, taken):
    args = narrow(batch=(20,), **sizes)
    assert em_routing_backend(**args) == taken
    assert em_routing_backend(**args, compiling=True) == taken


def test_a_program_asks_for_one_image():
    args = narrow(batch=(20,), i=256, j=8, r=1, d=8, e=8)
    assert em_routing_backend(**args) == "blocked"
    assert em_routing_backend(**args, compiling=True) == "reference"


class Routing(torch.nn.Module):
    """EM routing of many votes, whose inputs share a transform."""

    def __init__(self):
        super().__init__()
        args = narrow(i=1024, j=16, r=1, d=8, e=8)
        for name in PARAMETERS:
            self.register_buffer(name, args[name])

    def forward(self, scores, poses):
        return em_routing(scores, poses, **dict(self.named_buffers()))


def inputs(batch, n_in=1024):
    args = narrow(batch=(batch,), i=n_in, j=16, r=1, d=8, e=8)
    return args["scores"], args["poses"].requires_grad_()


@pytest.fixture
def seen(monkeypatch):
    """Calls of the blocked backend, by the number of its blocks."""
    calls = []

    def route(*args):
        calls[-1] += 1
        return whole(*args)

    def routed(**args):
        calls.append(0)
        return original(**args)

    whole, original = cpu.route, cpu.routed
    monkeypatch.setattr(cpu, "route", route)
    monkeypatch.setitem(
        em_module._IMPLEMENTATIONS, "blocked", replace(em_module._IMPLEMENTATIONS["blocked"], load=lambda: routed)
    )
    return calls


def most_numbers(program):
    """Numbers of an image in the largest tensor that a program makes."""
    made = [node.meta.get("val") for node in program.graph.nodes]
    return max(x.numel() // len(x) for x in made if isinstance(x, torch.Tensor) and x.ndim > 2)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_for_any_batch_has_no_votes(strict):
    free = {0: torch.export.Dim("batch")}
    program = torch.export.export(Routing(), inputs(2), dynamic_shapes=(free, free), strict=strict)
    assert most_numbers(program) < 1024 * 16 * 8
    for found, wanted in zip(program.module()(*inputs(3)), Routing()(*inputs(3)), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_for_any_number_of_inputs_is_the_reference(strict):
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("count")}
    program = torch.export.export(Routing(), inputs(2), dynamic_shapes=(free, free), strict=strict)
    for found, wanted in zip(program.module()(*inputs(3, 700)), Routing()(*inputs(3, 700)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_compiled_program_has_the_same_gradients(seen, fresh_dynamo):
    gradients_of = []
    for routing in (torch.compile(Routing(), fullgraph=True, backend="aot_eager"), Routing()):
        scores, poses = inputs(3)
        gradients_of += torch.autograd.grad(sum(x.sin().sum() for x in routing(scores, poses)), poses)
    assert seen[0] == 1
    torch.testing.assert_close(*gradients_of)
