"""Smoke runs: twenty steps of every model on generated images, for tests and golden losses."""

from dataclasses import replace

from torchcaps.data.augment import Crop, Shift
from torchcaps.data.augment.mixup import Mixup
from torchcaps.train.optimizers import SGD, RAdam
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine, OneCycle
from torchcaps.train.tasks.classify_pairs import ClassifyPairs
from torchcaps.train.tasks.experts import Autoencode, LearnDecoder, LearnExperts
from torchcaps.train.tasks.ladder import ClassifyLadder
from torchcaps.train.tasks.logits import ClassifyLogits, ClassifyScores
from torchcaps.train.tasks.rbm import LearnBottleneck, LearnRBM
from torchcaps.train.tasks.reconstruct import Reconstruct
from torchcaps.train.tasks.sentences import ClassifySentences
from torchcaps.train.tasks.spread import ClassifySpread

_SMALL = {"channels": 16, "kernel": 5, "n_types": 4, "primary_kernel": 5, "hidden": (32, 64)}


def _smoke(**model_args) -> Run:
    return Run(
        data="generated-16",
        model="capsnet",
        model_args=_SMALL | model_args,
        augment=(Shift(2),),
        stages=(Stage(steps=20, batch=16, learning_rate=3e-3, ema=0.9),),
    )


def capsnet() -> Run:
    """CapsNet as in the authors' code."""
    return _smoke()


def capsnet_paper() -> Run:
    """CapsNet exactly as in the paper's text."""
    return _smoke(preset="paper")


def capsnet_plain() -> Run:
    """CapsNet without decoder, with leaky couplings and one routing iteration."""
    return _smoke(reconstruction=False, couplings="leaky", n_iters=1)


def deep_capsnet() -> Run:
    """Three routed layers after a convolutional one, calibrated on the first batch."""
    small = {name: value for name, value in _SMALL.items() if name != "hidden"}
    return replace(_smoke(), model="deep-capsnet", model_args=small | {"depth": 3, "n_hidden": 8, "n_conv": 1})


def efficient_capsnet() -> Run:
    """Self-attention routing between a few primary and class capsules, with a decoder."""
    args = {"channels": (8, 8, 8, 16), "hidden": (32, 64)}
    return replace(_smoke(), model="efficient-capsnet", model_args=args)


def inverted_capsnet() -> Run:
    """Inverted attention routing of four layers at once."""
    args = {"channels": (8, 8), "n_types": 4, "d_pose": 8, "n_conv": 1}
    stage = Stage(task=ClassifyScores(), steps=20, batch=16, learning_rate=0.1, optimizer=SGD(l2=5e-4))
    return Run(data="generated-16", model="inverted-capsnet", model_args=args, augment=(Shift(2),), stages=(stage,))


def routing_net() -> Run:
    """Parts with shared transforms and classes on the stem of the EM network, by dynamic routing."""
    stage = Stage(steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    args = {"channels": 8, "n_types": 4, "n_parts": 6, "d_pose": 8}
    return Run(data="generated-16", model="routing-net", model_args=args, augment=(Shift(2),), stages=(stage,))


def pooled_net() -> Run:
    """Mean over places of the same stem, without capsules."""
    stage = Stage(task=ClassifyLogits(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    args = {"channels": 8, "n_features": 32}
    return Run(data="generated-16", model="pooled-net", model_args=args, augment=(Shift(2),), stages=(stage,))


def capsnet_shared() -> Run:
    """Control without routing: one transform per class shared by all inputs, uniform couplings."""
    return _smoke(sharing="inputs", couplings="uniform")


def capsnet_pairs() -> Run:
    """CapsNet on two overlapping images, each reconstructed."""
    stage = Stage(task=ClassifyPairs(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    return Run(data="generated-pairs", model="capsnet", model_args=_SMALL, stages=(stage,))


def baseline() -> Run:
    """Convolutional network without capsules."""
    stage = Stage(task=ClassifyLogits(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    return Run(
        data="generated-16", model="baseline", model_args={"preset": "small"}, augment=(Shift(2),), stages=(stage,)
    )


_SMALL_EM = {"channels": 8, "strides": (1, 2), "n_types": 4, "n_parts": 6}


def em_capsnet() -> Run:
    """EM routing in two layers: positions to parts, parts to classes."""
    stage = Stage(task=ClassifyScores(), steps=20, batch=16, learning_rate=1e-2, ema=0.9)
    return Run(data="generated-16", model="em-capsnet", model_args=_SMALL_EM, augment=(Shift(2),), stages=(stage,))


def em_capsnet_mixup() -> Run:
    """EM routing with its paper's training: RAdam, one cycle of learning rate and beta1, padded crops, mixup."""
    # a small beta2, so that twenty steps change the weights enough for golden losses
    optimizer = RAdam(beta2=0.9)
    stage = Stage(
        task=ClassifyScores(), steps=20, batch=16, learning_rate=0.1, schedule=OneCycle(), optimizer=optimizer
    )
    augment = Crop(16, border=2), Mixup()
    return Run(data="generated-16", model="em-capsnet", model_args=_SMALL_EM, augment=augment, stages=(stage,))


def matrix_capsnet() -> Run:
    """Matrix capsules in two convolutional layers and one of classes, with a margin that rises within the few steps."""
    task = ClassifySpread(rise=0.5)
    stage = Stage(task=task, steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    args = {"channels": 8, "n_types": (2, 3, 4), "n_iters": 2, "density_power": 0.5}  # steadier: golden losses
    return Run(data="generated", model="matrix-capsnet", model_args=args, augment=(Crop(18),), stages=(stage,))


def matrix_capsnet_norm() -> Run:
    """The same with batch normalisation before every routing."""
    run = matrix_capsnet()
    return replace(run, model_args=run.model_args | {"batch_norm": True})


def sparsecaps() -> Run:
    """Unsupervised latent capsules with rank mask and boosts, which change within the few steps."""
    small = _SMALL | {"n_latent": 6, "frequencies": (0.1, 0.25), "boost_every": 5}
    stage = Stage(task=Reconstruct(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="sparsecaps", model_args=small, augment=(Shift(2),), stages=(stage,))


def sparsecaps_dense() -> Run:
    """Unsupervised latent capsules without the mask."""
    stage = Stage(task=Reconstruct(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    args = _SMALL | {"preset": "dense", "n_latent": 6}
    return Run(data="generated-16", model="sparsecaps", model_args=args, augment=(Shift(2),), stages=(stage,))


def sparsecaps_paper() -> Run:
    """Latent capsules with CapsNet's preset of the text and a transform per type."""
    run = sparsecaps()
    return replace(run, model_args=run.model_args | {"capsnet_preset": "paper", "sharing": "places"})


def stackedcaps() -> Run:
    """Three latent layers, each with its own mask."""
    small = _SMALL | {"n_latent": 6, "frequencies": (0.1, 0.25), "boost_every": 5}
    stage = Stage(task=Reconstruct(), steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="stackedcaps", model_args=small, augment=(Shift(2),), stages=(stage,))


def stackedcaps_em() -> Run:
    """Two latent layers with EM routing."""
    run = stackedcaps()
    return replace(run, model_args=run.model_args | {"routing": "em", "n_layers": 2})


def supcaps() -> Run:
    """Supervised capsules, the baseline of the unsupervised ones."""
    return replace(_smoke(), model="supcaps")


_SMALL_LADDER = {
    "channels": 16,
    "kernel": 5,
    "n_types": 4,
    "primary_kernel": 5,
    "d_primary": 4,
    "d_class": 8,
    "n_kept": 10,
}


def _ladder(task: ClassifyLadder, **model_args) -> Run:
    stage = Stage(task=task, steps=20, batch=16, learning_rate=3e-3, ema=0.9)
    return Run(
        data="generated-16",
        model="lcapsnet",
        model_args=_SMALL_LADDER | model_args,
        augment=(Shift(2),),
        stages=(stage,),
    )


def lcapsnet() -> Run:
    """Ladder network by the paper's equations: ten of 64 capsules kept and regressed from each class."""
    return _ladder(ClassifyLadder())


def lcapsnet_shared() -> Run:
    """Ladder network with nets shared by all classes and agreement in both directions."""
    return _ladder(ClassifyLadder(), preset="shared", agreement="both")


def lcapsnet_ordered() -> Run:
    """Ladder network that keeps its capsules in the order of their activity; the code's weight rises."""
    return _ladder(ClassifyLadder(mean_code=True, ramp=0.5), order="activity")


def lcapsnet_withdrawn() -> Run:
    """Ladder network with the nets and losses of the authors' withdrawn file."""
    return _ladder(ClassifyLadder(withdrawn=True), preset="withdrawn")


def em_sentences() -> Run:
    """EM routing of sentences with the paper's training: mixup of embeddings and masks, RAdam, one cycle."""
    optimizer = RAdam(beta2=0.9)
    stage = Stage(
        task=ClassifySentences(),
        steps=20,
        batch=16,
        learning_rate=0.05,
        schedule=OneCycle(),
        optimizer=optimizer,
        ema=0.9,
    )
    args = {"d_features": 8, "n_parts": 6}
    return Run(data="generated-sentences", model="em-sentences", model_args=args, augment=(Mixup(),), stages=(stage,))


def pooled_sentences() -> Run:
    """Mean of the tokens of a sentence, then one hidden layer."""
    stage = Stage(task=ClassifySentences(), steps=20, batch=16, learning_rate=1e-2, ema=0.9)
    args = {"hidden": (16,), "dropout": 0.1}
    return Run(data="generated-sentences", model="pooled-sentences", model_args=args, stages=(stage,))


_SMALL_EXPERTS = {"channels": 16, "kernel": 5, "experts": ((4, 6),)}


def _three_stages(learn: LearnExperts, steps: int, learning_rate: float, **model_args) -> Run:
    """Build three stages: Adam for the autoencoder, SGD for contrastive learning of experts and decoder."""
    by_contrast = Stage(steps=steps, batch=16, schedule=Cosine(), optimizer=SGD(l2=1e-6))
    stages = (
        Stage(task=Autoencode(), steps=20 - 2 * steps, batch=16, learning_rate=3e-3),
        replace(by_contrast, task=learn, learning_rate=learning_rate),
        replace(by_contrast, task=LearnDecoder(), learning_rate=1.0),
    )
    return Run(data="generated-16", model="experts", model_args=_SMALL_EXPERTS | model_args, stages=stages)


def experts() -> Run:
    """Product of expert capsules by Algorithm 1: autoencoder, experts and decoder, trained one after the other."""
    return _three_stages(LearnExperts(sparse=1.0), 7, 100.0)


def experts_no_bias() -> Run:
    """Expert capsules on an autoencoder without biases, decoded to the paper's letter."""
    return _three_stages(LearnExperts(), 7, 30.0, biases=False, loud=False)


def experts_persistent() -> Run:
    """Expert capsules with persistent chains, sampled states, two sweeps and couplings over the outputs."""
    learn = LearnExperts(sweeps=2, sampled=True, persistent=True)
    return _three_stages(learn, 7, 1.0, n_chains=8, rule={"over": "outputs", "n_iters": 2})


def experts_stacked() -> Run:
    """Two layers of experts; two pose dimensions of each capsule are off the sphere."""
    run = _three_stages(LearnExperts(), 4, 30.0, experts=((4, 6), (3, 5)), n_plain=2)
    _, learn, decode = run.stages
    # fewer capsules below: larger couplings, so smaller learning rates
    upper = (
        replace(learn, task=LearnExperts(layer=1), learning_rate=1.0),
        replace(decode, task=LearnDecoder(layer=1), learning_rate=0.1),
    )
    return replace(run, stages=(replace(run.stages[0], steps=4), learn, decode, *upper))


def rbm() -> Run:
    """Restricted Boltzmann machine in place of the capsules."""
    by_contrast = Stage(
        task=LearnRBM(), steps=10, batch=16, learning_rate=0.01, schedule=Cosine(), optimizer=SGD(l2=1e-4)
    )
    args = {"channels": 16, "kernel": 5, "width": 24}
    stages = Stage(task=Autoencode(), steps=10, batch=16, learning_rate=3e-3), by_contrast
    return Run(data="generated-16", model="rbm", model_args=args, stages=stages)


def rbm_linear() -> Run:
    """Linear bottleneck trained by backpropagation."""
    run = rbm()
    last = Stage(task=LearnBottleneck(), steps=10, batch=16, learning_rate=3e-3)
    return replace(run, model_args=run.model_args | {"form": "linear"}, stages=(run.stages[0], last))
