"""Turn docstrings, plain text with `code`, into reStructuredText, to which `[*b i d]` is half an emphasis."""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

ITEM = re.compile(r"(- |\d+\. )")
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
FIELD = re.compile(r"    (\w+): .*?  # (?!noqa)(.+)")


def as_rst(lines: list[str]) -> list[str]:
    """Convert to sphinx: code links to the names it knows, indented blocks are code, and the rest is literal."""
    made: list[str] = []
    for indented, block in _blocks(lines):
        made += ["::", "", *(f"    {line}" for line in block)] if indented else _paragraphs(block)
        made.append("")
    return made


def fields_of(kind: type) -> list[str]:
    """List the fields of a NamedTuple or a dataclass with the comments behind them."""
    if not (hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__")):
        return []
    body = inspect.getsource(kind).splitlines()
    return [f"- `{found[1]}`: {found[2]}" for line in body if (found := FIELD.fullmatch(line))]


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Split at empty lines; indented blocks that follow each other are one."""
    parts = [list(part) for full, part in groupby(lines, key=lambda line: bool(line.strip())) if full]
    for indented, group in groupby(parts, key=lambda part: all(line.startswith("    ") for line in part)):
        if not indented:
            yield from ((False, part) for part in group)
            continue
        joined = [line for part in group for line in (*part, "")]
        yield True, joined[:-1]


def _paragraphs(block: list[str]) -> Iterator[str]:
    in_list = False
    for number, line in enumerate(block):
        starts = bool(ITEM.match(line))
        if starts and not in_list and number:
            yield ""  # a list begins after an empty line
        in_list = in_list or starts
        # an indentation that is no item's would be a quotation
        yield _inline(line if in_list else line.strip())


def _inline(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(_code(part[1:-1]) if part.startswith("`") and len(part) > 2 else _literal(part) for part in parts)


def _code(text: str) -> str:
    return f"\\ :py:obj:`{text}`\\ " if NAME.fullmatch(text) else f"\\ ``{text}``\\ "


def _literal(text: str) -> str:
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    more = fields_of(thing) if what == "class" else []
    behind = lines.index("Example:") if "Example:" in lines else len(lines)
    lines[:] = as_rst([*lines[:behind], "", *more, "", *lines[behind:]])


def readable(signature: str) -> str:
    """Name a default that has no literal: one that sphinx cannot parse leaves the types of all arguments raw."""
    return re.sub(r"<function (\w+)>", r"\1", signature).replace("<factory>", "...")


def is_left_out(thing: Any) -> bool:
    """Leave out fields, which the signature and comments describe, and methods inherited from elsewhere."""
    alias = str(getattr(thing, "__doc__", "")).startswith("Alias for field number")  # of a NamedTuple
    default = inspect.isfunction(thing) and "." not in thing.__qualname__  # of a dataclass
    foreign = inspect.isroutine(thing) and not str(thing.__module__).startswith("torchcaps")
    return alias or default or foreign


def _sign(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    return readable(signature) if signature else signature, returns


def _skip(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    return True if is_left_out(thing) else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
