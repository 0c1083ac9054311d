"""What expert capsules are to be: tried on 5,000 training digits kept aside. No test set is seen.

A strong force towards sparse experts makes capsules that stand for one class and numbers that tell little of the others; wanted was a
setting with both. On the sphere there is none; with a number or two off it there are some, of which `mnist-plain-forced` and
`mnist-plain-chosen` were run on the test digits (docs/papers/hauser2019.md). Goals are the shares of pictures that the force pulls to;
experts end up on for more.
"""

from dataclasses import replace

from torchcaps.papers.changes import with_model
from torchcaps.papers.hauser2019 import rows
from torchcaps.papers.hauser2019.changes import with_decay, with_experts
from torchcaps.train.recipe import Run


def _choose(force: float, goal: float = 0.1, *, n_plain: int = 0, l2: float = 0.01) -> Run:
    """`n_plain` of a capsule's sixteen numbers are off the sphere; `l2` is the decoder's."""
    run = with_decay(with_experts(rows.mnist(), sparse=force, goal=goal), l2)
    return replace(with_model(run, n_plain=n_plain) if n_plain else run, hold_out=5000)


def choose_force_10() -> Run:
    """What the row has: a force of 10 towards being on for a tenth of the pictures."""
    return _choose(10.0)


def choose_force_7() -> Run:
    """Between the row's and half of it, where the capsules stop to stand for classes."""
    return _choose(7.0)


def choose_force_10_goal_15() -> Run:
    """On for three pictures of twenty."""
    return _choose(10.0, 0.15)


def choose_force_10_goal_20() -> Run:
    """On for a fifth of the pictures: four experts for each."""
    return _choose(10.0, 0.2)


def choose_force_20_goal_20() -> Run:
    """The same share, held more strictly."""
    return _choose(20.0, 0.2)


def choose_force_20_goal_30() -> Run:
    """Six experts for each picture."""
    return _choose(20.0, 0.3)


def choose_force_40_goal_30() -> Run:
    """The same share, held more strictly."""
    return _choose(40.0, 0.3)


def choose_force_7_goal_20() -> Run:
    """The weaker force, and four experts for each picture."""
    return _choose(7.0, 0.2)


def choose_force_7_goal_30() -> Run:
    """The weaker force, and six experts for each picture."""
    return _choose(7.0, 0.3)


def choose_force_10_goal_30() -> Run:
    """On for three pictures of ten: six experts for each."""
    return _choose(10.0, 0.3)


def choose_force_10_goal_40() -> Run:
    """Eight experts for each picture."""
    return _choose(10.0, 0.4)


def choose_force_20_goal_40() -> Run:
    """The same share, held more strictly."""
    return _choose(20.0, 0.4)


def choose_force_20_goal_50() -> Run:
    """Half of the experts for each picture."""
    return _choose(20.0, 0.5)


def choose_plain_1_l2_30() -> Run:
    """One number off the sphere, the row's force; a decoder with three times the l2, which keeps to what a capsule says first of all."""
    return _choose(10.0, n_plain=1, l2=0.03)


def choose_plain_1_force_20_l2_30() -> Run:
    """One, twice the force, three times the l2: what `mnist-plain-forced` has."""
    return _choose(20.0, n_plain=1, l2=0.03)


def choose_plain_2() -> Run:
    """Two numbers off the sphere, and the row's force."""
    return _choose(10.0, n_plain=2)


def choose_plain_2_l2_30() -> Run:
    """Two, three times the l2."""
    return _choose(10.0, n_plain=2, l2=0.03)


def choose_plain_2_force_20_l2_30() -> Run:
    """Two, twice the force, three times the l2."""
    return _choose(20.0, n_plain=2, l2=0.03)


def choose_plain_2_force_20_goal_20_l2_30() -> Run:
    """The same towards four experts for each picture."""
    return _choose(20.0, 0.2, n_plain=2, l2=0.03)


def choose_plain_2_force_30_l2_30() -> Run:
    """Two, three times the force, three times the l2: what `mnist-plain-chosen` has."""
    return _choose(30.0, n_plain=2, l2=0.03)


def choose_plain_2_force_40_l2_30() -> Run:
    """Two, four times the force, three times the l2."""
    return _choose(40.0, n_plain=2, l2=0.03)


def choose_plain_4() -> Run:
    """Four, and the row's force, as `mnist-plain` has it."""
    return _choose(10.0, n_plain=4)


def choose_plain_4_l2_30() -> Run:
    """Four, three times the l2."""
    return _choose(10.0, n_plain=4, l2=0.03)


def choose_plain_4_l2_100() -> Run:
    """Four, ten times the l2."""
    return _choose(10.0, n_plain=4, l2=0.1)


def choose_plain_4_force_15() -> Run:
    """A stronger force: numbers off the sphere add to what switches a capsule on."""
    return _choose(15.0, n_plain=4)


def choose_plain_4_force_20() -> Run:
    """Four, twice the force."""
    return _choose(20.0, n_plain=4)


def choose_plain_4_force_20_goal_20() -> Run:
    """Twice the force, towards four experts for each picture."""
    return _choose(20.0, 0.2, n_plain=4)


def choose_plain_4_force_40() -> Run:
    """Four, four times the force."""
    return _choose(40.0, n_plain=4)


def choose_plain_4_force_40_l2_30() -> Run:
    """Four, four times the force, three times the l2."""
    return _choose(40.0, n_plain=4, l2=0.03)


def choose_plain_8_l2_30() -> Run:
    """Half of the numbers off the sphere, three times the l2."""
    return _choose(10.0, n_plain=8, l2=0.03)


def choose_plain_8_force_20() -> Run:
    """Half of them, twice the force."""
    return _choose(20.0, n_plain=8)


def choose_plain_8_force_40() -> Run:
    """Half of them, four times the force."""
    return _choose(40.0, n_plain=8)


def choose_plain_12() -> Run:
    """Twelve of the sixteen off the sphere, and the row's force."""
    return _choose(10.0, n_plain=12)
