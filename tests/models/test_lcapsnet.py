"""L-CapsNet: capsules and parameters counted by hand, its three presets, what it is told of and what learns."""

import re
from itertools import pairwise, product

import pytest
import torch
from torch.nn.functional import conv2d

from torchcaps.data import load
from torchcaps.data.batches import Batch
from torchcaps.layers import Capsules
from torchcaps.models import CapsNet, LCapsNet
from torchcaps.ops import length
from torchcaps.train.tasks.ladder import ClassifyLadder

SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "d_class": 6, "n_kept": 5}


def built(size: int, **options) -> LCapsNet:
    with torch.device("meta"):
        return LCapsNet((1, size, size), **options)


def n_parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def dense(*sizes: int) -> int:
    """Fully connected layers with biases."""
    return sum(a * b + b for a, b in pairwise(sizes))


def by_hand(n: int, k: int, conv: int = 9, primary: int = 9) -> int:
    """Table 1 for each of ten classes, behind the convolutions."""
    transforms, shares = dense(n, 384, 256, 128, 128 * k), dense(n, 3 * k, 2 * k, k, k)
    return 256 * conv**2 + 256 + 256 * 256 * primary**2 + 256 + 10 * (2 * transforms + shares)


@pytest.mark.parametrize(
    ("size", "kernels", "n", "counts"),
    [
        (28, (9, 9), 1152, {50: 35_282_324, 70: 42_795_724, 100: 54_200_824}),
        (28, (9, 15), 288, {50: 36_787_988, 70: 43_782_988, 100: 54_410_488}),
        (40, (9, 9), 4608, {50: 67_008_404, 70: 76_595_404, 100: 91_110_904}),
        (40, (15, 15), 1152, {50: 44_756_372, 70: 52_269_772, 100: 63_674_872}),
    ],
)
def test_capsules_and_parameters_of_table_2(size, kernels, n, counts):
    for k, count in counts.items():
        model = built(size, n_kept=k, kernel=kernels[0], primary_kernel=kernels[1])
        assert model.classes.n_in == n
        assert n_parameters(model) == by_hand(n, k, *kernels) == count


def test_shared_nets_fit_into_a_capsnet():
    with torch.device("meta"):
        capsnet = n_parameters(CapsNet())
    assert n_parameters(built(28, preset="shared")) == 8_173_648 < capsnet == 8_215_728


def test_without_pruning_all_are_kept():
    model = built(28, n_kept=None)
    assert model.classes.n_kept == 1152
    assert n_parameters(model) == by_hand(1152, 1152) == 556_583_424


def test_sizes_of_the_withdrawn_file():
    model = built(28, preset="withdrawn")
    transforms, shares = dense(1152, 128, 256, 384, 128 * 70), dense(1152, 70, 70, 70, 70)
    assert n_parameters(model) == 256 * 81 + 256 + 256 * 256 * 81 + 256 + 10 * (2 * transforms + shares) == 80_863_784
    assert model.primary.rectify and not built(28).primary.rectify


def test_its_primary_capsules_are_those_of_a_capsnet(rng):
    images = torch.rand(2, 1, 12, 12, generator=rng)
    model = LCapsNet((1, 12, 12), 3, **SMALL)
    sizes = {name: value for name, value in SMALL.items() if name not in ("n_kept",)}
    capsnet = CapsNet((1, 12, 12), 3, preset="paper", reconstruction=False, **sizes)
    for part in ("conv", "primary"):
        getattr(capsnet, part).load_state_dict(getattr(model, part).state_dict())
    torch.testing.assert_close(model.primary_capsules(images), capsnet.primary_capsules(images))
    assert model.grid == capsnet.grid


def test_no_pose_of_the_withdrawn_variant_points_down(rng):
    images = torch.rand(2, 1, 12, 12, generator=rng)
    poses = {
        preset: LCapsNet((1, 12, 12), 3, preset=preset, **SMALL).primary_capsules(images).poses
        for preset in ("withdrawn", "paper")
    }
    assert poses["withdrawn"].min() == 0 and poses["paper"].min() < 0


def test_forward_is_the_end_of_the_ladder(rng):
    model, images = LCapsNet((1, 12, 12), 3, **SMALL), torch.rand(4, 1, 12, 12, generator=rng)
    primary, laddered = model.ladder(images)
    assert isinstance(model(images), Capsules)
    torch.testing.assert_close(model(images), laddered.capsules)
    assert laddered.capsules.poses.shape == (4, 3, 6) and laddered.regressed.shape == (4, 3, 5, 4)
    torch.testing.assert_close(laddered.capsules.poses.norm(dim=-1), laddered.capsules.activity)  # |v_j| = d_j
    assert torch.equal(laddered.kept.code.sum(-1), torch.full((4,), 5.0))
    assert (laddered.kept.poses.norm(dim=-1).amin(-1) >= ((1 - laddered.kept.code) * primary.activity).amax(-1)).all()


def test_the_memory_format_of_the_convolutions_leaves_the_nets_as_they_lie():
    """A weight of four dimensions would be moved, and copied back for every product."""
    model = LCapsNet((1, 12, 12), 3, **SMALL).to(memory_format=torch.channels_last)
    assert not model.primary.weight.is_contiguous()
    assert all(parameter.is_contiguous() for parameter in model.classes.parameters())


def test_sections_3_to_5_of_the_paper_in_loops(rng):
    """Everything from the image to the loss once more, from the text: one image, one class, one capsule at a time."""
    model = LCapsNet((1, 12, 12), 3, **SMALL).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=rng)
    images, labels = torch.rand(2, 1, 12, 12, generator=rng, dtype=torch.float64), torch.tensor([2, 0])
    n, k, d, e = model.classes.n_in, SMALL["n_kept"], SMALL["d_primary"], SMALL["d_class"]

    def net(nets, number, code):
        z = (code @ nets.code_weight.unflatten(1, (nets.n_nets, -1))[:, number] + nets.code_bias[number, 0]).relu()
        *between, last = zip(nets.weights, nets.biases, strict=True)
        for weight, bias in between:
            z = (z @ weight[number] + bias[number, 0]).relu()
        z = z @ last[0][number] + last[1][number, 0]
        return z if nets.linear else z.relu()

    def matrices(kind, j, code):
        maker, z = model.classes.makers[kind], net(model.classes.hidden, j + (3 if kind == "down" else 0), code)
        made = [z @ row.view(-1, e) + bias for row, bias in zip(maker.weight[j], maker.bias[j], strict=True)]
        return torch.stack(made).view(k, d, e)

    def loss(image, label):
        hidden = conv2d(image, model.conv.weight, model.conv.bias).relu()
        inputs = conv2d(hidden, model.primary.weight, model.primary.bias, stride=2).unflatten(
            0, (-1, d)
        )  # [type d h w]
        inputs = [t for kind in inputs for t in kind.flatten(1).T]
        activity = [t.dot(t) / (1 + t.dot(t)) for t in inputs]
        rows = sorted(sorted(range(n), key=lambda i: -activity[i])[:k])
        kept = [activity[i] * inputs[i] / inputs[i].norm() for i in rows]
        code = torch.zeros(n, dtype=torch.float64).index_fill(0, torch.tensor(rows), 1)
        total = 1e-4 * sum((c - a) ** 2 for c, a in zip(code, activity, strict=True))
        for j in range(3):
            up, down = (matrices(kind, j, code) for kind in ("up", "down"))
            share = 1 / (1 + torch.exp(-net(model.classes.shares, j, code)))
            pose = sum(share[m] * kept[m] @ up[m] for m in range(k))
            told = [down[m] @ pose for m in range(k)]
            told = [r.norm() ** 2 / (1 + r.norm() ** 2) * r / r.norm() for r in told]
            active = torch.exp(-5.12 * sum((r - u).norm() ** 2 for r, u in zip(told, kept, strict=True)) / k)
            total = total + ((0.9 - active).relu() ** 2 if j == label else 0.5 * (active - 0.1).relu() ** 2)
        return total

    with torch.no_grad():
        found = ClassifyLadder().losses(model, Batch(images, labels))["loss"]
        wanted = sum(loss(*one) for one in zip(images, labels.tolist(), strict=True)) / 2
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9)


ROWS = list(product([(28, (9, 9)), (28, (9, 15)), (40, (9, 9)), (40, (15, 15))], [50, 70, 100], ["paper", "shared"]))
SOME = [ROWS[0], ROWS[11], ROWS[20]]  # every number of capsules, every first kernel, both presets


@pytest.mark.parametrize(
    ("images", "n_kept", "preset"), [row if row in SOME else pytest.param(*row, marks=pytest.mark.slow) for row in ROWS]
)
def test_every_row_of_table_2_starts_where_classes_can_be_told_apart(images, n_kept, preset):
    """Neither so active that nine classes push nor so silent that no gradient is left; lengths are far from both flat
    ends of squash.
    Few channels and small nets, which change no length; images that were not told; in the mean of four networks,
    which differ much where
    one net is shared by all classes."""
    size, kernels = images
    narrow = {
        "channels": 32,
        "d_class": 16 if preset == "shared" else 4,
        "kernel": kernels[0],
        "primary_kernel": kernels[1],
    }
    images = load("generated" if size == 28 else "generated-40", "train").images[:24].float() / 255
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = LCapsNet((1, size, size), n_kept=n_kept, preset=preset, **narrow)
        model.tell(images[:16])
        with torch.no_grad():
            _, (capsules, kept, _, told) = model.ladder(images[16:])
        assert capsules.activity.mean() > 0.03 and capsules.activity.max() < 0.9
        found.append(torch.stack([capsules.activity.mean(), length(kept.poses).mean(), length(told).mean()]))
    active, kept, told = torch.stack(found).mean(0)
    assert 0.1 < active < 0.45 and 0.7 < kept < 0.97 and 0.3 < told < 0.9


@pytest.mark.parametrize("preset", ["paper", "withdrawn", "shared"])
@pytest.mark.parametrize("blank", [False, True])
def test_every_parameter_learns_and_blank_pictures_do_no_harm(preset, blank, rng):
    model = LCapsNet((1, 12, 12), 3, preset=preset, **SMALL)
    images = torch.zeros(6, 1, 12, 12) if blank else torch.rand(6, 1, 12, 12, generator=rng)
    losses = ClassifyLadder(withdrawn=preset == "withdrawn").losses(
        model, Batch(images, torch.tensor([0, 1, 2, 0, 1, 2]))
    )
    losses["loss"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    if not blank:
        assert {name for name, p in model.named_parameters() if not p.grad.any()} == set()


def test_in_bfloat16_what_is_compared_stays_float32(rng):
    """As the captured step runs it, on a CPU: autocast around everything."""
    model, images = LCapsNet((1, 12, 12), 3, **SMALL), torch.rand(4, 1, 12, 12, generator=rng)
    with torch.autocast("cpu", torch.bfloat16):
        primary, laddered = model.ladder(images)
    compared = (primary.activity, laddered.regressed, laddered.misfit, *laddered.capsules[:2])
    assert {x.dtype for x in compared} == {torch.float32}
    assert (laddered.capsules.activity - model(images).activity).abs().max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "official"}, "LCapsNet: preset must be one of paper, withdrawn, shared; got 'official'"),
        ({"kernel": 15, "primary_kernel": 15}, "an image of 28x28 is too small for kernels of 15 and 15"),
        ({"n_kept": 2000}, "2000 of 1152 capsules cannot be kept"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        built(28, **options)


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=re.escape("LCapsNet expects images [b, 1, 12, 12], got [2, 1, 12, 11]")):
        LCapsNet((1, 12, 12), **SMALL)(torch.rand(2, 1, 12, 11))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper", pytest.param("shared", marks=pytest.mark.slow)])
def test_a_compiler_makes_one_graph_of_it(preset):
    """Two graphs cannot be fused, and it is slower by a sixth: torch 2.11 ends one where a `ParameterList` is sliced,
    2.13 does not.
    """
    model = LCapsNet((1, 12, 12), preset=preset, **SMALL)
    found = torch._dynamo.explain(lambda images: model.ladder(images)[1].misfit)(torch.rand(2, 1, 12, 12))
    assert found.graph_count == 1, found.break_reasons
