"""Classifiers of the frozen networks (Tables 1 and 2) and attacks on them (section 4).

(a) fits the classifier to 60,000 affine digits, (b) to MNIST digits; both test it on the same 10,000 affine digits. In
(a) the same digits, under other transforms, are on both sides; "digit-disjoint" rows are what the paper lacks.
"Pre-mask" features are those of the authors' code, "masked" those of Eq. 4, fitted to 20,000 images only. An SVM takes
1 to 10 min of one CPU core a seed, an attack 1 min of an H200. `pgd-10` attacks
change each pixel by at most 10 % of its range.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torchcaps.papers.rawlinson2018 import ablations, rows
from torchcaps.papers.rawlinson2018.rows import AFFINE_TEST
from torchcaps.probes.kinds import Attack, FrozenClassifier, Svm
from torchcaps.results.claims import Claim, Variants, recipes_of

_PAPER = "rawlinson2018"
_NETWORKS = recipes_of(_PAPER, rows) | recipes_of(_PAPER, ablations)

_AFFINE, _PLACED, _CENTRED = "affnist-like/0-60000", "mnist-40/placed", "mnist-40/train"
_FIT_DIGITS, _OTHER_DIGITS, _CENTRED_TEST = "affnist-like/fit-digits", "affnist-like/other-digits", "mnist-40/middle"
_MASKED = {"features": "masked", "n_fit": 20_000}
# gamma of 0.1 suits capsules; pixels lie farther apart and use one over the sum of their variances
_PIXELS = {"features": "pixels", "of": "", "classifier": Svm(gamma=None)}
_SHARED = "the same digits on both sides"  # suffix of the rows' texts


class _Fit(NamedTuple):
    """One classifier: the row's text, its network, the images that it is fitted to and tested on."""

    row: str
    network: str
    fit: str
    on: str
    printed: float | None = None
    table: str = "1"
    how: dict[str, Any] = {}  # noqa: RUF012, never changed

    def make(self) -> FrozenClassifier:
        network = {"network": _NETWORKS[f"{_PAPER}/{self.network}"].make(), "of": f"{_PAPER}/{self.network}"}
        return FrozenClassifier(**network | {"fit": self.fit, "on": (self.on,)} | self.how)

    def claim(self) -> Claim:
        return Claim(table=self.table, row=self.row, metric=f"{self.on}.error_percent", printed=self.printed)


def _named(make: Callable[[], Any], claim: Claim) -> Callable[[], Any]:
    def made() -> Any:
        return make()

    made.__doc__, made.claim = f"{claim.row}.", claim
    return made


_FITS = {
    "like-sparse-svm-a": _Fit(
        f"sparse + SVM (a), affnist-like (printed: affNIST), pre-mask; {_SHARED}",
        "like-sparse", _AFFINE, AFFINE_TEST, 9.88,
    ),
    "like-sparse-svm-a-masked": _Fit(
        f"sparse + SVM (a), affnist-like (printed: affNIST), masked, fitted to 20,000; {_SHARED}",
        "like-sparse", _AFFINE, AFFINE_TEST, 9.88, how=_MASKED,
    ),
    "like-sparse-svm-disjoint": _Fit(
        "sparse + SVM, affnist-like, digit-disjoint, pre-mask", "like-sparse", _FIT_DIGITS, _OTHER_DIGITS
    ),
    "like-sparse-svm-b": _Fit(
        "sparse + SVM (b), affnist-like (printed: affNIST), pre-mask", "like-sparse", _PLACED, AFFINE_TEST, 83.01
    ),
    "like-dense-svm-a": _Fit(
        f"dense + SVM (a), affnist-like (printed: affNIST); {_SHARED}", "like-dense", _AFFINE, AFFINE_TEST, 39.37
    ),
    "like-dense-svm-disjoint": _Fit(
        "dense + SVM, affnist-like, digit-disjoint", "like-dense", _FIT_DIGITS, _OTHER_DIGITS
    ),
    "like-dense-svm-b": _Fit(
        "dense + SVM (b), affnist-like (printed: affNIST)", "like-dense", _PLACED, AFFINE_TEST, 84.3
    ),
    "pixels-wide-svm-a": _Fit(
        f"control: pixels, 256 principal components + SVM of their own width (a), affnist-like; {_SHARED}",
        "like-sparse", _AFFINE, AFFINE_TEST, how=_PIXELS,
    ),
    "pixels-wide-svm-disjoint": _Fit(
        "control: pixels, 256 principal components + SVM of their own width, affnist-like, digit-disjoint",
        "like-sparse", _FIT_DIGITS, _OTHER_DIGITS, how=_PIXELS,
    ),
    "mnist-sparse-svm": _Fit(
        "sparse + SVM, MNIST, 28x28, pre-mask", "mnist-sparse", "mnist/train", "mnist/test", 1.0
    ),
    "mnist-sparse-svm-masked": _Fit(
        "sparse + SVM, MNIST, 28x28, masked, fitted to 20,000",
        "mnist-sparse", "mnist/train", "mnist/test", 1.0, how=_MASKED,
    ),
    "mnist-dense-svm": _Fit("dense + SVM, MNIST, 28x28", "mnist-dense", "mnist/train", "mnist/test", 2.63),
    # the released code: MNIST digits for classifiers lie in the middle of 40x40, and support is summed otherwise
    "like-sparse-svm-middle": _Fit(
        "sparse + SVM, MNIST in the middle of 40x40, pre-mask", "like-sparse", _CENTRED, _CENTRED_TEST, 1.0, "code"
    ),
    "like-sparse-svm-b-middle": _Fit(
        "sparse + SVM (b), fitted to digits in the middle, affnist-like (printed: affNIST), pre-mask",
        "like-sparse", _CENTRED, AFFINE_TEST, 83.01, "code",
    ),
    "like-dense-svm-middle": _Fit(
        "dense + SVM, MNIST in the middle of 40x40", "like-dense", _CENTRED, _CENTRED_TEST, 2.63, "code"
    ),
    "like-dense-svm-b-middle": _Fit(
        "dense + SVM (b), fitted to digits in the middle, affnist-like (printed: affNIST)",
        "like-dense", _CENTRED, AFFINE_TEST, 84.3, "code",
    ),
    "like-released-svm-a": _Fit(
        f"sparse as in the released code + SVM (a), affnist-like (printed: affNIST), pre-mask; {_SHARED}",
        "like-released", _AFFINE, AFFINE_TEST, 9.88, "code",
    ),
    **{
        f"like-{name}-sparse-svm-a": _Fit(
            f"sparse, {words} + SVM (a), affnist-like, pre-mask; {_SHARED}",
            f"like-{name}-sparse", _AFFINE, AFFINE_TEST, table="ablation",
        )
        for name, words in {"paper": "CapsNet's preset paper", "types": "a transform per type"}.items()
    },
    # other boosts do not change the error of (a), other places of the training digits do
    "like-steered-svm-a": _Fit(
        f"sparse, boosts that follow the wins of every batch + SVM (a), affnist-like, pre-mask; {_SHARED}",
        "like-steered", _AFFINE, AFFINE_TEST, table="ablation",
    ),
    "like-anywhere-sparse-svm-a": _Fit(
        f"sparse, training digits anywhere + SVM (a), affnist-like, pre-mask; {_SHARED}",
        "like-anywhere-sparse", _AFFINE, AFFINE_TEST,
    ),
    "like-anywhere-sparse-svm-disjoint": _Fit(
        "sparse, training digits anywhere + SVM, affnist-like, digit-disjoint, pre-mask",
        "like-anywhere-sparse", _FIT_DIGITS, _OTHER_DIGITS,
    ),
}  # fmt: skip
CLASSIFIERS = Variants({name: _named(fit.make, fit.claim()) for name, fit in _FITS.items()})


def _attack(fit: str) -> Attack:
    """Build an attack on a network and its SVM."""
    probe = _FITS[fit].make()
    return Attack(network=probe.network, of=probe.of, fit=probe.fit)


def _attack_supervised() -> Attack:
    """Build an attack on a network that predicts by the longest capsule."""
    return Attack(network=rows.mnist_supervised(), of=f"{_PAPER}/mnist-supervised", classifier=None)


_ATTACKS = {
    "attack-supervised": ("supervised capsules, PGD-20 with 5 restarts, 10 %", _attack_supervised),
    "attack-sparse": (
        "sparse + SVM, pre-mask, PGD-20 with 5 restarts, 10 %", lambda: _attack("mnist-sparse-svm")
    ),
    "attack-dense": ("dense + SVM, PGD-20 with 5 restarts, 10 %", lambda: _attack("mnist-dense-svm")),
    # if this transfer attack were stronger than the white box, gradients would be masked
    "transfer-to-sparse": (
        "adversarial images of the supervised capsules, classified by sparse + SVM, pre-mask",
        lambda: replace(_attack("mnist-sparse-svm"), source=_attack_supervised()),
    ),
}  # fmt: skip
_BESIDE = ("clean", "fgsm-10", "pgd-5", "pgd-20", "pgd-30")


def _claim(name: str, row: str) -> Claim:
    parts = [part for part in _BESIDE if not (name.startswith("transfer") and part.startswith("fgsm"))]
    beside = tuple(f"{part}.error_percent" for part in parts)
    return Claim(table="robustness", row=row, metric="pgd-10.error_percent", beside=beside)


ATTACKS = Variants({name: _named(make, _claim(name, row)) for name, (row, make) in _ATTACKS.items()})
