"""Section 7: smallNORB, SVHN and CIFAR-10. Pictures are standardised one by one, and a sigmoid cannot redraw those: no decoder,
but for the row of smallNORB that follows the authors' code, which has one."""

from dataclasses import replace

from torchcaps.data.augment import Crop, Flip, Light, Standardise
from torchcaps.train.recipe import Cosine, Run, Stage, reproduces

_TOYS = {"table": "7", "metric": "test.error_percent", "printed": 2.7, "selected": "selection not said"}


def _args(**model_args) -> dict:
    return {"preset": "official", "n_iters": 3, "reconstruction": False} | model_args


@reproduces(row="smallNORB (a lossy copy), CapsNet, 3 iterations", **_TOYS)
def smallnorb() -> Run:
    """smallNORB at 48x48, random light and crops of 32x32, the centre in the test; both eyes as two channels."""
    stage = Stage(epochs=200, batch=128, rate=1e-3, schedule=Cosine())
    return Run(
        data="smallnorb-48", model="capsnet", model_args=_args(), augment=(Light(), Crop(32), Standardise()), stages=(stage,)
    )  # fmt: skip


@reproduces(row="smallNORB (a lossy copy), the same as the authors' code has it", **_TOYS)
def smallnorb_authors() -> Run:
    """Every second pixel, light that does not saturate, a decoder of standardised pictures: as in the authors' code, but our epochs."""
    run = smallnorb()
    augment = Light(saturates=False), Crop(32), Standardise()
    return replace(run, data="smallnorb-48-thinned", model_args=_args(reconstruction=True), augment=augment)


@reproduces(row="smallNORB (a lossy copy), a transform per type and class for all places", **_TOYS)
def smallnorb_types() -> Run:
    """As `smallnorb`, with one transform per type and class, shared over places."""
    return replace(smallnorb(), model_args=_args(sharing="places"))


@reproduces(
    table="7", row="SVHN (cut anew), small CapsNet, 3 iterations", metric="test.error_percent", printed=4.3, selected="selection not said"
)
def svhn() -> Run:
    """SVHN's 73,257 training digits, the small network: 64 channels, 16 types of 6 numbers, class capsules of 8."""
    args = _args(channels=64, n_types=16, d_primary=6, d_class=8)
    stage = Stage(epochs=100, batch=128, rate=1e-3, schedule=Cosine())
    return Run(data="svhn", model="capsnet", model_args=args, augment=(Crop(28), Standardise()), stages=(stage,))


def _cifar(keep_scores: bool = False, **model_args) -> Run:
    args = _args(n_types=64, same=True) | model_args
    augment = Crop(24), Flip(), Light(saturates=False), Standardise()  # the authors' order, and their light
    stage = Stage(steps=60_000, batch=128, rate=1e-3, schedule=Cosine())
    return Run(data="cifar10", model="capsnet", model_args=args, augment=augment, stages=(stage,), keep_scores=keep_scores)


@reproduces(
    table="7", row="CIFAR-10, CapsNet, 3 iterations, leaky, one model", metric="test.error_percent", printed=10.6, selected="7 together"
)
def cifar10() -> Run:
    """CIFAR-10, crops of 24x24, 64 types, zeros around both convolutions, a logit for none of the above."""
    return _cifar(keep_scores=True, couplings="leaky")


@reproduces(
    table="7",
    row="CIFAR-10, several of these, lengths added up",
    metric="test.error_percent",
    printed=10.6,
    selected="7 together",
    members="cifar10",
)
def cifar10_ensemble() -> Run:
    """CIFAR-10, an ensemble of the row before: one member for each seed."""
    return cifar10()


@reproduces(table="7", row="CIFAR-10, CapsNet, 3 iterations, not leaky, one model", metric="test.error_percent")
def cifar10_plain() -> Run:
    """The same without a logit for none of the above."""
    return _cifar()


@reproduces(table="A", row="CIFAR-10, CapsNet, 1 iteration, leaky, one model", metric="test.error_percent")
def cifar10_r1() -> Run:
    """One routing pass: for figure A.2 and the error against passes."""
    return _cifar(n_iters=1, couplings="leaky")


@reproduces(table="A", row="CIFAR-10, CapsNet, 2 iterations, leaky, one model", metric="test.error_percent")
def cifar10_r2() -> Run:
    """Two routing passes: for the error against passes."""
    return _cifar(n_iters=2, couplings="leaky")


@reproduces(table="A", row="CIFAR-10, CapsNet, 5 iterations, leaky, one model", metric="test.error_percent")
def cifar10_r5() -> Run:
    """Five routing passes: for the error against passes."""
    return _cifar(n_iters=5, couplings="leaky")
