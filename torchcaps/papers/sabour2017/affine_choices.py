"""What is chosen for affine digits (section 5.2) is chosen by these: training digits kept aside, placed and warped. No test set is seen."""

from torchcaps.papers.changes import judged_by_warped, with_model, with_stage
from torchcaps.papers.sabour2017 import affine
from torchcaps.papers.sabour2017.choices import WEIGHT_OF_THE_CODE
from torchcaps.train.recipe import Run
from torchcaps.train.tasks.classify import Classify


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
    return judged_by_warped(affine.like_cnn_end())


def choose_like_anywhere_cnn() -> Run:
    """The convolutional network, training digits anywhere in the frame."""
    return judged_by_warped(affine.like_anywhere_cnn_end())


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
    return with_stage(choose_like_paper(), task=Classify(reconstruction_weight=WEIGHT_OF_THE_CODE))


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
