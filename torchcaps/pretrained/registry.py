"""Registry of pretrained models: `registry.json` beside their files, written by `torchcaps release`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchcaps.runtime.files import write_whole

FOLDER = Path(__file__).parent / "weights"
TABLE = "registry.json"
SHIPPED_BYTES = 3_000_000  # largest weights file in the wheel; pyproject.toml leaves out the others by name


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Registry entry of one pretrained model. Its result file (.json) and card (.md) are beside `file`.

    Example:

        entry("capsnet-mnist-small").model, entry("capsnet-mnist-small").n_parameters  # ('capsnet', 1298032)
    """

    about: str  # one-line description
    file: str
    sha256: str  # hash of the file's bytes
    bytes: int
    recipe: str
    seed: int
    commit: str  # commit of the code that trained it
    dirty: bool  # whether that code had uncommitted changes
    model: str
    n_parameters: int
    numbers: dict[str, int]  # number of values by dtype, such as bfloat16 and float32
    without: tuple[str, ...]  # parts of the trained model that are left out
    licence: str
    metrics: dict[str, dict[str, float]]  # part -> metric -> value, with the weights as trained
    measured: dict[str, dict[str, float]]  # the same with the weights in the file, if the data were available
    changed: dict[str, int]  # part -> number of predictions that differ between the two
    unmeasured: dict[str, str]  # part -> reason

    @property
    def ships(self) -> bool:
        """Whether the weights come with the installed package."""
        return self.bytes <= SHIPPED_BYTES


def entries(folder: Path = FOLDER) -> dict[str, Entry]:
    """Read all entries of a folder, by name."""
    path = folder / TABLE
    if not path.exists():
        return {}
    return {
        name: Entry(**{**plain, "without": tuple(plain["without"])})
        for name, plain in json.loads(path.read_text()).items()
    }


def add(name: str, made: Entry, folder: Path = FOLDER) -> Path:
    """Write an entry to the registry, replacing an earlier one of that name."""
    table: dict[str, Any] = {key: asdict(value) for key, value in (entries(folder) | {name: made}).items()}
    return write_whole(folder / TABLE, (json.dumps(dict(sorted(table.items())), indent=1) + "\n").encode())


def entry(name: str, folder: Path = FOLDER) -> Entry:
    """Return the entry of that name, or raise an error that lists the known names."""
    known = entries(folder)
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise ValueError(
            f"no trained model {name!r}; {there} (`torchcaps pretrained` says more), or give the path of a checkpoint"
        )
    return known[name]
