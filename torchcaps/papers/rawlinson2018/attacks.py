"""Are sparse capsules harder to mislead (section 4)? Attacks on the networks of 28x28, the machine's decision function included.

Metrics are errors after an attack, `pgd-10` for pixels changed by at most 10 percent of their range. Transfer rows show pictures made to
mislead another network: if those did more than the white box does, gradients would be hidden, not absent.
"""

from dataclasses import fields, replace

from torchcaps.papers.rawlinson2018 import readings, rows
from torchcaps.probes.kinds import Attack, FrozenClassifier
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run

_BESIDE = ("clean.error_percent", "fgsm-10.error_percent", "pgd-5.error_percent", "pgd-20.error_percent", "pgd-30.error_percent")
_ACROSS = tuple(name for name in _BESIDE if not name.startswith("fgsm"))


def _attack(probe: FrozenClassifier) -> Attack:
    return Attack(**{field.name: getattr(probe, field.name) for field in fields(probe)} | {"on": ()})


def _claim(row: str, beside: tuple[str, ...] = _BESIDE):
    return reproduces(table="robustness", row=row, metric="pgd-10.error_percent", beside=beside)


@_claim("supervised capsules, PGD-20 with 5 restarts, 10 %")
def attack_supervised() -> Run:
    """What section 4 compares with: the longest capsule answers."""
    return Attack(network=rows.mnist_supervised(), of="rawlinson2018/mnist-supervised", classifier=None)


@_claim("sparse + SVM, pre-mask, PGD-20 with 5 restarts, 10 %")
def attack_sparse() -> Run:
    """Through the machine, the routing and the network."""
    return _attack(readings.mnist_sparse_svm())


@_claim("sparse + SVM, masked (fitted to 20,000), PGD-20 with 5 restarts, 10 %")
def attack_sparse_masked() -> Run:
    """Through Eq. 4's mask, whose ranks have no gradient."""
    return _attack(readings.mnist_sparse_svm_masked())


@_claim("dense + SVM, PGD-20 with 5 restarts, 10 %")
def attack_dense() -> Run:
    """Dense capsules."""
    return _attack(readings.mnist_dense_svm())


@_claim("pictures made to mislead the supervised capsules, shown to sparse + SVM, pre-mask", _ACROSS)
def transfer_to_sparse() -> Run:
    """A transfer attack."""
    return replace(attack_sparse(), source=attack_supervised())


@_claim("pictures made to mislead the supervised capsules, shown to sparse + SVM, masked (fitted to 20,000)", _ACROSS)
def transfer_to_sparse_masked() -> Run:
    """A transfer attack on the features whose mask has no gradient."""
    return replace(attack_sparse_masked(), source=attack_supervised())


@_claim("pictures made to mislead sparse + SVM, pre-mask, shown to the same network + SVM, masked (fitted to 20,000)", _ACROSS)
def transfer_behind_the_mask() -> Run:
    """The nearest to a gradient through the mask: were this to mislead more than the white box does, the mask would hide one."""
    return replace(attack_sparse_masked(), source=attack_sparse())


@_claim("pictures made to mislead sparse + SVM, pre-mask, shown to the supervised capsules", _ACROSS)
def transfer_to_supervised() -> Run:
    """The other way."""
    return replace(attack_supervised(), source=attack_sparse())
