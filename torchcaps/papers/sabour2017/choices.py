"""What the settings of table 1 were chosen by: runs on training digits alone, some of them kept aside. No test set is seen.

The convolutional network gets the rates, schedules and batches that CapsNet is tried with on MNIST; on pairs both are tried
with two rates and the authors' decay, then with rates beyond the better one until one is worse; CapsNet also with other presets.
"""

from dataclasses import replace

from torchcaps.papers.changes import with_model, with_stage
from torchcaps.papers.sabour2017 import rows
from torchcaps.train.recipe import Cosine, Exponential, Run
from torchcaps.train.tasks.classify import Classify

# The authors' margin loss is half the mean over ten classes, the text's the sum: what the reconstruction's 0.0005 comes to beside the sum.
WEIGHT_OF_THE_CODE = 0.0005 * 2 * 10


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


def choose_small_batch_torch_init() -> Run:
    """Half the batch, first weights as in the preset `paper`: scaled by fan-in, capsule biases zero."""
    return with_model(choose_small_batch(), preset="official-torch-init")


def choose_small_batch_redrawn() -> Run:
    """Half the batch, three times the reconstruction's weight."""
    return with_stage(choose_small_batch(), task=Classify(reconstruction_weight=3 * 0.0005))


def choose_paper_redrawn() -> Run:
    """MNIST, the text's preset with half the batch and the reconstruction's weight of the authors' code."""
    return with_stage(choose_paper_small_batch(), task=Classify(reconstruction_weight=WEIGHT_OF_THE_CODE))


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


def _short_pairs(run: Run, rate: float, schedule: Cosine | Exponential) -> Run:
    """A sixth of the row's steps on pairs of training digits, judged on pairs of 5,000 digits kept aside."""
    return replace(with_stage(run, steps=50_000, rate=rate, schedule=schedule), hold_out=5000)


def choose_multimnist() -> Run:
    """Pairs, CapsNet, the row's schedule, the rate of MNIST's rows."""
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


def choose_multimnist_higher() -> Run:
    """Pairs, CapsNet, the row's schedule with four times the rate."""
    return _short_pairs(rows.multimnist_4_r3(), 4e-3, Cosine())


def choose_multimnist_paper() -> Run:
    """Pairs, CapsNet, the row's schedule, the text's preset."""
    return with_model(choose_multimnist(), preset="paper")


def choose_multimnist_torch_init() -> Run:
    """Pairs, CapsNet, the row's schedule, the first weights of the text's preset."""
    return with_model(choose_multimnist(), preset="official-torch-init")


def choose_multimnist_high_torch_init() -> Run:
    """Pairs, CapsNet, twice the rate and the first weights of the text's preset."""
    return with_model(choose_multimnist_high(), preset="official-torch-init")


def choose_multimnist_high_sum_margin() -> Run:
    """Pairs, CapsNet, twice the rate and the reconstruction with the text's weight, a twentieth."""
    return with_model(choose_multimnist_high(), preset="official-sum-margin")


def choose_multimnist_cnn() -> Run:
    """Pairs, the convolutional network, the row's schedule, the rate of MNIST's rows."""
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
