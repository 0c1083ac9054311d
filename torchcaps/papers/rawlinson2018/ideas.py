"""What the paper tried in a sentence, or leaves open: ablations, other rules for the boosts, and where training digits lie."""

from dataclasses import replace

from torchcaps.ops.sparse import fair_frequencies
from torchcaps.papers.changes import anywhere, with_model
from torchcaps.papers.rawlinson2018.shared import ASKED, LIKE, MNIST, SHARED, STAGE, WINS, claim, reading
from torchcaps.probes.kinds import Linear
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run
from torchcaps.train.schedules import Cosine


def _claim(row: str):
    return reproduces(table="ablation", row=row, metric="test.squared_error", beside=WINS)


@_claim("no boosting (section 2.3), 28x28")
def mnist_no_boost() -> Run:
    """The mask alone: section 2.3 says that a few capsules then win everything."""
    return with_model(MNIST, boost_step=0.0)


@_claim("boosts inside the routing passes (section 2.3's idea), 28x28")
def mnist_boost_inside() -> Run:
    """Boosts multiply the couplings of every pass, and ranks are those of the support that comes out."""
    return with_model(MNIST, boost_inside=True)


@_claim("the rate falls to 0 along half a cosine, so that weights rest before boosts are frozen, 28x28")
def mnist_settled() -> Run:
    """Boosts follow an average over hundreds of batches: where weights still move, a frozen capsule wins more or less often than that."""
    return replace(MNIST, stages=(replace(STAGE, schedule=Cosine()),))


@_claim("boosts that change by a tenth of themselves, 28x28")
def mnist_relative() -> Run:
    """The ratio of two boosts decides who wins; steps of 0.1 hardly move it where boosts are large."""
    return with_model(MNIST, boost_relative=True)


@reproduces(
    table="ablation", row="boosts that change by a tenth of themselves, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_relative() -> Run:
    """The same for the network of Table 1, where with steps of 0.1 one capsule at a time wins nearly everything."""
    return with_model(LIKE, boost_relative=True)


@reproduces(
    table="ablation", row="boosts that change by a fiftieth of themselves, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_relative_slow() -> Run:
    """A fiftieth: what a step of 0.1 is for the boosts of about 5 that 28x28 comes to."""
    return with_model(LIKE, boost_relative=True, boost_step=0.02)


@claim(f"sparse, boosts that change by a tenth of themselves + SVM (a), affnist-like, pre-mask; {SHARED}", ASKED, table="ablation")
def like_relative_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_relative(), "like-relative", "affnist-like/0-60000", ASKED)


@claim(
    "sparse, boosts that change by a tenth of themselves + SVM, affnist-like, digit-disjoint, pre-mask", "affnist-like/other-digits",
    table="ablation",
)  # fmt: skip
def like_relative_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_relative(), "like-relative", "affnist-like/fit-digits", "affnist-like/other-digits")


@_claim("boosts that follow the wins of every batch (our rule), 28x28")
def mnist_steered() -> Run:
    """In place of Algorithm 1: log boosts move by 0.02 · (1 / 16 - the batch's frequency), without a range, an average or a wait."""
    return with_model(MNIST, boost_gain=0.02)


@reproduces(
    table="ablation", row="boosts that follow the wins of every batch (our rule), squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_steered() -> Run:
    """The same for the network of Table 1, where steps of 0.1 first do too much and, once boosts have grown, too little."""
    return with_model(LIKE, boost_gain=0.02)


@claim(f"sparse, boosts that follow the wins of every batch + SVM (a), affnist-like, pre-mask; {SHARED}", ASKED, table="ablation")
def like_steered_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_steered(), "like-steered", "affnist-like/0-60000", ASKED)


@claim(
    "sparse, boosts that follow the wins of every batch + SVM, affnist-like, digit-disjoint, pre-mask", "affnist-like/other-digits",
    table="ablation",
)  # fmt: skip
def like_steered_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_steered(), "like-steered", "affnist-like/fit-digits", "affnist-like/other-digits")


@_claim("five routing passes, the paper's boosts, 28x28")
def mnist_sparse_5() -> Run:
    """Two more passes alone, with Algorithm 1: what they, and what another rule for the boosts, do to the support of rank 8."""
    return with_model(MNIST, n_iters=5)


@_claim("boosts that follow the wins of every batch, five routing passes, 28x28")
def mnist_steered_5() -> Run:
    """Two more passes make couplings decide more: support of rank 8 falls, in trials on small networks."""
    return with_model(mnist_steered(), n_iters=5)


@claim("sparse, boosts that follow every batch, five passes + SVM, MNIST, 28x28, pre-mask", "mnist/test", table="ablation")
def mnist_steered_5_svm() -> Run:
    """Machine fitted to all 60,000 training digits."""
    return reading(mnist_steered_5(), "mnist-steered-5", "mnist/train", "mnist/test")


@reproduces(
    table="ablation", row="boosts that follow the wins of every batch, five routing passes, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_steered_5() -> Run:
    """The same for the network of Table 1."""
    return with_model(like_steered(), n_iters=5)


@claim(f"sparse, boosts that follow every batch, five passes + SVM (a), affnist-like, pre-mask; {SHARED}", ASKED, table="ablation")
def like_steered_5_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_steered_5(), "like-steered-5", "affnist-like/0-60000", ASKED)


@claim(
    "sparse, boosts that follow every batch, five passes + SVM, affnist-like, digit-disjoint, pre-mask", "affnist-like/other-digits",
    table="ablation",
)  # fmt: skip
def like_steered_5_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_steered_5(), "like-steered-5", "affnist-like/fit-digits", "affnist-like/other-digits")


@_claim("8 capsules, frequencies 0.08 to 0.2 (section 4's idea), 28x28")
def mnist_8() -> Run:
    """The range as a function of the number of capsules: 0.64 / n to 1.6 / n, which is the paper's for 16."""
    return with_model(MNIST, n_latent=8, frequencies=fair_frequencies(8))


@_claim("32 capsules, frequencies 0.02 to 0.05 (section 4's idea), 28x28")
def mnist_32() -> Run:
    """The same for 32."""
    return with_model(MNIST, n_latent=32, frequencies=fair_frequencies(32))


@_claim("8 capsules, frequencies 0.04 to 0.1 as for 16, 28x28")
def mnist_8_fixed() -> Run:
    """The paper's range, which 8 capsules cannot keep: their mean is above it."""
    return with_model(MNIST, n_latent=8)


@_claim("32 capsules, frequencies 0.04 to 0.1 as for 16, 28x28")
def mnist_32_fixed() -> Run:
    """The paper's range, which 32 capsules cannot keep: their mean is below it."""
    return with_model(MNIST, n_latent=32)


@_claim("8 capsules, boosts that follow the wins of every batch, 28x28")
def mnist_8_steered() -> Run:
    """Our rule knows one number of the range, an even share, and needs none for another number of capsules."""
    return with_model(mnist_steered(), n_latent=8)


@_claim("32 capsules, boosts that follow the wins of every batch, 28x28")
def mnist_32_steered() -> Run:
    """The same for 32."""
    return with_model(mnist_steered(), n_latent=32)


@reproduces(
    table="ablation", row="training digits anywhere in the frame, sparse, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_anywhere_sparse() -> Run:
    """Digits at every place that keeps their ink inside, as the affine ones have them: translation is still all that is seen."""
    return anywhere(LIKE)


@claim(f"sparse, training digits anywhere + SVM (a), affnist-like, pre-mask; {SHARED}", ASKED)
def like_anywhere_sparse_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_anywhere_sparse(), "like-anywhere-sparse", "affnist-like/0-60000", ASKED)


@claim("sparse, training digits anywhere + SVM, affnist-like, digit-disjoint, pre-mask", "affnist-like/other-digits")
def like_anywhere_sparse_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_anywhere_sparse(), "like-anywhere-sparse", "affnist-like/fit-digits", "affnist-like/other-digits")


@claim("sparse, training digits anywhere + linear, affnist-like, digit-disjoint", "affnist-like/other-digits", table="probe")
def like_anywhere_sparse_linear_disjoint() -> Run:
    """One layer on pre-mask features of that network."""
    how = {"classifier": Linear()}
    return reading(like_anywhere_sparse(), "like-anywhere-sparse", "affnist-like/fit-digits", "affnist-like/other-digits", **how)


@reproduces(
    table="ablation", row="training digits anywhere in the frame, dense, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", "extras.relative_support_8"),
)  # fmt: skip
def like_anywhere_dense() -> Run:
    """Without the mask: what of a better reading is the digits' places, and what the mask."""
    return with_model(like_anywhere_sparse(), preset="dense")


@claim(f"dense, training digits anywhere + SVM (a), affnist-like; {SHARED}", ASKED)
def like_anywhere_dense_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_anywhere_dense(), "like-anywhere-dense", "affnist-like/0-60000", ASKED)


@claim("dense, training digits anywhere + SVM, affnist-like, digit-disjoint", "affnist-like/other-digits")
def like_anywhere_dense_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_anywhere_dense(), "like-anywhere-dense", "affnist-like/fit-digits", "affnist-like/other-digits")


@reproduces(
    table="ablation", row="training digits anywhere, boosts that follow every batch, five passes, squared error on affnist-like",
    metric=f"{ASKED}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_anywhere_steered_5() -> Run:
    """Whether one network both shares its wins out and is read as well."""
    return anywhere(like_steered_5())


@claim(f"sparse, training digits anywhere, boosts that follow every batch, five passes + SVM (a), affnist-like, pre-mask; {SHARED}", ASKED)
def like_anywhere_steered_5_svm_a() -> Run:
    """Machine fitted to 60,000 affine digits."""
    return reading(like_anywhere_steered_5(), "like-anywhere-steered-5", "affnist-like/0-60000", ASKED)


@claim(
    "sparse, training digits anywhere, boosts that follow every batch, five passes + SVM, affnist-like, digit-disjoint, pre-mask",
    "affnist-like/other-digits",
)  # fmt: skip
def like_anywhere_steered_5_svm_disjoint() -> Run:
    """The same, no digit on both sides."""
    return reading(like_anywhere_steered_5(), "like-anywhere-steered-5", "affnist-like/fit-digits", "affnist-like/other-digits")


def _linear(network: Run, of: str) -> Run:
    return reading(network, of, "mnist/train", "mnist/test", classifier=Linear())


@claim("sparse + linear, MNIST, 28x28", "mnist/test", table="probe")
def mnist_sparse_linear() -> Run:
    """One layer on pre-mask features, to compare the ablations with."""
    return _linear(MNIST, "mnist-sparse")


@claim("dense + linear, MNIST, 28x28", "mnist/test", table="probe")
def mnist_dense_linear() -> Run:
    """One layer on dense capsules."""
    return _linear(with_model(MNIST, preset="dense"), "mnist-dense")


@claim("no boosting + linear, MNIST, 28x28", "mnist/test", table="probe")
def mnist_no_boost_linear() -> Run:
    """One layer on pre-mask features of the network without boosts."""
    return _linear(mnist_no_boost(), "mnist-no-boost")


@claim("boosts inside the routing passes + linear, MNIST, 28x28", "mnist/test", table="probe")
def mnist_boost_inside_linear() -> Run:
    """One layer on pre-mask features of the network with boosts in every pass."""
    return _linear(mnist_boost_inside(), "mnist-boost-inside")
