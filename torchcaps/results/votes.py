"""Verification of majority votes: count them again from the result files of their members."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchcaps.probes.kinds import Vote
from torchcaps.probes.vote import majority
from torchcaps.results.replay import Check
from torchcaps.results.store import predicted, result_path, unpack


def check_vote(result: Mapping[str, Any], vote: Vote, folder: Path) -> Check:
    """Compare the stored predictions and hash with those of the members whose result files lie in the folder."""
    first = result["seed"] * vote.n_members
    seeds = range(first, first + vote.n_members)
    members = [predicted(result_path(folder, vote.of, seed)) for seed in seeds]
    if missing := [seed for seed, member in zip(seeds, members, strict=True) if member is None]:
        return Check("vote", False, f"no result of {vote.of} seed {', '.join(map(str, missing))}")
    wrong = []
    for part, packed in result["predictions"].items():
        counted = majority(torch.stack([member.predictions[part].long() for member in members]))
        if not torch.equal(counted, unpack(packed).long()):
            wrong.append(f"predictions of {part}")
    joint = hashlib.sha256("".join(member.weights_sha256 for member in members).encode()).hexdigest()
    wrong += ["weights_sha256"] if joint != result["weights_sha256"] else []
    text = f"differs: {', '.join(wrong)}" if wrong else f"follows from {vote.n_members} results of {vote.of}"
    return Check("vote", not wrong, text)
