"""Reading and writing of result files, one JSON per finished run or probe."""

import base64
import json
import math
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.probes.kinds import Probe
from torchcaps.runtime.files import write_whole
from torchcaps.train.plain import fits, to_plain
from torchcaps.train.recipe import Run
from torchcaps.train.state import Outcome, Predicted

REPLAYED = 200  # first steps with all losses stored, for `torchcaps verify --replay`
CURVE_POINTS = 100
DEFAULT_SEEDS = "0,1,2"
MOST_BYTES = 1 << 28  # limit for predictions or scores of one part; ten million pairs have 20 MB
REQUIRED = "recipe", "seed", "metrics", "run", "predictions", "data", "curve"
TYPES: dict[str, Any] = {
    "recipe": str,
    "seed": int,
    "metrics": dict[str, dict[str, float]],
    "run": dict[str, Any],
    "predictions": dict[str, dict[str, Any]],
    "data": dict[str, str],
    "curve": tuple[dict[str, Any], ...],
    "steps": int,
    "planned_steps": int,
    "stopping_rule_met": bool,
    "seconds": float,
    "phases": dict[str, float],
    "date": str,
    "extras": dict[str, Any],
    "dirty": bool,
    "begun_by": tuple[dict[str, Any], ...],
    "evaluated_by": dict[str, Any],
    "ensemble": dict[str, dict[str, dict[str, Any]]],
    "weights_sha256": str,
}


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
        **({"phases": rounded(found.phases)} if "training" in found.phases else {}),
        "date": datetime.now(UTC).date().isoformat(),
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
    """Read a result file; check that it has the required keys and that their values have the right types."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a readable result file ({error}); `torchcaps train` and `reproduce` write them"
        ) from error
    if not isinstance(result, dict):
        raise ValueError(f"{path} is not a result file: it holds a {type(result).__name__}, not an object")
    missing = [key for key in REQUIRED if key not in result]
    if missing:
        raise ValueError(f"{path} is not a result file: it has no {', '.join(missing)}")
    wrong = [key for key, hint in TYPES.items() if key in result and not fits(_frozen(result[key]), hint)]
    if not wrong and not all(_is_line(line) for line in result["curve"]):
        wrong = ["curve"]
    if wrong:
        raise ValueError(f"{path} is not a result file: {', '.join(wrong)} has another type than torchcaps writes")
    return result


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_line(line: Mapping[str, Any]) -> bool:
    """Whether a line of the curve has a step, and a number as its loss if it has one."""
    return fits(line.get("step"), int) and fits(line.get("loss", 0.0), float)


def predicted(path: Path) -> Predicted | None:
    """Read the predictions of a result file; None where there is no file."""
    if not path.exists():
        return None
    found = read_result(path)
    predictions = {part: unpack(packed) for part, packed in found["predictions"].items()}
    return Predicted(found["run"], found["data"], found.get("weights_sha256", ""), predictions)


def result_path(folder: Path, name: str, seed: int) -> Path:
    """Return the path of the result file of a row and seed."""
    return folder / name / f"{seed}.json"


def pack(predictions: Tensor) -> dict[str, Any]:
    """Compress predictions to bytes and encode them as base64 text."""
    array = predictions.to(torch.uint8).cpu().numpy()
    return {"shape": list(array.shape), "zlib_base64": base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()}


def unpack(packed: Mapping[str, Any], most: int = MOST_BYTES) -> Tensor:
    """Decode what `pack` encoded. Its declared shape, of at most so many bytes, bounds the memory."""
    shape, text = packed.get("shape"), packed.get("zlib_base64")
    sizes = isinstance(shape, list) and all(fits(size, int) and size >= 0 for size in shape)
    if not sizes or not isinstance(text, str) or math.prod(shape) > most:
        raise ValueError(f"packed predictions have a shape of at most {most:,} bytes and a text, got {str(shape)[:60]}")
    wanted, decoder = math.prod(shape), zlib.decompressobj()
    try:
        # one byte more than wanted: enough to see that there are too many
        content = decoder.decompress(base64.b64decode(text), wanted + 1)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"packed predictions cannot be decoded ({error})") from error
    if len(content) != wanted or not decoder.eof:
        raise ValueError(f"packed predictions do not have the {wanted:,} bytes of their shape {shape}")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(shape).copy())


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
