"""How strong the force towards sparse experts is, and where to: tried on 5,000 training images kept aside. No test set is seen.

A strong force makes capsules that stand for one class and numbers that tell little of the others; wanted was a setting with both.
On the sphere there is none (docs/papers/hauser2019.md). The shares below are what the force pulls to; experts end up on for more pictures.
"""

from dataclasses import replace

from torchcaps.papers.hauser2019 import rows
from torchcaps.recipe import Run


def _choose(force: float, goal: float) -> Run:
    run = rows.mnist()
    autoencoder, experts, decoder = run.stages
    experts = replace(experts, task=replace(experts.task, sparse=force, goal=goal))
    return replace(run, hold_out=5000, stages=(autoencoder, experts, decoder))


def choose_force_10() -> Run:
    """What the row has: a force of 10 towards being on for a tenth of the pictures."""
    return _choose(10.0, 0.1)


def choose_force_7() -> Run:
    """Between the row's and half of it, where the capsules stop to stand for classes."""
    return _choose(7.0, 0.1)


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


def _plain(n_plain: int, force: float, goal: float = 0.1) -> Run:
    run = _choose(force, goal)
    return replace(run, model_args=run.model_args | {"n_plain": n_plain})


def choose_plain_2() -> Run:
    """Two numbers off the sphere, and the row's force."""
    return _plain(2, 10.0)


def choose_plain_4() -> Run:
    """Four, as `mnist-plain` has it."""
    return _plain(4, 10.0)


def choose_plain_4_force_15() -> Run:
    """A stronger force: numbers off the sphere add to what switches a capsule on."""
    return _plain(4, 15.0)


def choose_plain_4_force_20() -> Run:
    """Twice the force."""
    return _plain(4, 20.0)


def choose_plain_4_force_20_goal_20() -> Run:
    """Twice the force, towards four experts for each picture."""
    return _plain(4, 20.0, 0.2)


def choose_plain_4_force_40() -> Run:
    """Four times the force."""
    return _plain(4, 40.0)


def choose_plain_8_force_20() -> Run:
    """Half of the numbers off the sphere, twice the force."""
    return _plain(8, 20.0)


def choose_plain_8_force_40() -> Run:
    """Half of the numbers off the sphere, four times the force."""
    return _plain(8, 40.0)
