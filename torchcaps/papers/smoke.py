"""Twenty steps of every model on generated images: seconds long, for tests and golden losses, not for numbers."""

from dataclasses import replace

from torchcaps.data.batches import Crop, Shift
from torchcaps.data.mixup import Mixup
from torchcaps.optimizers import RAdam
from torchcaps.recipe import OneCycle, Run, Stage
from torchcaps.tasks.classify_pairs import ClassifyPairs
from torchcaps.tasks.ladder import ClassifyLadder
from torchcaps.tasks.logits import ClassifyLogits, ClassifyScores
from torchcaps.tasks.reconstruct import Reconstruct
from torchcaps.tasks.sentences import ClassifySentences

_SMALL = {"channels": 16, "kernel": 5, "n_types": 4, "primary_kernel": 5, "hidden": (32, 64)}


def _smoke(**model_args) -> Run:
    return Run(
        data="generated-16",
        model="capsnet",
        model_args=_SMALL | model_args,
        augment=(Shift(2),),
        stages=(Stage(steps=20, batch=16, rate=3e-3, ema=0.9),),
    )


def capsnet() -> Run:
    """The authors' variant."""
    return _smoke()


def capsnet_paper() -> Run:
    """The paper's text to the letter."""
    return _smoke(preset="paper")


def capsnet_plain() -> Run:
    """No decoder, leaky couplings, one pass."""
    return _smoke(reconstruction=False, couplings="leaky", n_iters=1)


def capsnet_shared() -> Run:
    """One transform per class shared by all inputs, uniform couplings: the control without routing."""
    return _smoke(sharing="inputs", couplings="uniform")


def capsnet_pairs() -> Run:
    """Two overlapping pictures at once, each decoded."""
    stage = Stage(task=ClassifyPairs(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-pairs", model="capsnet", model_args=_SMALL, stages=(stage,))


def baseline() -> Run:
    """A convolutional network without capsules."""
    stage = Stage(task=ClassifyLogits(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="baseline", model_args={"preset": "small"}, augment=(Shift(2),), stages=(stage,))


_SMALL_EM = {"channels": 8, "strides": (1, 2), "n_types": 4, "n_parts": 6}


def em_capsnet() -> Run:
    """EM routing twice: places to parts, parts to classes."""
    stage = Stage(task=ClassifyScores(), steps=20, batch=16, rate=1e-2, ema=0.9)
    return Run(data="generated-16", model="em-capsnet", model_args=_SMALL_EM, augment=(Shift(2),), stages=(stage,))


def em_capsnet_mixup() -> Run:
    """The same as its paper trains it: RAdam, one cycle of rate and beta1, crops beyond the edge, mixed images."""
    optimizer = RAdam(beta2=0.9)  # of a short memory, so that twenty steps go far enough for golden losses to tell anything
    stage = Stage(task=ClassifyScores(), steps=20, batch=16, rate=0.1, schedule=OneCycle(), optimizer=optimizer)
    augment = Crop(16, border=2), Mixup()
    return Run(data="generated-16", model="em-capsnet", model_args=_SMALL_EM, augment=augment, stages=(stage,))


def sparsecaps() -> Run:
    """Pictures alone, latent capsules kept apart by rank and boost, which moves within the few steps."""
    small = _SMALL | {"n_latent": 6, "frequencies": (0.1, 0.25), "boost_every": 5}
    stage = Stage(task=Reconstruct(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="sparsecaps", model_args=small, augment=(Shift(2),), stages=(stage,))


def sparsecaps_dense() -> Run:
    """The same without the mask."""
    stage = Stage(task=Reconstruct(), steps=20, batch=16, rate=3e-3, ema=0.9)
    args = _SMALL | {"preset": "dense", "n_latent": 6}
    return Run(data="generated-16", model="sparsecaps", model_args=args, augment=(Shift(2),), stages=(stage,))


def stackedcaps() -> Run:
    """Three latent layers, each with a mask of its own."""
    small = _SMALL | {"n_latent": 6, "frequencies": (0.1, 0.25), "boost_every": 5}
    stage = Stage(task=Reconstruct(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="stackedcaps", model_args=small, augment=(Shift(2),), stages=(stage,))


def stackedcaps_em() -> Run:
    """Two of them, routed by EM."""
    run = stackedcaps()
    return replace(run, model_args=run.model_args | {"routing": "em", "n_layers": 2})


def supcaps() -> Run:
    """What these are compared with: capsules kept apart by labels."""
    return replace(_smoke(), model="supcaps")


_SMALL_LADDER = {"channels": 16, "kernel": 5, "n_types": 4, "primary_kernel": 5, "d_primary": 4, "d_class": 8, "n_kept": 10}


def _ladder(task: ClassifyLadder, **model_args) -> Run:
    stage = Stage(task=task, steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="lcapsnet", model_args=_SMALL_LADDER | model_args, augment=(Shift(2),), stages=(stage,))


def lcapsnet() -> Run:
    """The paper's equations: ten of 64 capsules kept, and regressed from each class."""
    return _ladder(ClassifyLadder())


def lcapsnet_shared() -> Run:
    """One net of a kind for all classes, agreement in both directions, a threshold that is learnt."""
    return _ladder(ClassifyLadder(), preset="shared", agreement="both", threshold=0.3, learn_threshold=True)


def lcapsnet_withdrawn() -> Run:
    """Nets and losses of the authors' withdrawn file."""
    return _ladder(ClassifyLadder(withdrawn=True), preset="withdrawn")


def em_sentences() -> Run:
    """Sentences, with all that their paper's training has: mixed words and masks, RAdam, one cycle."""
    optimizer = RAdam(beta2=0.9)
    stage = Stage(task=ClassifySentences(), steps=20, batch=16, rate=0.05, schedule=OneCycle(), optimizer=optimizer, ema=0.9)
    args = {"d_features": 8, "n_parts": 6}
    return Run(data="generated-sentences", model="em-sentences", model_args=args, augment=(Mixup(),), stages=(stage,))


def pooled_sentences() -> Run:
    """The mean of their tokens through a hidden layer."""
    stage = Stage(task=ClassifySentences(), steps=20, batch=16, rate=1e-2, ema=0.9)
    args = {"hidden": (16,), "dropout": 0.1}
    return Run(data="generated-sentences", model="pooled-sentences", model_args=args, stages=(stage,))
