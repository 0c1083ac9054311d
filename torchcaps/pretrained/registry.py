"""Which trained models there are: `registry.json` beside their files, which `torchcaps release` writes and nobody types."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchcaps.runtime.files import write_whole

FOLDER = Path(__file__).parent / "weights"
TABLE = "registry.json"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One trained model. Beside `file` lie its result file (.json) and its card (.md)."""

    about: str  # what it is, in a line
    file: str
    sha256: str  # of the file's bytes
    bytes: int
    recipe: str
    seed: int
    commit: str  # of the code that trained it
    dirty: bool  # whether that code had changes that were not committed
    model: str
    n_parameters: int
    numbers: dict[str, int]  # how many of each kind the file holds, bfloat16 and float32 say
    without: tuple[str, ...]  # parts of the trained model that were left out
    licence: str
    metrics: dict[str, dict[str, float]]  # part -> name -> number, by the weights as trained
    measured: dict[str, dict[str, float]]  # the same by the weights in the file, where the data were there
    changed: dict[str, int]  # part -> answers in which the two differ
    unmeasured: dict[str, str]  # part -> why not


def entries(folder: Path = FOLDER) -> dict[str, Entry]:
    """All that the folder holds, by name."""
    path = folder / TABLE
    if not path.exists():
        return {}
    return {name: Entry(**{**plain, "without": tuple(plain["without"])}) for name, plain in json.loads(path.read_text()).items()}


def add(name: str, made: Entry, folder: Path = FOLDER) -> Path:
    """Write it into the table, in the place of an earlier one of that name."""
    table: dict[str, Any] = {key: asdict(value) for key, value in (entries(folder) | {name: made}).items()}
    return write_whole(folder / TABLE, (json.dumps(dict(sorted(table.items())), indent=1) + "\n").encode())


def entry(name: str, folder: Path = FOLDER) -> Entry:
    known = entries(folder)
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise ValueError(f"no trained model {name!r}; {there} (`torchcaps pretrained` says more), or give the path of a checkpoint")
    return known[name]


def file_of(name: str, folder: Path = FOLDER) -> Path:
    """Where its weights lie, once their hash is found right."""
    wanted, path = entry(name, folder), folder / entry(name, folder).file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the weights of {name} cannot be read ({error.strerror}: {path}); install torchcaps again") from error
    if (found := hashlib.sha256(content).hexdigest()) != wanted.sha256:
        raise ValueError(
            f"the weights of {name} are not those that were released: wanted {wanted.bytes:,} bytes of sha256 {wanted.sha256}, "
            f"{path} has {len(content):,} of {found}; install torchcaps again, or fetch that file anew"
        )
    return path
