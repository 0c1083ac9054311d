"""What the rows' settings were chosen by: runs on training pictures alone, some of them kept aside. No test set is seen."""

from dataclasses import replace

from torchcaps.data.batches import Augmentation, Crop, Flip, Light, Standardise
from torchcaps.data.mixup import Mixup
from torchcaps.data.warp import Warp
from torchcaps.papers.sabour2017 import affine, photographs, rows
from torchcaps.recipe import Cosine, Exponential, Run

VARIED = Warp(turn=0.15, slant=0.1, stretch=0.15, edge=True), Flip(eyes=True)


def _choose(rate: float, schedule: Cosine | Exponential) -> Run:
    """5,000 training images kept aside: schedules are chosen on them, never on the test set."""
    run = rows.mnist_r3_recon()
    return replace(run, hold_out=5000, stages=(replace(run.stages[0], rate=rate, schedule=schedule),))


def choose_cosine() -> Run:
    """The schedule that the rows use, validated on held-out training images."""
    return _choose(1e-3, Cosine())


def choose_cosine_2() -> Run:
    """The same with twice the rate."""
    return _choose(2e-3, Cosine())


def choose_cosine_half() -> Run:
    """The same with half the rate."""
    return _choose(5e-4, Cosine())


def choose_exponential() -> Run:
    """The authors' schedule, cut at the same number of epochs."""
    return _choose(1e-3, Exponential())


def choose_long() -> Run:
    """Three times the epochs."""
    run = _choose(1e-3, Cosine())
    return replace(run, stages=(replace(run.stages[0], epochs=180),))


def choose_small_batch() -> Run:
    """Half the batch, so twice the steps."""
    return replace(rows.mnist_r3_recon_64(), hold_out=5000)


def choose_smaller_batch() -> Run:
    """A quarter of the batch, so four times the steps."""
    run = choose_small_batch()
    return replace(run, stages=(replace(run.stages[0], batch=32),))


def choose_small_batch_float32() -> Run:
    """Half the batch, trained in float32: what bfloat16 costs, if anything."""
    run = choose_small_batch()
    return replace(run, stages=(replace(run.stages[0], precision="float32"),))


def _cnn(rate: float) -> Run:
    run = rows.mnist_cnn()
    return replace(run, hold_out=5000, stages=(replace(run.stages[0], rate=rate),))


def choose_cnn() -> Run:
    """The baseline with CapsNet's schedule."""
    return _cnn(1e-3)


def choose_cnn_2() -> Run:
    """The baseline with twice the rate, as CapsNet was tried."""
    return _cnn(2e-3)


def choose_cnn_exponential() -> Run:
    """The baseline with the authors' schedule for CapsNet."""
    run = _cnn(1e-3)
    return replace(run, stages=(replace(run.stages[0], schedule=Exponential()),))


def choose_cnn_low() -> Run:
    """The baseline with a third of the rate."""
    return _cnn(3e-4)


def _toys(**changes) -> Run:
    """One toy of each category of the official training part kept aside: the test part has other toys too."""
    return replace(photographs.smallnorb(), data="smallnorb-48-toys", **changes)


def choose_smallnorb() -> Run:
    """smallNORB, the augmentation that the row uses, on toys kept aside."""
    return _toys()


def choose_smallnorb_plain() -> Run:
    """Crops alone, no change of light."""
    return _toys(augment=(Crop(32), Standardise()))


def choose_smallnorb_faint() -> Run:
    """Half the change of light."""
    return _toys(augment=(Light(32, 0.4), Crop(32), Standardise()))


def choose_smallnorb_decoder() -> Run:
    """With the decoder, whose sigmoid reaches what of a standardised picture lies in 0..1."""
    run = photographs.smallnorb()
    return _toys(model_args=run.model_args | {"reconstruction": True})


def choose_smallnorb_paper() -> Run:
    """The text's preset."""
    run = photographs.smallnorb()
    return _toys(model_args=run.model_args | {"preset": "paper"})


def choose_smallnorb_short() -> Run:
    """A quarter of the epochs."""
    return _toys(stages=(replace(photographs.smallnorb().stages[0], epochs=50),))


def _folds(*augment: Augmentation, data: str = "smallnorb-48-folds", **model_args) -> Run:
    """For every seed another toy of each category kept aside, and half the row's epochs: five seeds judge by all 25 toys.

    Toy 9 alone is a poor judge: its car is a racing car, taken for an airplane whatever the settings (LOG.md).
    """
    run = photographs.smallnorb()
    stage = replace(run.stages[0], epochs=100, ema=0.999)
    augment = (*augment, Crop(32), Standardise())
    return replace(run, data=data, model_args=run.model_args | model_args, augment=augment, stages=(stage,))


def choose_smallnorb_folds() -> Run:
    """smallNORB as the row trains it, on all folds."""
    return _folds(Light())


def choose_smallnorb_folds_thinned() -> Run:
    """Every second pixel, as in the authors' code, instead of means of four."""
    return _folds(Light(), data="smallnorb-48-thinned-folds")


def choose_smallnorb_folds_authors() -> Run:
    """Every second pixel, light that does not saturate, a decoder: all as in the authors' code."""
    return _folds(Light(saturates=False), data="smallnorb-48-thinned-folds", reconstruction=True)


def choose_smallnorb_folds_strong() -> Run:
    """More light: up to 100 grey levels, a contrast of 0.1 to 1.9."""
    return _folds(Light(100, 0.9))


def choose_smallnorb_folds_varied() -> Run:
    """Every second pair as in a mirror, the eyes exchanged; all a little turned, slanted and stretched: toys that could be there."""
    return _folds(*VARIED, Light())


def choose_smallnorb_folds_mixup() -> Run:
    """Blends of two pictures, as Heinsen 2019 trains on this set."""
    run = _folds(Light())
    return replace(run, augment=(*run.augment, Mixup(0.2)))


def choose_svhn() -> Run:
    """SVHN as the row trains it, on held-out training images."""
    return replace(photographs.svhn(), hold_out=5000)


def _short_cifar(light: Light, rate: float = 1e-3) -> Run:
    """A fifth of the row's steps, on 5,000 held-out training images."""
    run = photographs.cifar10()
    stage = replace(run.stages[0], steps=12_000, rate=rate)
    augment = tuple(light if isinstance(part, Light) else part for part in run.augment)
    return replace(run, hold_out=5000, keep_scores=False, augment=augment, stages=(stage,))


def choose_cifar10() -> Run:
    """CIFAR-10 as the row trains it, but short."""
    return _short_cifar(Light(saturates=False))


def choose_cifar10_light() -> Run:
    """Light that saturates, as a camera's does."""
    return _short_cifar(Light())


def choose_cifar10_fast() -> Run:
    """Twice the rate."""
    return _short_cifar(Light(saturates=False), 2e-3)


def _warped(run: Run | None = None, **model_args) -> Run:
    """Held-out training digits, placed and under affine maps: what any variant is chosen by."""
    run = run or affine.like_r3_end()
    return replace(run, hold_out=5000, views=("placed", "warped"), tests=(), model_args=run.model_args | model_args)


def choose_like_r3() -> Run:
    """Placed digits, three passes, judged on warped held-out training digits."""
    return _warped()


def choose_like_shared_uniform() -> Run:
    """One transform per class for all inputs, equal couplings."""
    return _warped(sharing="inputs", couplings="uniform")


def choose_like_types_r3() -> Run:
    """One transform per type of capsule and class, shared over places, three passes."""
    return _warped(sharing="places")


def choose_like_types_uniform() -> Run:
    """The same with equal couplings."""
    return _warped(sharing="places", couplings="uniform")


def choose_like_r1() -> Run:
    """One pass."""
    return _warped(n_iters=1)


def choose_like_r5() -> Run:
    """Five passes."""
    return _warped(n_iters=5)


def choose_like_uniform() -> Run:
    """A transform for every pair, equal couplings."""
    return _warped(couplings="uniform")


def choose_like_shared_r3() -> Run:
    """One transform per class, three passes."""
    return _warped(sharing="inputs")


def choose_like_cnn() -> Run:
    """The convolutional network."""
    run = affine.like_cnn_end()
    return replace(run, hold_out=5000, views=("placed", "warped"), tests=())


def choose_like_anywhere_cnn() -> Run:
    """The convolutional network, training digits anywhere in the frame."""
    run = affine.like_anywhere_cnn_end()
    return replace(run, hold_out=5000, views=("placed", "warped"), tests=())


def _short_pairs(run: Run, rate: float, schedule: Cosine | Exponential) -> Run:
    """A sixth of the row's steps on pairs of training digits, judged on pairs of 5,000 digits kept aside."""
    return replace(run, hold_out=5000, stages=(replace(run.stages[0], steps=50_000, rate=rate, schedule=schedule),))


def choose_multimnist() -> Run:
    """Pairs, CapsNet, the row's schedule."""
    return _short_pairs(rows.multimnist_4_r3(), 1e-3, Cosine())


def choose_multimnist_exponential() -> Run:
    """Pairs, CapsNet, the authors' decay with its period ten times longer."""
    return _short_pairs(rows.multimnist_4_r3(), 1e-3, Exponential(every=20_000))


def choose_multimnist_cnn() -> Run:
    """Pairs, the convolutional network, the row's schedule."""
    return _short_pairs(rows.multimnist_4_cnn(), 1e-3, Cosine())


def choose_multimnist_cnn_low() -> Run:
    """The same with a third of the rate."""
    return _short_pairs(rows.multimnist_4_cnn(), 3e-4, Cosine())


def choose_like_plain() -> Run:
    """Three passes, no decoder."""
    return _warped(reconstruction=False)


def choose_like_paper() -> Run:
    """Three passes, the text's preset."""
    return _warped(preset="paper")


def choose_like_anywhere_r3() -> Run:
    """Three passes, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r3_end())


def choose_like_anywhere_r1() -> Run:
    """One pass, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r1_end())


def choose_like_anywhere_shared_uniform() -> Run:
    """One transform per class, equal couplings, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_shared_uniform_end())


def choose_like_anywhere_types_r3() -> Run:
    """One transform per type and class, three passes, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_types_r3_end())
