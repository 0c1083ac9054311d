"""Runs that differ from another run in a few fields: rows of a table and tuned hyperparameters.

A field is named by its path from the run: `stages.1.task.sparse`, `model_args.n_iters`, `augment.0.pixels`.
The last name is enough where only one part of the run has it: `learning_rate`, `n_iters`, `hold_out`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from torchcaps.data import info
from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.train.recipe import KINDS, Run


def vary(run: Run, changes: Mapping[str, Any]) -> Run:
    """Return the run with these fields set; an unknown field is an error."""
    for name, value in changes.items():
        path = _path(run, name).split(".")
        _check(name, _get(run, path), value)
        run = _set(run, path, value)
    return run


def _check(name: str, before: Any, value: Any) -> None:
    """Refuse a word for a number and a number for a word, which would fail only in training."""
    words = [isinstance(each, str) for each in (before, value)]
    if isinstance(before, bool | int | float | str) and words[0] != words[1] and value is not None:
        raise ValueError(f"{name} is {before!r} here; wanted a {type(before).__name__}, got {value!r}")


def value_of(run: Run, name: str) -> Any:
    """Return the value of a field; None for a model argument that is left to its default."""
    return _get(run, _path(run, name).split("."))


def _get(part: Any, path: list[str]) -> Any:
    for step in path:
        part = (
            part[int(step)]
            if isinstance(part, tuple)
            else part.get(step)
            if isinstance(part, dict)
            else getattr(part, step)
        )
    return part


def parsed(text: str) -> Any:
    """Parse a typed value: a number, a tuple, True, None or `Cosine(warmup=0.05)`; anything else stays a string."""
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except _BadValue as error:
        raise ValueError(f"{text.strip()}: {error}") from error
    except (SyntaxError, ValueError):
        return text.strip()


class _BadValue(Exception):
    """A known kind with arguments that it does not take."""


def _evaluated(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
        named = {word.arg: _evaluated(word.value) for word in node.keywords}
        try:
            return KINDS[node.func.id](*map(_evaluated, node.args), **named)
        except TypeError as error:
            raise _BadValue(str(error)) from error
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(map(_evaluated, node.elts))
    return ast.literal_eval(node)


def _set(part: Any, path: list[str], value: Any) -> Any:
    """Copy `part` with the value set at the end of the path."""
    if not path:
        return value
    step, *rest = path
    if isinstance(part, tuple):
        number = int(step)
        return (*part[:number], _set(part[number], rest, value), *part[number + 1 :])
    if isinstance(part, dict):
        return part | {step: _set(part.get(step), rest, value)}
    return replace(part, **{step: _set(getattr(part, step), rest, value)})


def _path(run: Run, name: str) -> str:
    known = _fields(run)
    if name in known:
        return name
    found = [path for path in known if path.rsplit(".", 1)[-1] == name]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise ValueError(f"{name!r} may be {', '.join(found)}; give the whole path")
    near = get_close_matches(name, [*known, *(path.rsplit(".", 1)[-1] for path in known)], n=3)
    raise ValueError(
        f"this run has no field {name!r}; "
        + (f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}")
    )


def _fields(run: Run) -> list[str]:
    """List the paths of all fields that can be set, including model arguments left to their defaults."""
    models = SENTENCE_MODELS if info(run.data).kind == "sentences" else MODELS
    return list(dict.fromkeys([*_below(run), *(f"model_args.{word}" for word in _optional(models[run.model]))]))


@cache
def _optional(model: type) -> tuple[str, ...]:
    """List the arguments of a model that may be left out."""
    arguments = inspect.signature(model).parameters.values()
    return tuple(word.name for word in arguments if word.kind is word.KEYWORD_ONLY or word.default is not word.empty)


def _below(part: Any, where: str = "") -> list[str]:
    if isinstance(part, tuple):
        inside = {str(number): item for number, item in enumerate(part)}
    elif is_dataclass(part):
        inside = {field.name: getattr(part, field.name) for field in fields(part)}
    else:
        inside = part if isinstance(part, dict) and where == "model_args" else {}
    found = []
    for name, item in inside.items():
        path = f"{where}.{name}".lstrip(".")
        found += [path, *(_below(item, path) if where != "model_args" else [])]
    return found
