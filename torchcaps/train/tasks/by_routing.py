"""Task that trains a network of a given routing."""

from torchcaps.layers.routings import Routing, routing_named
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLikelihood, ClassifyScores
from torchcaps.train.tasks.spread import ClassifySpread

TASKS: dict[str, type[Classify | ClassifyScores | ClassifySpread]] = {
    "margin": Classify,
    "cross-entropy": ClassifyScores,
    "likelihood": ClassifyLikelihood,
    "spread": ClassifySpread,
}


def task_for(
    routing: str | Routing | None, reconstruction_weight: float = 0.0005
) -> Classify | ClassifyScores | ClassifySpread:
    """Make the task whose loss fits a routing of class capsules; None is routing by agreement."""
    loss = "margin" if routing is None else routing_named(routing).loss
    if loss not in TASKS:
        raise ValueError(f"no task has the loss {loss!r} of routing={routing!r}; there are {', '.join(TASKS)}")
    return TASKS[loss](reconstruction_weight=reconstruction_weight)
