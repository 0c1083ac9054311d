"""What is chosen for the sentence rows, on SST's own validation part: rates, epochs, layers and sizes. No test set is seen."""

from dataclasses import replace
from typing import Any

from torchcaps.papers.heinsen2019 import sentences
from torchcaps.recipe import Run


def _choose(run: Run, stage: dict[str, Any] | None = None, **model_args: Any) -> Run:
    # no curve: there the validation part is what the run is judged on
    changed = replace(run.stages[0], watch=None, **(stage or {}))
    return replace(run, data=f"{run.data}-dev", model_args=run.model_args | model_args, stages=(changed,))


def choose_sst5() -> Run:
    """The routing as it is: the paper's rate."""
    return _choose(sentences.sst5(), {"rate": 5e-4})


def choose_sst5_fast() -> Run:
    """Twice the rate."""
    return _choose(sentences.sst5(), {"rate": 1e-3})


def choose_sst5_faster() -> Run:
    """Four times the rate."""
    return _choose(sentences.sst5(), {"rate": 2e-3})


def choose_sst5_mlp() -> Run:
    """The MLP as it is."""
    return _choose(sentences.sst5_mlp(), {"rate": 5e-4})


def choose_sst5_mlp_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst5_mlp(), {"rate": 1e-4})


def choose_sst5_mlp_dropout() -> Run:
    """Half of the hidden numbers left out at random."""
    return _choose(sentences.sst5_mlp(), {"rate": 5e-4}, dropout=0.5)


def choose_sst5_mlp_last() -> Run:
    """The last layer alone."""
    return _choose(sentences.sst5_mlp(), {"rate": 5e-4}, layers="last")


def choose_sst5_linear() -> Run:
    """The linear probe as it is."""
    return _choose(sentences.sst5_linear(), {"rate": 5e-4})


def choose_sst5_linear_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst5_linear(), {"rate": 1e-4})


def choose_sst5_linear_last() -> Run:
    """The last layer alone, with a higher rate for its fewer weights."""
    return _choose(sentences.sst5_linear(), {"rate": 2e-3}, layers="last")


def choose_sst2() -> Run:
    """The routing with two labels."""
    return _choose(sentences.sst2())


def choose_sst2_fast() -> Run:
    """Twice the rate."""
    return _choose(sentences.sst2(), {"rate": 1e-3})


def choose_sst2_faster() -> Run:
    """Four times the rate."""
    return _choose(sentences.sst2(), {"rate": 2e-3})


def choose_sst2_long() -> Run:
    """Six epochs: nearly as many steps as three are with five labels, where nothing is dropped for being neutral."""
    return _choose(sentences.sst2(), {"epochs": 6})


def choose_sst2_float32() -> Run:
    """Votes and features not in bfloat16, as the author's."""
    return _choose(sentences.sst2(), {"precision": "float32"})


def choose_sst2_no_mixup() -> Run:
    """Every training example is one phrase."""
    return replace(_choose(sentences.sst2()), augment=())


def choose_sst2_mlp() -> Run:
    """The MLP with two labels."""
    return _choose(sentences.sst2_mlp())


def choose_sst2_mlp_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst2_mlp(), {"rate": 1e-4})


def choose_sst2_mlp_long() -> Run:
    """Six epochs."""
    return _choose(sentences.sst2_mlp(), {"epochs": 6})


def choose_sst2_mlp_float32() -> Run:
    """Products not in bfloat16."""
    return _choose(sentences.sst2_mlp(), {"precision": "float32"})


def choose_sst2_mlp_no_mixup() -> Run:
    """Every training example is one phrase."""
    return replace(_choose(sentences.sst2_mlp()), augment=())


def choose_sst2_mlp_last() -> Run:
    """The last layer alone."""
    return _choose(sentences.sst2_mlp(), layers="last")


def choose_sst2_linear() -> Run:
    """The linear probe with two labels."""
    return _choose(sentences.sst2_linear())


def choose_sst2_linear_slow() -> Run:
    """A fifth of the rate."""
    return _choose(sentences.sst2_linear(), {"rate": 1e-4})


def choose_sst2_linear_long() -> Run:
    """Six epochs."""
    return _choose(sentences.sst2_linear(), {"epochs": 6})


def choose_sst2_linear_float32() -> Run:
    """Products not in bfloat16."""
    return _choose(sentences.sst2_linear(), {"precision": "float32"})


def choose_sst2_linear_no_mixup() -> Run:
    """Every training example is one phrase."""
    return replace(_choose(sentences.sst2_linear()), augment=())


def choose_sst2_linear_last() -> Run:
    """The last layer alone, with a higher rate for its fewer weights."""
    return _choose(sentences.sst2_linear(), {"rate": 2e-3}, layers="last")


def choose_sst2_fast_no_mixup() -> Run:
    """Twice the rate, and every training example is one phrase."""
    return replace(_choose(sentences.sst2(), {"rate": 1e-3}), augment=())


def choose_sst2_mlp_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return replace(_choose(sentences.sst2_mlp(), {"rate": 1e-4}), augment=())


def choose_sst5_fast_no_mixup() -> Run:
    """Twice the rate, and every training example is one phrase."""
    return replace(_choose(sentences.sst5(), {"rate": 1e-3}), augment=())


def choose_sst5_mlp_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return replace(_choose(sentences.sst5_mlp(), {"rate": 1e-4}), augment=())


def choose_sst5_linear_slow_no_mixup() -> Run:
    """A fifth of the rate, and every training example is one phrase."""
    return replace(_choose(sentences.sst5_linear(), {"rate": 1e-4}), augment=())
