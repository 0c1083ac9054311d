"""Task that trains a network of a routing by the loss that the routing names."""

from torchcaps.layers.routings import Routing, routing_named
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLikelihood, ClassifyScores

TASKS: dict[str, type[Task]] = {
    "margin": Classify,
    "cross-entropy": ClassifyScores,
    "likelihood": ClassifyLikelihood,
}


def fitting_task(routing: str | Routing) -> Task:
    """Return the task for a routing: a name of `ROUTINGS`, or options."""
    return TASKS[routing_named(routing).loss]()
