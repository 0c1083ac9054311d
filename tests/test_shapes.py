"""The shapes written in the signatures are true: jaxtyping and beartype check every call of every layer and model.

In a process of its own, because the checks must be in place before the package is imported, and because they and
`torch.compile` do not mix.
"""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook("torchcaps", "beartype.beartype"):
    import torchcaps
    from torchcaps import layers, models, ops
    from torchcaps.layers import conv_stem
    from torchcaps.models import em_images
    from torchcaps.ops import testing

import torch
from torch import nn

torch.manual_seed(0)  # a comparison fails for one draw in 200, whichever backend it is of


def differentiate(result):
    tensors = [result] if isinstance(result, torch.Tensor) else [x for x in result if isinstance(x, torch.Tensor)]
    sum(x.square().sum() for x in tensors).backward()


def primary(layer=layers.PrimaryCapsules):
    for features in (torch.rand(2, 3, 7, 9), torch.rand(1, 3, 5, 5)):
        differentiate(layer(3, n_types=2, d_out=4, kernel=3, share=2)(features))
        layer(3, n_types=2, d_out=4, kernel=3).calibrate(features)


def routed(layer=layers.RoutedCapsules):
    for sharing, options in dict(none={}, places=dict(n_types=3), inputs={}, all={}).items():
        made = layer(6, 3, 4, 5, sharing=sharing, learn_prior=True, **options)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(torch.randn(*batch, 6, 4)))
        list(made.steps(layers.Capsules.of(torch.randn(6, 4))))
        ops.routing_support(made.with_couplings(torch.randn(2, 6, 4)).couplings, 3)
    for couplings in ops.COUPLINGS:
        differentiate(layer(6, 3, 4, 5, couplings=couplings, detach=True)(torch.randn(2, 6, 4)))
    differentiate(layer(None, 3, 4, 5, sharing="inputs")(torch.randn(2, 7, 4)))
    made = layer(6, 3, 4, 5, sharing="places", n_types=2, batch_norm=True)
    for batch in ((2,), (2, 3)):
        differentiate(made(torch.randn(*batch, 6, 4)))
    made.calibrate(torch.randn(2, 6, 2, 2))
    made.eval()(torch.randn(6, 4))
    layers.calibrate(nn.Sequential(layer(6, 3, 4, 5), layer(3, 2, 5, 4)), torch.randn(2, 6, 2, 2))


def conv_routed(layer=layers.ConvRoutedCapsules):
    for couplings in ("softmax", "leaky", "max-min", "uniform"):
        differentiate(layer((4, 3), 2, 3, 4, 5, stride=2, padding=1, couplings=couplings)(torch.randn(2, 24, 4)))
    differentiate(layer((4, 3), 2, 3, 4, 5)(layers.Capsules.of(torch.randn(24, 4))))
    layer((4, 3), 2, 3, 4, 5).calibrate(torch.randn(2, 24, 4))


def matrix_em(layer=layers.MatrixCapsules):
    for batch in ((), (2,), (2, 3)):
        made, poses = layer(6, 3, 2, 4, 5), torch.randn(*batch, 6, 2, 4)
        differentiate(made(poses))
        made.calibrate(layers.Capsules.scored(poses, torch.randn(*batch, 6)))
        list(made.steps(poses))
    differentiate(layer(12, 3, grid=(2, 3))(torch.randn(2, 12, 4, 4)))
    made = layer(6, 3, 2, 4, 5, n_types=2, batch_norm=True)
    for batch in ((), (2,), (2, 3)):
        given = layers.Capsules.scored(torch.randn(*batch, 6, 2, 4), torch.randn(*batch, 6))
        differentiate(made(given))
    made.calibrate(given)
    list(made.steps(given))


def conv_matrix_em(layer=layers.ConvMatrixCapsules):
    for norm in (False, True):
        made, poses = layer((4, 3), 2, 3, stride=2, padding=1, batch_norm=norm), torch.randn(2, 24, 4, 4)
        differentiate(made(poses))
        made.calibrate(poses)
        list(made.steps(poses))


def em(layer=layers.EMCapsules):
    for options in (dict(), dict(sharing="inputs", cost="tied", density="laplace"), dict(sharing="all", cost="none", n_out=None)):
        made = layer(**dict(n_in=6, n_out=3, rows=2, d_in=4, d_out=5) | options)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(layers.Capsules.scored(torch.randn(*batch, 6, 2, 4), torch.randn(*batch, 6))))
        made.calibrate(torch.randn(2, 6, 8))
        list(made.steps(torch.randn(6, 2, 4)))
        assert made.backend_here() == "reference"


def lazy(layer=layers.LazyRoutedCapsules):
    for n_in in (6, None):
        made = layer(n_in, 3, 4, 5)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(layers.Capsules.scored(torch.randn(*batch, 6, 4), torch.randn(*batch, 6))))
        made.calibrate(layers.Capsules.scored(torch.randn(2, 6, 2, 2), torch.randn(2, 6)))
        list(made.steps(torch.randn(6, 4)))
        made.credit(torch.randn(2, 6, 4))


def attentive():
    for layer in (layers.SelfAttentionCapsules, layers.SelfRoutedCapsules, layers.InvertedCapsules):
        made = layer(6, 3, 4, 5)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(layers.Capsules.scored(torch.randn(*batch, 6, 4), torch.randn(*batch, 6))))
        made.calibrate(torch.randn(2, 6, 2, 2))
        list(made.steps(torch.randn(6, 4)))
    made = layers.SelfRoutedCapsules(6, 3, 4, 5, n_types=2, bias=True, batch_norm=True)
    for batch in ((), (2,), (2, 3)):
        differentiate(made(layers.Capsules.scored(torch.randn(*batch, 6, 4), torch.randn(*batch, 6))))
    made.calibrate(torch.randn(2, 6, 2, 2))


def capsule_layer(layer=layers.CapsuleLayer):
    for routing in layers.ROUTINGS:
        made = layer(6, 3, 4, 8, routing)
        for batch in ((2,), (2, 3)):
            differentiate(made(torch.randn(*batch, 6, 4)))
    layers.calibrate(nn.Sequential(layer(6, 3, 4, 8, "em"), layer(3, 2, 8, 4)), torch.randn(2, 6, 4))


def rank_mask(layer=layers.RankMask):
    made = layer(5)
    for batch in ((), (2,), (2, 3)):
        made(torch.rand(*batch, 5))
    list(map(made.eval().mask, (torch.rand(5), torch.rand(1, 5))))


def code_nets(layer=layers.CodeNets):
    made = layer(6, (5, 4), 2, 3, n_active=2)
    for batch in ((), (2,), (2, 3)):
        differentiate(made(torch.rand(*batch, 6)))


def ladder(layer=layers.LadderCapsules):
    for options in (dict(), dict(shared=True, agreement="both"), dict(agreement="none")):
        made = layer(6, 3, 4, 5, 2, **options)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(torch.randn(*batch, 6, 4)))
            found = made.ladder(torch.randn(*batch, 6, 4))
            ops.code_loss(found.kept.code, torch.rand(*batch, 6))
        made.calibrate(torch.randn(2, 6, 4))


def decoder(layer=layers.Decoder):
    differentiate(layer(3, 4, (1, 5, 6))(torch.randn(2, 3, 4), torch.eye(2, 3)))


def capsnet(model=models.CapsNet):
    for options in (dict(), dict(preset="paper", sharing="all"), dict(couplings="leaky", sharing="places")):
        made = model((1, 12, 12), 3, channels=8, kernel=3, n_types=2, d_primary=4, primary_kernel=3, d_class=6, hidden=(8, 8), **options)
        images, labels = torch.rand(2, 1, 12, 12), torch.tensor([0, 2])
        capsules = made(images)
        list(made.steps(images))
        margin = ops.margin_loss(capsules.activity, torch.eye(3)[labels]) * made.margin_weight()
        differentiate(margin + ops.reconstruction_loss(made.reconstruct(capsules.poses, labels), images))


def deep_capsnet(model=models.DeepCapsNet):
    for options in (dict(n_conv=1, reconstruction=True), dict(routing="em"), dict(depth=3, routing="lazy")):
        made = model((1, 12, 12), 3, n_hidden=4, channels=8, kernel=3, n_types=2, d_primary=4, primary_kernel=3, hidden=(8, 8), **options)
        images, labels = torch.rand(2, 1, 12, 12), torch.tensor([0, 2])
        made.calibrate(images)
        capsules = made(images)
        differentiate(made.reconstruct(capsules.poses, labels) if made.decoder else capsules)


def efficient_capsnet(model=models.EfficientCapsNet):
    for preset in ("mnist", "smallnorb"):
        made = model((1, 28, 27), 3, preset=preset, channels=(4, 4, 4, 8), hidden=(8, 8))
        images = torch.rand(2, 1, 28, 27)
        differentiate(made.reconstruct(made(images).poses, torch.tensor([0, 2])))
        list(made.steps(images))


def inverted_capsnet(model=models.InvertedCapsNet):
    made = model((1, 13, 14), 3, channels=(4, 4), n_types=2, d_pose=4, rows=2, n_iters=3)
    differentiate(made(torch.rand(2, 1, 13, 14)))


def routing_net(model=models.RoutingNet):
    made, images = model((1, 17, 18), 3, channels=4, n_types=2, n_parts=3, d_pose=4), torch.rand(2, 1, 17, 18)
    made.calibrate(images)
    differentiate(made(images))


def pooled_net(model=models.PooledNet):
    differentiate(model((1, 17, 18), 3, channels=4, n_features=5)(torch.rand(2, 1, 17, 18)))


def matrix_capsnet(model=models.MatrixCapsNet):
    for norm in (False, True):
        made, images = model((1, 17, 18), 3, channels=4, n_types=(2, 3, 2), batch_norm=norm), torch.rand(2, 1, 17, 18)
        made.calibrate(images)
        differentiate(made(images))


def em_capsnet(model=models.EMCapsNet):
    for options in (dict(), dict(coordinates=False, cost="none", density="student-t")):
        made = model((2, 12, 14), 3, channels=4, strides=(1, 2), n_types=3, n_parts=4, d_pose=2, **options)
        images = torch.rand(2, 2, 13, 12)
        differentiate(made(images))
        list(made.steps(images))


def lcapsnet(model=models.LCapsNet):
    for preset in ("paper", "withdrawn", "shared"):
        made = model((1, 12, 12), 3, channels=8, kernel=3, n_types=2, d_primary=4, primary_kernel=3, d_class=6, n_kept=5, preset=preset)
        differentiate(made(torch.rand(2, 1, 12, 12)))
        made.ladder(torch.rand(2, 1, 12, 12))


def sparsecaps(model=models.SparseCaps):
    for options in (dict(), dict(preset="dense")):
        made = model((1, 12, 12), 3, channels=8, kernel=3, n_types=2, primary_kernel=3, n_latent=5, hidden=(8, 8), **options)
        images = torch.rand(2, 1, 12, 12)
        differentiate(ops.reconstruction_loss(made.reconstruct(made(images).poses), images))
        differentiate(made.features(images))


def supcaps(model=models.SupervisedCaps):
    capsnet(model)
    made = model((1, 12, 12), 3, channels=8, kernel=3, n_types=2, primary_kernel=3, hidden=(8, 8))
    differentiate(made.features(torch.rand(2, 1, 12, 12)))


def sentences(model=models.EMSentenceNet):
    made = model(3, 8, 4, d_features=6, n_parts=5)
    for present in (None, torch.rand(2, 5), torch.rand(2, 5) > 0.5):
        differentiate(made(torch.randn(2, 5, 3, 8), present))
        made.used(torch.randn(2, 5, 3, 8), present)
        differentiate(models.PooledSentences(3, 8, 4, hidden=(6,))(torch.randn(2, 5, 3, 8), present))
    list(made.steps(torch.randn(1, 2, 3, 8)))


def baseline(model=models.Baseline):
    made = model((1, 12, 12), 3, preset="small")
    differentiate(made(torch.rand(2, 1, 12, 12)))
    made.features(torch.rand(1, 1, 12, 12))


def stackedcaps():
    for routing in ("dynamic", "em"):
        made = models.StackedCaps((1, 12, 12), routing=routing, n_layers=2, channels=4, kernel=3, n_types=2, primary_kernel=3,
                                  n_latent=5, d_latent=8, hidden=(8, 8))
        differentiate(made(torch.rand(2, 1, 12, 12)))
        made.features(torch.rand(1, 1, 12, 12))


def autoencoder(layer=layers.ConvAutoencoder):
    made = layer((1, 8, 9), channels=3, kernel=3)
    differentiate(made(torch.rand(2, 1, 8, 9)))


def expert_capsules(layer=layers.ExpertCapsules):
    for options in (dict(), dict(over="outputs", n_iters=1), dict(n_plain=2)):
        made = layer(6, 3, 4, 5, **options)
        for batch in ((), (2,), (2, 3)):
            differentiate(made(torch.randn(*batch, 6, 4)))
            made.phase(torch.randn(*batch, 6, 4))


def expert_net(model=models.ExpertNet):
    made = model((1, 12, 12), 3, channels=8, kernel=3, d_primary=4, experts=((3, 6), (2, 5)))
    images = torch.rand(2, 1, 12, 12)
    differentiate(made(images))
    made.reconstruct(made(images).poses)
    made.draw_samples(torch.randn(2, 2, 5), restricted=True)


def neuron_net(model=models.NeuronNet):
    for form in ("neurons", "linear"):
        made = model((1, 12, 12), 3, form=form, width=5, channels=4, kernel=3)
        images = torch.rand(2, 1, 12, 12)
        differentiate(made(images))
        made.reconstruct(made(images).poses)


def functions():
    vectors = torch.randn(2, 3, 4, requires_grad=True)
    differentiate(ops.squash(vectors) + ops.unsquash(vectors) + ops.length(vectors).unsqueeze(-1))
    differentiate(ops.spread_loss(vectors[0], torch.eye(3, 4)) + ops.presence_loss(vectors[0], torch.eye(3, 4)))
    poses, weight = torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5)
    differentiate(ops.convolve(torch.rand(1, 2, 5, 6), torch.rand(3, 2, 2, 2, requires_grad=True), torch.rand(3), 2))
    differentiate(ops.convolve_relu(torch.rand(1, 2, 5, 6), torch.rand(3, 2, 2, 2, requires_grad=True), torch.rand(3), 2))
    differentiate(ops.silu_with_sums(torch.randn(2, 3, 4, requires_grad=True), torch.randn(4), torch.zeros(4)))
    differentiate(ops.conv_silu_with_sums(torch.rand(2, 3, 5, 6), torch.rand(4, 3, 2, 2, requires_grad=True), torch.rand(4), torch.zeros(4), 2))
    differentiate(conv_stem.fused(em_images.stem(3, 4, (1, 2)), torch.rand(2, 3, 9, 10), torch.float32))
    differentiate(ops.em_routing(torch.randn(2, 6), torch.randn(2, 6, 2, 4), torch.randn(3, 4, 5, requires_grad=True),
                                 torch.randn(3, 2, 5), torch.randn(3), torch.randn(3)))
    result = ops.dynamic_routing(poses, weight)
    ops.recover_couplings(poses, weight, result.pose_sum)
    ops.recover_support(poses, weight, result.pose_sum, 3)
    assert ops.dynamic_routing_backend(poses, weight) == "blocked"
    testing.compare_routing(ops.dynamic_routing, dict(poses=poses, weight=weight), backend="blocked")


LAYERS = dict(PrimaryCapsules=primary, RoutedCapsules=routed, ConvRoutedCapsules=conv_routed, Decoder=decoder, EMCapsules=em)
LAYERS |= dict(CapsuleLayer=capsule_layer, LazyRoutedCapsules=lazy, RankMask=rank_mask, CodeNets=code_nets, LadderCapsules=ladder)
MODELS = {"capsnet": capsnet, "baseline": baseline, "em-capsnet": em_capsnet, "sparsecaps": sparsecaps, "supcaps": supcaps}
MODELS |= {"lcapsnet": lcapsnet, "deep-capsnet": deep_capsnet}
MODELS |= {"stackedcaps": stackedcaps, "experts": expert_net, "rbm": neuron_net}
MODELS |= {"efficient-capsnet": efficient_capsnet, "inverted-capsnet": inverted_capsnet}
LAYERS |= dict(SelfAttentionCapsules=attentive, SelfRoutedCapsules=attentive, InvertedCapsules=attentive)
LAYERS |= dict(MatrixCapsules=matrix_em, ConvMatrixCapsules=conv_matrix_em)
MODELS |= {"matrix-capsnet": matrix_capsnet, "routing-net": routing_net, "pooled-net": pooled_net}
LAYERS |= dict(ConvAutoencoder=autoencoder, ExpertCapsules=expert_capsules)
public = {name: getattr(layers, name) for name in layers.__all__}
found = {name for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, nn.Module)}
assert found == set(LAYERS), f"give every layer its lines in tests/test_shapes.py: {found ^ set(LAYERS)}"
assert set(models.MODELS) == set(MODELS), f"give every model its lines in tests/test_shapes.py: {set(models.MODELS) ^ set(MODELS)}"
for run in (*LAYERS.values(), *MODELS.values(), sentences, functions):
    run()

caught = 0
for wrong in (
    lambda: ops.squash(torch.ones(3, dtype=torch.int64)),
    lambda: ops.margin_loss(torch.rand(2, 3), torch.rand(2, 4)),
    lambda: ops.recover_couplings(torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5), torch.rand(2, 3, 4)),
    lambda: layers.PrimaryCapsules(3, 2, 4, kernel=3)(torch.rand(3, 7, 7)),
):
    try:
        wrong()
    except TypeCheckError:
        caught += 1
print(len(LAYERS), "layers", len(MODELS), "models", caught, "caught")
"""


def test_the_shapes_in_the_signatures_are_true():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[0] == "17 layers 15 models 4 caught"
