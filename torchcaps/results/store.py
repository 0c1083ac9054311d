"""Reading and writing of result files, one JSON per finished run or probe."""

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.probes.kinds import Probe
from torchcaps.runtime.files import write_whole
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run
from torchcaps.train.state import Outcome

REPLAYED = 200  # first steps with all losses stored, for `torchcaps verify --replay`
CURVE_POINTS = 100
DEFAULT_SEEDS = "0,1,2"


def make_result(name: str, seed: int, run: Run | Probe, found: Outcome) -> dict[str, Any]:
    """Collect the metrics of a run and everything needed to verify them, as plain JSON."""
    return {
        "recipe": name,
        "seed": seed,
        "metrics": {split: part.metrics for split, part in found.evaluations.items()},
        "steps": found.steps,
        "planned_steps": found.planned,
        **({} if found.met is None else {"stopping_rule_met": found.met}),
        "seconds": round(found.seconds, 2),
        "peak_memory_bytes": found.peak_memory_bytes,
        "routing": found.routing,
        "diagnostics": rounded(found.diagnostics),
        "extras": rounded(found.extras),
        **found.made_by[-1],
        "dirty": any(maker["dirty"] for maker in [*found.made_by, found.evaluated_by]),
        "evaluated_by": found.evaluated_by,
        "begun_by": found.made_by[:-1],  # earlier makers, if the run was resumed elsewhere or by other code
        "run": to_plain(run),
        "data": {"name": str(run.data), **found.data},
        "curve": thin(found.curve),
        "weights_sha256": found.weights_sha256,
        "predictions": {split: pack(part.predictions) for split, part in found.evaluations.items()},
        **({"ensemble": _for_an_ensemble(found)} if run.keep_scores else {}),
    }


def _for_an_ensemble(found: Outcome) -> dict[str, Any]:
    """Pack scores (float16) and labels, which an ensemble of such runs needs."""
    return {
        split: {"scores": pack(part.answers.half().view(torch.uint8)), "labels": pack(found.labels[split])}
        for split, part in found.evaluations.items()
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result file atomically."""
    write_whole(path, (json.dumps(result, indent=1) + "\n").encode())


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file and check that it has the required keys."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a readable result file ({error}); `torchcaps train` and `reproduce` write them"
        ) from error
    missing = [key for key in ("recipe", "seed", "metrics", "run", "predictions", "data", "curve") if key not in result]
    if missing:
        raise ValueError(f"{path} is not a result file: it has no {', '.join(missing)}")
    return result


def result_path(folder: Path, name: str, seed: int) -> Path:
    """Return the path of the result file of a row and seed."""
    return folder / name / f"{seed}.json"


def pack(predictions: Tensor) -> dict[str, Any]:
    """Compress predictions to bytes and encode them as base64 text."""
    array = predictions.to(torch.uint8).cpu().numpy()
    return {"shape": list(array.shape), "zlib_base64": base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()}


def unpack(packed: Mapping[str, Any]) -> Tensor:
    """Decode predictions that `pack` encoded."""
    content = zlib.decompress(base64.b64decode(packed["zlib_base64"]))
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(packed["shape"]).copy())


def thin(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thin a curve: keep the first steps, every evaluation and evenly spaced points, to six digits."""
    later = [line for line in curve if line["step"] > REPLAYED and "loss" in line]
    kept = later[:: max(1, -(-len(later) // CURVE_POINTS))] + later[-1:]
    keep = {id(line) for line in kept} | {id(line) for line in curve if line["step"] <= REPLAYED or "loss" not in line}
    return [rounded(line) for line in curve if id(line) in keep]


def rounded(value: Any) -> Any:
    """Round the numbers of plain data to six digits."""
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
