"""What the settings of table 1 and of section 5.2 were chosen by: runs on training digits alone, some of them kept aside.

The convolutional networks get the rates, schedules and batches that CapsNet is tried with. No test set is seen.
"""

from dataclasses import replace

from torchcaps.papers.changes import judged_by_warped, with_model, with_stage
from torchcaps.papers.sabour2017 import affine, rows
from torchcaps.recipe import Cosine, Exponential, Run
from torchcaps.tasks.classify import Classify


def _choose(rate: float, schedule: Cosine | Exponential) -> Run:
    """5,000 training images kept aside: schedules are chosen on them, never on the test set."""
    run = rows.mnist_r3_recon()
    return replace(with_stage(run, rate=rate, schedule=schedule), hold_out=5000)


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
    return with_stage(_choose(1e-3, Cosine()), epochs=180)


def choose_small_batch() -> Run:
    """Half the batch, so twice the steps."""
    return replace(rows.mnist_r3_recon_64(), hold_out=5000)


def choose_smaller_batch() -> Run:
    """A quarter of the batch, so four times the steps."""
    return with_stage(choose_small_batch(), batch=32)


def choose_small_batch_float32() -> Run:
    """Half the batch, trained in float32: what bfloat16 costs, if anything."""
    return with_stage(choose_small_batch(), precision="float32")


def choose_paper() -> Run:
    """MNIST, the row's schedule, the text's preset."""
    return with_model(choose_cosine(), preset="paper")


def choose_paper_small_batch() -> Run:
    """MNIST, the text's preset with half the batch."""
    return with_model(choose_small_batch(), preset="paper")


def choose_small_batch_whole_primary() -> Run:
    """Half the batch, primary capsules not divided."""
    return with_model(choose_small_batch(), preset="official-whole-primary")


def choose_small_batch_torch_init() -> Run:
    """Half the batch, first weights scaled by fan-in, capsule biases zero."""
    return with_model(choose_small_batch(), preset="official-torch-init")


def choose_small_batch_redrawn() -> Run:
    """Half the batch, three times the reconstruction's weight."""
    return with_stage(choose_small_batch(), task=Classify(reconstruction_weight=0.0015))


def _redrawn(run: Run) -> Run:
    """The text's preset, but the reconstruction weighs against the margin loss what it does in the authors' code."""
    return with_stage(with_model(run, preset="paper"), task=Classify(reconstruction_weight=0.01))


def choose_paper_redrawn() -> Run:
    """MNIST, the text's preset with half the batch and the reconstruction's weight of the authors' code."""
    return _redrawn(choose_small_batch())


def _cnn(rate: float) -> Run:
    run = rows.mnist_cnn()
    return replace(with_stage(run, rate=rate), hold_out=5000)


def choose_cnn() -> Run:
    """The baseline with CapsNet's schedule."""
    return _cnn(1e-3)


def choose_cnn_2() -> Run:
    """The baseline with twice the rate, as CapsNet was tried."""
    return _cnn(2e-3)


def choose_cnn_half() -> Run:
    """The baseline with half the rate, as CapsNet was tried."""
    return _cnn(5e-4)


def choose_cnn_small_batch() -> Run:
    """The baseline with half the batch, as CapsNet was tried."""
    return with_stage(_cnn(1e-3), batch=64)


def choose_cnn_exponential() -> Run:
    """The baseline with the authors' schedule for CapsNet."""
    return with_stage(_cnn(1e-3), schedule=Exponential())


def choose_cnn_low() -> Run:
    """The baseline with a third of the rate."""
    return _cnn(3e-4)


def _warped(run: Run | None = None, **model_args) -> Run:
    return judged_by_warped(with_model(run or affine.like_r3_end(), **model_args))


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
    return replace(with_stage(run, steps=50_000, rate=rate, schedule=schedule), hold_out=5000)


def choose_multimnist() -> Run:
    """Pairs, CapsNet, the row's schedule."""
    return _short_pairs(rows.multimnist_4_r3(), 1e-3, Cosine())


def choose_multimnist_exponential() -> Run:
    """Pairs, CapsNet, the authors' decay with its period ten times longer."""
    return _short_pairs(rows.multimnist_4_r3(), 1e-3, Exponential(every=20_000))


def choose_multimnist_low() -> Run:
    """Pairs, CapsNet, the row's schedule with a third of the rate."""
    return _short_pairs(rows.multimnist_4_r3(), 3e-4, Cosine())


def choose_multimnist_high() -> Run:
    """Pairs, CapsNet, the row's schedule with twice the rate."""
    return _short_pairs(rows.multimnist_4_r3(), 2e-3, Cosine())


def choose_multimnist_paper() -> Run:
    """Pairs, CapsNet, the row's schedule, the text's preset."""
    return with_model(choose_multimnist(), preset="paper")


def choose_multimnist_torch_init() -> Run:
    """Pairs, CapsNet, the row's schedule, the first weights of the text's preset."""
    return with_model(choose_multimnist(), preset="official-torch-init")


def choose_multimnist_cnn() -> Run:
    """Pairs, the convolutional network, the row's schedule."""
    return _short_pairs(rows.multimnist_4_cnn(), 1e-3, Cosine())


def choose_multimnist_cnn_exponential() -> Run:
    """Pairs, the convolutional network, the authors' decay with its period ten times longer."""
    return _short_pairs(rows.multimnist_4_cnn(), 1e-3, Exponential(every=20_000))


def choose_multimnist_cnn_low() -> Run:
    """Pairs, the convolutional network, the row's schedule with a third of the rate."""
    return _short_pairs(rows.multimnist_4_cnn(), 3e-4, Cosine())


def choose_multimnist_cnn_lower() -> Run:
    """Pairs, the convolutional network, the row's schedule with a tenth of the rate."""
    return _short_pairs(rows.multimnist_4_cnn(), 1e-4, Cosine())


def choose_like_plain() -> Run:
    """Three passes, no decoder."""
    return _warped(reconstruction=False)


def choose_like_paper() -> Run:
    """Three passes, the text's preset."""
    return _warped(preset="paper")


def choose_like_whole_primary() -> Run:
    """Three passes, as in the authors' code but for primary capsules that are not divided."""
    return _warped(preset="official-whole-primary")


def choose_like_torch_init() -> Run:
    """Three passes, as in the authors' code but for the first weights and biases."""
    return _warped(preset="official-torch-init")


def choose_like_sum_margin() -> Run:
    """Three passes, as in the authors' code but for the weight of the reconstruction, a twentieth."""
    return _warped(preset="official-sum-margin")


def choose_like_paper_redrawn() -> Run:
    """Three passes, the text's preset with the reconstruction's weight of the authors' code."""
    return _redrawn(choose_like_r3())


def choose_like_paper_r1() -> Run:
    """One pass, the text's preset."""
    return _warped(preset="paper", n_iters=1)


def choose_like_paper_plain() -> Run:
    """Three passes, no decoder, the text's preset."""
    return _warped(preset="paper", reconstruction=False)


def choose_like_paper_shared_uniform() -> Run:
    """One transform per class for all inputs, equal couplings, the text's preset."""
    return _warped(preset="paper", sharing="inputs", couplings="uniform")


def choose_like_paper_shared_r3() -> Run:
    """One transform per class, three passes, the text's preset."""
    return _warped(preset="paper", sharing="inputs")


def choose_like_paper_types_r3() -> Run:
    """One transform per type and class, three passes, the text's preset."""
    return _warped(preset="paper", sharing="places")


def choose_like_paper_types_uniform() -> Run:
    """One transform per type and class, equal couplings, the text's preset."""
    return _warped(preset="paper", sharing="places", couplings="uniform")


def choose_like_anywhere_paper() -> Run:
    """Three passes, the text's preset, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r3_end(), preset="paper")


def choose_like_anywhere_paper_types_uniform() -> Run:
    """One transform per type and class, equal couplings, the text's preset, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r3_end(), preset="paper", sharing="places", couplings="uniform")


def choose_like_anywhere_r3() -> Run:
    """Three passes, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r3_end())


def choose_like_anywhere_r3_long() -> Run:
    """The same with twice the epochs: what a ladder that is trained so has to be compared with."""
    return _warped(affine.like_anywhere_r3_long())


def choose_like_anywhere_r1() -> Run:
    """One pass, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_r1_end())


def choose_like_anywhere_shared_uniform() -> Run:
    """One transform per class, equal couplings, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_shared_uniform_end())


def choose_like_anywhere_types_r3() -> Run:
    """One transform per type and class, three passes, training digits anywhere in the frame."""
    return _warped(affine.like_anywhere_types_r3_end())
