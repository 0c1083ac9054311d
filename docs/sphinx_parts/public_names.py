"""Pages of names that nobody lists by hand: `<!-- names torchcaps.ops -->` stands for all that the module offers.

A module offers what its `__all__` says, or else what it defines itself, has no underscore and has a docstring. Names
that a package takes from its files stand under the name of the file, with that file's own docstring. A name that
another page describes too, as with those of `torchcaps` itself, gets a line and a link.
`<!-- names torchcaps.layers first capsules primary -->` puts these files first, in the order in which they are best
learnt; the others follow by name.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

MARKED = re.compile(r"<!-- names (?P<module>[\w.]+)(?: first(?P<first>( [\w.]+)+))? -->")


def offered(module: ModuleType) -> list[str]:
    """List the public names of a module, in the order in which they are defined where that is known."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, thing in vars(module).items() if not name.startswith("_") and _own(module, thing)]


def marked(folder: Path) -> tuple[str, ...]:
    """List the modules that the pages of a folder describe."""
    return tuple(found["module"] for page in sorted(folder.glob("*.md")) for found in MARKED.finditer(page.read_text()))


@cache
def told_by(modules: tuple[str, ...]) -> dict[int, str]:
    """Map the identity of each object to its full name in the module deepest in the package."""
    found = [
        (name.count("."), f"{name}.{each}", getattr(import_module(name), each))
        for name in modules
        for each in _offered(name)
    ]
    return {id(thing): whole for _, whole, thing in sorted(found, key=lambda entry: entry[:2])}


def filled(text: str, modules: tuple[str, ...]) -> str:
    """Write out every marked module of a page, as MyST. `modules`: all that are marked on some page."""
    return MARKED.sub(
        lambda found: "\n".join(
            written(import_module(found["module"]), told_by(modules), (found["first"] or "").split())
        ),
        text,
    )


def written(module: ModuleType, told: dict[int, str], first: Sequence[str] = ()) -> Iterator[str]:
    """Yield links to names described elsewhere, then the sections of a package or the names of a single file.

    `first`: files of the package whose names come first, in this order.
    """
    here = {name: f"{module.__name__}.{name}" for name in offered(module)}
    homes = {f"{_home(module, name)}." for name in here}
    if unknown := [each for each in first if not any(home.startswith(f"{module.__name__}.{each}.") for home in homes)]:
        raise ValueError(f"{module.__name__} offers nothing of {', '.join(unknown)}, which its page puts first")
    elsewhere = [name for name, whole in here.items() if told[id(getattr(module, name))] != whole]
    if first:
        elsewhere.sort(key=lambda name: _place(module, name, first))
    if elsewhere:
        yield "| name | what it is |\n|---|---|"
        yield from (
            f"| {{py:obj}}`{name} <{told[id(getattr(module, name))]}>` | {_summary(getattr(module, name))} |"
            for name in elsewhere
        )
        yield ""
    names = sorted((name for name in here if name not in elsewhere), key=lambda name: _place(module, name, first))
    for home, group in groupby(names, key=lambda name: _home(module, name)):
        if home != module.__name__:
            yield f"## {home.removeprefix(module.__name__ + '.')}\n"
        if not elsewhere:
            yield from _rst(f".. automodule:: {home}", "   :no-members:", "   :no-index:")
        for name in group:
            yield from _rst(*_directive(module, name))


def _offered(module: str) -> list[str]:
    return offered(import_module(module))


def _summary(thing: Any) -> str:
    first = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
    return first.replace("|", "\\|").replace("[*", "[\\*").replace("<", "&lt;")


def _place(module: ModuleType, name: str, first: Sequence[str]) -> tuple[int, str, int, str]:
    home = _home(module, name)
    named = [number for number, each in enumerate(first) if f"{home}.".startswith(f"{module.__name__}.{each}.")]
    # a name that belongs to no file has no heading of its own: it stands before the first one
    taught = -1 if home == module.__name__ else min(named, default=len(first))
    return taught, home, _line(getattr(module, name)), name


def _own(module: ModuleType, thing: Any) -> bool:
    defined = inspect.isclass(thing) or inspect.isroutine(thing)
    return defined and thing.__module__ == module.__name__ and bool(thing.__doc__)


def _home(module: ModuleType, name: str) -> str:
    """Name the module that defines it, if that is within the package; tables and the like belong to the package."""
    home = getattr(getattr(module, name), "__module__", None) or module.__name__
    return home if home.startswith(module.__name__ + ".") else module.__name__


def _line(thing: Any) -> int:
    try:
        return inspect.getsourcelines(inspect.unwrap(thing))[1]
    except (TypeError, OSError):
        return 0


def _directive(module: ModuleType, name: str) -> list[str]:
    thing = getattr(module, name)
    if inspect.isclass(thing):
        return [f".. autoclass:: {module.__name__}.{name}", "   :members:"]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {module.__name__}.{name}"]
    keys = ", ".join(f"``{key}``" for key in thing) if isinstance(thing, dict) else ""
    # a path is written from the package on, independent of the machine
    said = (
        thing.relative_to(_root(module))
        if isinstance(thing, Path) and thing.is_relative_to(_root(module))
        else repr(thing)
    )
    about = f"Keys: {keys}" if keys else f"``{said}``"
    return [f".. py:currentmodule:: {module.__name__}", "", f".. py:data:: {name}", "", f"   {about}"]


def _root(module: ModuleType) -> Path:
    """The folder that the package lies in."""
    return Path(import_module(module.__name__.split(".")[0]).__file__).parent.parent


def _rst(*lines: str) -> list[str]:
    return ["```{eval-rst}", *lines, "```", ""]


def _read(app: Any, docname: str, content: list[str]) -> None:
    content[0] = filled(content[0], marked(Path(app.srcdir) / "api"))


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
