"""Figure 2 of "Training products of expert capsules with mixing by dynamic routing", in numbers. Paper's page: docs/papers/hauser2019.md.

The paper prints none, so no row has a printed one. Three stages: the autoencoder, the experts W, their decoder U.
Rows "to the letter" have Algorithm 1 and the rule of U alone. "Our way" departs from the paper: a force towards sparse experts, one pass
of routing for W, and a loud decoder (first logits by length, decoded capsules scaled). Every row says which of the two it is.
"""

from dataclasses import replace

from torchcaps.papers.changes import with_model
from torchcaps.papers.hauser2019.changes import with_decay, with_experts, with_rate
from torchcaps.results.claims import reproduces
from torchcaps.train.optimizers import SGD, Adam
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks.experts import Autoencode, LearnDecoder, LearnExperts
from torchcaps.train.tasks.rbm import LearnBottleneck, LearnRBM

# rates are large since couplings are small: of 576 inputs each has about 1 / 576, and the update has that factor
_AUTOENCODER = Stage(task=Autoencode(), epochs=10, batch=128, learning_rate=1e-3, schedule=Cosine(), optimizer=Adam())
_EXPERTS = Stage(
    task=LearnExperts(sparse=10.0, goal=0.1),
    epochs=10,
    batch=128,
    learning_rate=1000.0,
    schedule=Cosine(warmup=0.05),
    optimizer=SGD(momentum=0.9, l2=1e-8),
)
# l2 keeps the decoder to what a capsule says first of all; without it a sample's fifteen other directions draw other kinds
_DECODER = Stage(
    task=LearnDecoder(samples=500),
    epochs=2,
    batch=128,
    learning_rate=0.3,
    schedule=Cosine(warmup=0.05),
    optimizer=SGD(momentum=0.9, l2=1e-2),
)
_STAGES = _AUTOENCODER, _EXPERTS, _DECODER
_CHANGED = "our way (sparse experts, one pass for W, decoded capsules scaled)"
_MNIST = Run(data="mnist", model="experts", model_args={"experts": ((20, 16),), "rule": {"n_iters": 1}}, stages=_STAGES)
_ERROR = "test.squared_error"
_BESIDE = (
    "extras.restricted_n_pure",
    "extras.restricted_n_classes_pure",
    "extras.restricted_inverted_percent",
    "extras.complete_inverted_percent",
    "extras.swapped_percent",
    "extras.restricted_modal_share",
    "extras.restricted_entropy_nats",
    "extras.restricted_frechet",
    "extras.complete_frechet",
    "extras.restricted_spread",
    "extras.complete_spread",
    "extras.test_spread",
    "extras.restricted_nearest_mean",
    "extras.restricted_nearest_least",
    "extras.test_nearest_mean",
    "extras.test_nearest_least",
    "extras.probe_accuracy",
    "extras.probe_accuracy_unsquashed",
    "extras.probe_accuracy_untrained",
    "extras.probe_accuracy_untrained_unsquashed",
    "extras.probe_accuracy_maps",
)
_PROBE = ("extras.probe_accuracy",)


@reproduces(table="figure 2", row="MNIST to the letter, first weights scaled", metric=_ERROR, beside=_BESIDE)
def mnist_letter() -> Run:
    """Algorithm 1 and the rule of U alone: three passes from logits of 0, decoded capsules as they are."""
    return with_rate(with_experts(with_model(_MNIST, rule={"n_iters": 3}, loud=False), sparse=0.0), 300.0)


@reproduces(table="figure 2", row="Fashion-MNIST to the letter, first weights scaled", metric=_ERROR, beside=_BESIDE)
def fashion_letter() -> Run:
    """The same on pieces of clothing."""
    return replace(mnist_letter(), data="fashion-mnist")


@reproduces(table="figure 2", row="MNIST to the letter, from N(0, 0.01): the growth phase", metric=_ERROR, beside=_BESIDE)
def mnist_growth() -> Run:
    """The paper's first weights: Hebbian growth until the chain wakes, looked at every five steps."""
    first, second, *rest = with_experts(mnist_letter(), start_length=None).stages
    return replace(mnist_letter(), stages=(first, replace(second, probe_every=5), *rest))


@reproduces(table="figure 2", row=f"MNIST, {_CHANGED}", metric=_ERROR, beside=_BESIDE)
def mnist() -> Run:
    """Algorithm 1 with a force towards sparse experts: capsules that stand for kinds of digits."""
    return _MNIST


@reproduces(table="figure 2", row=f"Fashion-MNIST, {_CHANGED}", metric=_ERROR, beside=_BESIDE)
def fashion() -> Run:
    """The same on pieces of clothing."""
    return replace(_MNIST, data="fashion-mnist")


@reproduces(table="figure 2", row=f"CIFAR-10 in rgb, {_CHANGED}", metric=_ERROR, beside=_BESIDE)
def cifar10() -> Run:
    """The same on photographs: the text speaks of rgb and shows none."""
    return replace(_MNIST, data="cifar10")


@reproduces(table="figure 2", row=f"bundled digits, 32 channels and 5x5 filters, {_CHANGED}", metric=_ERROR, beside=_BESIDE)
def digits() -> Run:
    """The same on scikit-learn's 8x8 digits, enlarged to 16x16, for a CPU."""
    rates = 0.003, 50.0, 0.3
    epochs = 20, 25, 12
    stages = tuple(
        replace(stage, batch=32, learning_rate=learning_rate, epochs=n)
        for stage, learning_rate, n in zip(_STAGES, rates, epochs, strict=True)
    )
    return replace(with_model(_MNIST, channels=32, kernel=5, dropped=0.0), data="digits", stages=stages)


@reproduces(table="ablation", row="MNIST, experts to the letter, decoded capsules scaled", metric=_ERROR, beside=_BESIDE)
def mnist_letter_loud() -> Run:
    """What of the letter's pictures is the experts' doing, and what the decoder's."""
    return with_model(mnist_letter(), loud=True)


@reproduces(table="ablation", row="our way, but no force towards sparse experts", metric=_ERROR, beside=_BESIDE)
def mnist_dense() -> Run:
    """What the force is for."""
    return with_experts(_MNIST, sparse=0.0)


@reproduces(table="ablation", row="our way, but three passes", metric=_ERROR, beside=_BESIDE)
def mnist_r3() -> Run:
    """Routing by agreement in three passes, with the force."""
    return with_rate(with_model(_MNIST, rule={"n_iters": 3}), 300.0)


@reproduces(table="ablation", row="our way, but half of the force", metric=_ERROR, beside=_BESIDE)
def mnist_half() -> Run:
    """Experts that share more pictures know more of them, and stand for them less clearly."""
    return with_experts(_MNIST, sparse=5.0)


@reproduces(table="ablation", row="our way, but twice the force", metric=_ERROR, beside=_BESIDE)
def mnist_twice() -> Run:
    """The other way."""
    return with_experts(_MNIST, sparse=20.0)


@reproduces(table="ablation", row="our way, but a decoder without l2", metric=_ERROR, beside=_BESIDE)
def mnist_free_decoder() -> Run:
    """What the decay of U is for."""
    return with_decay(_MNIST, 0.0)


@reproduces(table="ablation", row="our way, but couplings that sum to 1 over the outputs, three passes", metric=_ERROR, beside=_BESIDE)
def mnist_outputs() -> Run:
    """The other normalisation: every input capsule spends one vote. Couplings are about 1 / 20."""
    return with_rate(with_model(_MNIST, rule={"n_iters": 3, "over": "outputs"}), 1.0)


@reproduces(table="ablation", row="our way, but on/off drawn", metric=_ERROR, beside=_BESIDE)
def mnist_sampled() -> Run:
    """Magnitudes of 0 or 1 by their probability, where Algorithm 1 passes the probability on."""
    return with_experts(_MNIST, sampled=True)


@reproduces(table="ablation", row="our way, but CD-5, on/off drawn", metric=_ERROR, beside=_BESIDE)
def mnist_cd5() -> Run:
    """Five sweeps, couplings found anew in each."""
    return with_experts(_MNIST, sampled=True, sweeps=5)


@reproduces(table="ablation", row="our way, but persistent chains, on/off drawn", metric=_ERROR, beside=_BESIDE)
def mnist_persistent() -> Run:
    """128 chains that go on from step to step."""
    return with_experts(with_model(_MNIST, n_chains=128), sampled=True, persistent=True)


@reproduces(table="ablation", row="our way, but persistent chains that begin anew once silent, on/off drawn", metric=_ERROR, beside=_BESIDE)
def mnist_restarted() -> Run:
    """The same; a chain in which every expert was drawn off, which would stay so for ever, goes on from a picture."""
    return with_experts(mnist_persistent(), restart=True)


@reproduces(table="future work", row="our way, but capsules on S^11 x R^4 x (0, 1)", metric=_ERROR, beside=_BESIDE)
def mnist_plain() -> Run:
    """Four of the sixteen numbers off the sphere: hidden Gaussians."""
    return with_model(_MNIST, n_plain=4)


@reproduces(
    table="future work", row="our way, but capsules on S^14 x R x (0, 1), twice the force, three times the decoder's l2",
    metric=_ERROR, beside=_BESIDE,
)  # fmt: skip
def mnist_plain_forced() -> Run:
    """One number off the sphere; chosen on held-out digits while two of the settings (`choose-plain-*`) were still running."""
    return with_decay(with_experts(with_model(_MNIST, n_plain=1), sparse=20.0), 0.03)


@reproduces(
    table="future work", row="our way, but capsules on S^13 x R^2 x (0, 1), three times the force, three times the decoder's l2",
    metric=_ERROR, beside=_BESIDE,
)  # fmt: skip
def mnist_plain_chosen() -> Run:
    """Two numbers off the sphere: of all settings the one with most capsules that keep to one class, on held-out digits."""
    return with_decay(with_experts(with_model(_MNIST, n_plain=2), sparse=30.0), 0.03)


@reproduces(table="variety", row="bundled digits, our way, but a decoder without l2", metric=_ERROR, beside=_BESIDE)
def digits_free_decoder() -> Run:
    """Whether the decoder's l2 makes a capsule's samples alike: `extras.restricted_spread` beside that of `digits`."""
    return with_decay(digits(), 0.0)


@reproduces(table="variety", row="bundled digits, our way, but as `mnist-plain-forced`", metric=_ERROR, beside=_BESIDE)
def digits_plain_forced() -> Run:
    """One number off the sphere, twice the force, three times the decoder's l2."""
    return with_decay(with_experts(with_model(digits(), n_plain=1), sparse=20.0), 0.03)


@reproduces(table="variety", row="bundled digits, our way, but as `mnist-plain-chosen`", metric=_ERROR, beside=_BESIDE)
def digits_plain_chosen() -> Run:
    """Two numbers off the sphere, three times the force, three times the decoder's l2."""
    return with_decay(with_experts(with_model(digits(), n_plain=2), sparse=30.0), 0.03)


@reproduces(table="bottom up", row="our way, and a second layer: 10 capsules of 16 on the 20", metric=_ERROR, beside=_BESIDE)
def mnist_stacked() -> Run:
    """Trained as the first one, above it. Couplings are about 1 / 20, so the rates are smaller."""
    experts = replace(_EXPERTS, task=replace(_EXPERTS.task, layer=1), learning_rate=3.0)
    decoder = replace(_DECODER, task=replace(_DECODER.task, layer=1, samples=1000), learning_rate=0.3)  # 10,000 pictures of ten capsules
    lower = replace(_DECODER, task=LearnDecoder())
    return replace(with_model(_MNIST, experts=((20, 16), (10, 16))), stages=(_AUTOENCODER, _EXPERTS, lower, experts, decoder))


@reproduces(table="baseline", row="RBM of 320 neurons on the same maps", metric=_ERROR, beside=_PROBE)
def mnist_rbm() -> Run:
    """A product of expert neurons: Gaussian visible ones, CD-1."""
    by_contrast = Stage(task=LearnRBM(), epochs=10, batch=128, learning_rate=1e-3, schedule=Cosine(), optimizer=SGD(momentum=0.9, l2=1e-4))
    return Run(data="mnist", model="rbm", model_args={"width": 320}, stages=(_AUTOENCODER, by_contrast))


@reproduces(table="baseline", row="autoencoder with a bottleneck of 320 on the same maps", metric=_ERROR, beside=_PROBE)
def mnist_bottleneck() -> Run:
    """A linear bottleneck of the same width by backpropagation."""
    last = Stage(task=LearnBottleneck(), epochs=5, batch=128, learning_rate=1e-3, schedule=Cosine())
    return Run(data="mnist", model="rbm", model_args={"form": "linear", "width": 320}, stages=(_AUTOENCODER, last))
