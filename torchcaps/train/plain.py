"""Runs as plain JSON: writing, migrating stored runs, comparing them with current ones.

Stored files are never rewritten. `MIGRATIONS` maps their kinds, fields, models and recipe names to the current names.
It is applied to every stored run, from a result file, a checkpoint or another commit.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class SameAs:
    """Placeholder for the value of another field of the same part."""

    field: str


@dataclass(frozen=True)
class Migrations:
    """Renamed names by their old name; removed fields with the only value (or `SameAs`) that can still be read."""

    kinds: Mapping[str, str]
    fields: Mapping[str, Mapping[str, str]]  # by current kind
    gone: Mapping[str, Mapping[str, Any]]  # by current kind
    models: Mapping[str, str]
    recipes: Mapping[str, str]


MIGRATIONS = Migrations(
    kinds={"Reading": "FrozenClassifier", "LearnNeurons": "LearnRBM"},
    fields={
        "Stage": {"rate": "learning_rate"},
        "Exponential": {"rate": "decay"},
    },
    gone={
        # persistent chains whose experts are all off are now always re-seeded; a run without that is a different run
        "LearnExperts": {"restart": SameAs("persistent")},
    },
    models={"neurons": "rbm"},
    recipes={},
)


def to_plain(value: Any) -> Any:
    """Convert a value to plain JSON data; a dataclass becomes a dict that names its kind."""
    if is_dataclass(value):
        return {"kind": type(value).__name__} | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    return [to_plain(part) for part in value] if isinstance(value, tuple | list) else value


def without_lists(value: Any) -> Any:
    """Turn lists into tuples, inside dicts and tuples too: what a run holds must not change."""
    if isinstance(value, dict):
        return {key: without_lists(part) for key, part in value.items()}
    return tuple(map(without_lists, value)) if type(value) in (tuple, list) else value


def from_plain(value: Any, kinds: Mapping[str, type]) -> Any:
    """Rebuild a value from migrated plain data. Lists become tuples, since a run is frozen."""
    if isinstance(value, list):
        return tuple(from_plain(part, kinds) for part in value)
    if not isinstance(value, dict):
        return value
    parts = {key: from_plain(part, kinds) for key, part in value.items() if key != "kind"}
    if "kind" not in value:
        return parts
    if value["kind"] not in kinds:
        raise ValueError(
            f"a stored run has a part {str(value['kind'])[:60]!r} that this version does not know; "
            "check out the version that wrote it"
        )
    kind = kinds[value["kind"]]
    # before the kind's own checks, which rely on the types
    if wrong := misfit(kind, parts):
        raise ValueError(f"a stored run has {kind.__name__}.{wrong}; use a file that torchcaps wrote")
    try:
        return kind(**parts)
    except TypeError as error:
        raise ValueError(
            f"a stored run has a setting that is gone ({error}); check out the version that wrote it"
        ) from error


def misfit(kind: Callable[..., Any], values: Mapping[str, Any]) -> str:
    """Describe the first value that has not the type of its field or argument; empty if all have."""
    for name, hint in _hints(kind).items():
        if name in values and not fits(values[name], hint):
            shown = repr(values[name])
            return f"{name} = {shown if len(shown) <= 60 else f'{shown[:57]}...'}, which is no {_words(hint)}"
    return ""


@cache
def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _words(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("torchcaps.", "")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file has the type of a field. A whole number fits float; bool and NaN are no numbers."""
    if hint is Any:
        return True
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool) and value == value
    origin, inner = _parts(hint)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is tuple:
        if not isinstance(value, tuple) or (inner[-1] is not Ellipsis and len(inner) != len(value)):
            return False
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return all(map(fits, value, hints))
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items()
        )
    return isinstance(value, origin or hint)


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def up_to_date(stored: Any) -> Any:
    """Migrate stored plain data to the current names."""
    if isinstance(stored, list):
        return [up_to_date(part) for part in stored]
    if not isinstance(stored, dict):
        return stored
    found = {key: up_to_date(part) for key, part in stored.items()}
    if "kind" not in found:
        return found
    for key in ("kind", "model"):
        if not isinstance(found.get(key, ""), str):
            raise ValueError(f"a stored run has {key} = {str(found[key])[:60]}, which is no name; use another file")
    kind = MIGRATIONS.kinds.get(found["kind"], found["kind"])
    renamed, gone = MIGRATIONS.fields.get(kind, {}), MIGRATIONS.gone.get(kind, {})
    readable = {key: found.get(value.field) if isinstance(value, SameAs) else value for key, value in gone.items()}
    kept = {renamed.get(key, key): part for key, part in found.items() if key not in readable or part != readable[key]}
    if "model" in kept:
        kept["model"] = MIGRATIONS.models.get(kept["model"], kept["model"])
    return nested(kept | {"kind": kind})


def nested(plain: dict[str, Any]) -> dict[str, Any]:
    """Move the run fields of an old FrozenClassifier or Attack into its `network`, where they are now."""
    if plain["kind"] not in ("FrozenClassifier", "Attack") or "network" in plain:
        return plain
    own = {key: plain[key] for key in OF_A_RUN if key in plain}
    return {key: part for key, part in plain.items() if key not in own} | {"network": {"kind": "Run"} | own}


OF_A_RUN = "data", "model", "model_args", "augment", "hold_out", "views", "tests", "stages", "keep_scores"


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """List the differences between two plain values as `path: this, that`."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [
            line for key in keys for line in differences(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line for n, pair in enumerate(zip(one, other, strict=True)) for line in differences(*pair, f"{where}[{n}]")
        ]
    return [] if one == other else [f"{where}: {one}, {other}"]


def unlike(stored: dict[str, Any], run: Any) -> list[str]:
    """List the differences between a stored and a current run. Fields newer than the stored run get their default."""
    return differences(_completed(up_to_date(stored), run), to_plain(run))


def _completed(stored: Any, like: Any) -> Any:
    """Fill stored plain data with defaults for newer fields, where its kinds match those of `like`."""
    if isinstance(stored, list) and isinstance(like, tuple | list) and len(stored) == len(like):
        return [_completed(*pair) for pair in zip(stored, like, strict=True)]
    if isinstance(stored, dict) and isinstance(like, dict):  # a model's arguments, some of which have fields
        return {key: _completed(part, like.get(key)) for key, part in stored.items()}
    if not is_dataclass(like) or not isinstance(stored, dict) or stored.get("kind") != type(like).__name__:
        return stored
    found = {key: _completed(part, getattr(like, key, None)) for key, part in stored.items()}
    return {f.name: to_plain(f.default) for f in fields(like) if f.default is not MISSING} | found
