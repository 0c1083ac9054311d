"""Tasks and networks that fit each other: by the outputs of a network, and by the loss that its routing names."""

from typing import Any

from torch import Tensor

from torchcaps.layers import Capsules

OUTPUTS = {
    "lengths": "capsules whose length is their activity",
    "scores": "capsules with scores",
    "logits": "a plain tensor of logits",
}
TASKS = {"lengths": "Classify", "scores": "ClassifyScores", "logits": "ClassifyLogits"}
PAIR_TASKS = {"lengths": "ClassifyPairs", "logits": "ClassifyPairLogits"}


def check_output(task: Any, found: Capsules | Tensor, wanted: str, tasks: dict[str, str] = TASKS) -> None:
    """Refuse outputs of a network that the loss of a task does not fit. `wanted`: one of `OUTPUTS`."""
    came = "logits" if isinstance(found, Tensor) else "lengths" if found.score is None else "scores"
    if came != wanted:
        do = f"train it by {tasks[came]}" if came in tasks else "build it with a routing whose loss is margin"
        raise ValueError(
            f"{type(task).__name__} needs a network of {OUTPUTS[wanted]}, and this one gives {OUTPUTS[came]}; {do}"
        )
