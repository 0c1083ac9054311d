"""What is chosen for the sentence rows, on SST's own validation part: rates, epochs, mixup, layers and sizes. No test set is seen."""

from dataclasses import replace
from typing import Any

from torchcaps.data.augment.mixup import Mixup
from torchcaps.papers.heinsen2019 import sentences
from torchcaps.train.recipe import Run


def _choose(run: Run, *, rate: float = 5e-4, mixed: bool = True, stage: dict[str, Any] | None = None, **model_args: Any) -> Run:
    # no curve: there the validation part is what the run is judged on
    changed = replace(run.stages[0], watch=None, rate=rate, **(stage or {}))
    mixup = (Mixup(0.2),) if mixed else ()
    return replace(run, data=f"{run.data}-dev", model_args=run.model_args | model_args, augment=mixup, stages=(changed,))


def choose_sst5() -> Run:
    """The routing as it is: the paper's rate."""
    return _choose(sentences.sst5())


def choose_sst5_fast() -> Run:
    """Twice the rate."""
    return _choose(sentences.sst5(), rate=1e-3)


def choose_sst5_faster() -> Run:
    """Four times the rate."""
    return _choose(sentences.sst5(), rate=2e-3)


def choose_sst5_fast_no_mixup() -> Run:
    """Twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst5(), rate=1e-3, mixed=False)


def choose_sst5_wide() -> Run:
    """Poses of four numbers instead of two, twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst5(), rate=1e-3, mixed=False, d_pose=4)


def choose_sst5_mlp() -> Run:
    """The MLP with the rate of the routing, mixed."""
    return _choose(sentences.sst5_mlp())


def choose_sst5_mlp_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst5_mlp(), rate=1e-4)


def choose_sst5_mlp_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=1e-4, mixed=False)


def choose_sst5_mlp_wide() -> Run:
    """A hidden layer of 1024, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=1e-4, mixed=False, hidden=(1024,))


def choose_sst5_mlp_slower_no_mixup() -> Run:
    """A tenth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=5e-5, mixed=False)


def choose_sst5_mlp_wider() -> Run:
    """A hidden layer of 4096, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=1e-4, mixed=False, hidden=(4096,))


def choose_sst5_mlp_wider_slow() -> Run:
    """A hidden layer of 4096, a tenth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=5e-5, mixed=False, hidden=(4096,))


def choose_sst5_mlp_slow_dropout() -> Run:
    """Half of features and hidden numbers left out at random, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_mlp(), rate=1e-4, mixed=False, dropout=0.5)


def choose_sst5_mlp_dropout() -> Run:
    """Half of features and hidden numbers left out at random."""
    return _choose(sentences.sst5_mlp(), dropout=0.5)


def choose_sst5_mlp_last() -> Run:
    """The last layer alone."""
    return _choose(sentences.sst5_mlp(), layers="last")


def choose_sst5_linear() -> Run:
    """The linear probe with the rate of the routing, mixed."""
    return _choose(sentences.sst5_linear())


def choose_sst5_linear_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst5_linear(), rate=1e-4)


def choose_sst5_linear_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_linear(), rate=1e-4, mixed=False)


def choose_sst5_linear_slower_no_mixup() -> Run:
    """A twentieth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst5_linear(), rate=2.5e-5, mixed=False)


def choose_sst5_linear_last() -> Run:
    """The last layer alone, with a higher rate for its fewer weights."""
    return _choose(sentences.sst5_linear(), rate=2e-3, layers="last")


def choose_sst2() -> Run:
    """The routing with two labels."""
    return _choose(sentences.sst2())


def choose_sst2_fast() -> Run:
    """Twice the rate."""
    return _choose(sentences.sst2(), rate=1e-3)


def choose_sst2_faster() -> Run:
    """Four times the rate."""
    return _choose(sentences.sst2(), rate=2e-3)


def choose_sst2_long() -> Run:
    """Six epochs: nearly as many steps as three are with five labels, where nothing is dropped for being neutral."""
    return _choose(sentences.sst2(), stage={"epochs": 6})


def choose_sst2_float32() -> Run:
    """Votes and features not in bfloat16, as the author's."""
    return _choose(sentences.sst2(), stage={"precision": "float32"})


def choose_sst2_no_mixup() -> Run:
    """Every training example is one phrase."""
    return _choose(sentences.sst2(), mixed=False)


def choose_sst2_fast_no_mixup() -> Run:
    """Twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst2(), rate=1e-3, mixed=False)


def choose_sst2_parts() -> Run:
    """Twice as many parts, twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst2(), rate=1e-3, mixed=False, n_parts=128)


def choose_sst2_wide() -> Run:
    """Poses of four numbers instead of two, twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst2(), rate=1e-3, mixed=False, d_pose=4)


def choose_sst2_wider() -> Run:
    """Poses of eight numbers, twice the rate, and every training example is one phrase."""
    return _choose(sentences.sst2(), rate=1e-3, mixed=False, d_pose=8)


def choose_sst2_wider_slow() -> Run:
    """Poses of eight numbers, the paper's rate, and every training example is one phrase."""
    return _choose(sentences.sst2(), mixed=False, d_pose=8)


def choose_sst2_mlp() -> Run:
    """The MLP with two labels."""
    return _choose(sentences.sst2_mlp())


def choose_sst2_mlp_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst2_mlp(), rate=1e-4)


def choose_sst2_mlp_long() -> Run:
    """Six epochs."""
    return _choose(sentences.sst2_mlp(), stage={"epochs": 6})


def choose_sst2_mlp_float32() -> Run:
    """Products not in bfloat16."""
    return _choose(sentences.sst2_mlp(), stage={"precision": "float32"})


def choose_sst2_mlp_no_mixup() -> Run:
    """Every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), mixed=False)


def choose_sst2_mlp_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=1e-4, mixed=False)


def choose_sst2_mlp_wide() -> Run:
    """A hidden layer of 1024, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=1e-4, mixed=False, hidden=(1024,))


def choose_sst2_mlp_wider() -> Run:
    """A hidden layer of 4096, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=1e-4, mixed=False, hidden=(4096,))


def choose_sst2_mlp_wider_slow() -> Run:
    """A hidden layer of 4096, a tenth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=5e-5, mixed=False, hidden=(4096,))


def choose_sst2_mlp_slower_no_mixup() -> Run:
    """A tenth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=5e-5, mixed=False)


def choose_sst2_mlp_wider_slower() -> Run:
    """A hidden layer of 4096, a twentieth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=2.5e-5, mixed=False, hidden=(4096,))


def choose_sst2_mlp_slow_dropout() -> Run:
    """Half of features and hidden numbers left out at random, a fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_mlp(), rate=1e-4, mixed=False, dropout=0.5)


def choose_sst2_mlp_last() -> Run:
    """The last layer alone."""
    return _choose(sentences.sst2_mlp(), layers="last")


def choose_sst2_linear() -> Run:
    """The linear probe with two labels."""
    return _choose(sentences.sst2_linear())


def choose_sst2_linear_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst2_linear(), rate=1e-4)


def choose_sst2_linear_long() -> Run:
    """Six epochs."""
    return _choose(sentences.sst2_linear(), stage={"epochs": 6})


def choose_sst2_linear_float32() -> Run:
    """Products not in bfloat16."""
    return _choose(sentences.sst2_linear(), stage={"precision": "float32"})


def choose_sst2_linear_no_mixup() -> Run:
    """Every training example is one phrase."""
    return _choose(sentences.sst2_linear(), mixed=False)


def choose_sst2_linear_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_linear(), rate=1e-4, mixed=False)


def choose_sst2_linear_slower_no_mixup() -> Run:
    """A twentieth of the rate, and every training example is one phrase."""
    return _choose(sentences.sst2_linear(), rate=2.5e-5, mixed=False)


def choose_sst2_linear_last() -> Run:
    """The last layer alone, with a higher rate for its fewer weights."""
    return _choose(sentences.sst2_linear(), rate=2e-3, layers="last")
