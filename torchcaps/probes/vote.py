"""Majority votes of finished runs, from the predictions in their result files."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data import fingerprint
from torchcaps.probes.features import Missing
from torchcaps.runtime.environment import made_by, make_folder
from torchcaps.train.plain import unlike
from torchcaps.train.state import Options, Outcome, Predicted
from torchcaps.train.tasks import Evaluation

if TYPE_CHECKING:
    from torchcaps.probes.kinds import Vote


def majority(predictions: Int64[Tensor, "m n"]) -> Int64[Tensor, " n"]:
    """Return the class that most of m members predict; of classes with equally many votes, the earliest member's."""
    votes = (predictions.unsqueeze(0) == predictions.unsqueeze(1)).sum(1)  # [m n], for the class of each member
    return predictions.gather(0, votes.argmax(0, keepdim=True)).squeeze(0)


def voted(probe: Vote, seed: int, options: Options) -> Outcome:
    """Count the votes of the members of this seed on every part."""
    make_folder(options.out)
    began, device = time.perf_counter(), torch.device("cpu")
    first = seed * probe.n_members
    members = [_member(probe, number, options) for number in range(first, first + probe.n_members)]
    evaluations, labels, data = {}, {}, {}
    for name in probe.parts():
        part = probe.part(name, options.root, seed)
        labels[name], data[name] = part.labels, fingerprint(part)
        if any(member.data.get(name) != data[name] for member in members):
            raise ValueError(f"{probe.of} was tested on other {name} images than are here; give those with --data")
        said = majority(torch.stack([member.predictions[name].long() for member in members]))
        evaluations[name] = Evaluation(probe.score(said, part.labels), said.to(torch.uint8), said)
    maker = made_by(device)
    return Outcome(
        evaluations=evaluations,
        labels=labels,
        data=data,
        weights_sha256=hashlib.sha256("".join(member.weights_sha256 for member in members).encode()).hexdigest(),
        made_by=[maker],
        evaluated_by=maker,
        seconds=time.perf_counter() - began,
        peak_memory_bytes=0,
        extras={},
    )


def _member(probe: Vote, seed: int, options: Options) -> Predicted:
    found = options.predicted(probe.of, seed)
    if found is None or unlike(found.run, probe.network):
        raise Missing(
            f"a vote of {probe.n_members} needs the result of {probe.of} seed {seed}, and there is none of today's "
            f"run; `torchcaps reproduce {probe.of} --seeds {seed}` makes it"
        )
    return found
