"""One change at a time to the stages of an expert network: what its rows differ in, and what was tried."""

from dataclasses import replace
from typing import Any

from torchcaps.train.recipe import Run


def with_experts(run: Run, **changes: Any) -> Run:
    """Other settings of the second stage's task, which learns W."""
    first, second, *rest = run.stages
    return replace(run, stages=(first, replace(second, task=replace(second.task, **changes)), *rest))


def with_rate(run: Run, learning_rate: float) -> Run:
    """Another rate for W."""
    first, second, *rest = run.stages
    return replace(run, stages=(first, replace(second, learning_rate=learning_rate), *rest))


def with_decay(run: Run, l2: float) -> Run:
    """Another l2 of the decoder U, which is learnt last: the experts and their probe stay as they are."""
    *rest, decoder = run.stages
    return replace(run, stages=(*rest, replace(decoder, optimizer=replace(decoder.optimizer, l2=l2))))
