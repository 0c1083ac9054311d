"""Folder of compiled programs, so that a second run starts without compiling.

PyTorch caches what torch.compile made, by graph, options and versions, in a temporary folder that a reboot or a fresh
container empties. Its key for an op of ours is the name alone, although the op's gradient is part of what is cached:
programs compiled before a change of that code would be taken for new ones. So the folder is the user's, and its name
holds a hash of the code of ops and gradients. Our own Triton kernels are cached by Triton itself, by source, in
~/.triton/cache.

PyTorch runs the programs that it finds there: only a folder that nobody else can write to will do.
"""

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torchcaps.runtime.files import COMPILED

UNUSED_S = 30 * 86_400  # programs of other code that have not been used for so long are removed
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # PyTorch's own; one that the user has set is left alone
# what a compiled program calls around a region of autocast; the values would tell versions apart
AUTOCAST = {f"torch.amp.autocast_mode.{name}": "1" for name in ("_enter_autocast", "_exit_autocast")}
# where gradients of code that is compiled are written by hand
CODE = (Path(__file__).parents[1] / "ops", Path(__file__).with_name("distributed.py"))


def keep_compiled(cache: Path, say: Callable[[str], object]) -> Path | None:
    """Tell PyTorch to keep compiled programs below `cache`; return the folder that it uses, None for its own choice."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    home = cache / COMPILED
    folder = home / _code_hash(*CODE)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
        if not (reason := _invites_others(home)):
            folder.mkdir(exist_ok=True)
            os.utime(folder)  # programs that are only read leave no trace
    except OSError as error:
        reason = f"it cannot be written ({error.strerror}); set TORCHCAPS_CACHE to a folder of yours"
    if reason:
        say(f"compiled programs are not kept in {home}: {reason}")
        return None
    _remove_unused(home, folder)
    os.environ[VARIABLE] = str(folder)
    _keep_own_gradients()
    return folder


def _keep_own_gradients() -> None:
    """Let PyTorch keep programs with gradients by hand too: it does not hash their code, the folder's name does."""
    from torch._functorch import config

    with suppress(AttributeError):  # a setting without promise
        config.autograd_cache_allow_custom_autograd_functions = True


def keep_autocast() -> None:
    """Let PyTorch keep programs with regions of autocast: their dtype and state are constants in its key.

    Otherwise every process traces their gradients anew. Call it just before compiling: the import takes a second.
    """
    from torch._inductor import config

    with suppress(AttributeError):  # a setting without promise
        config.unsafe_marked_cacheable_functions = {**config.unsafe_marked_cacheable_functions, **AUTOCAST}


def _invites_others(folder: Path) -> str | None:
    """Say why programs in this folder may be somebody else's, or None."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"it is a link; remove it, or set {VARIABLE}"
    if found.st_uid != os.getuid():
        return f"it is another user's, who could put programs there; set TORCHCAPS_CACHE or {VARIABLE}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write to it, and could put programs there; remove it, and it is made anew"
    return None


def _remove_unused(home: Path, folder: Path) -> None:
    """Remove the programs of other code that nobody has used for long."""
    for other in home.iterdir():
        with suppress(FileNotFoundError):  # another process does the same
            if other != folder and time.time() - other.lstat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)


def _code_hash(*places: Path) -> str:
    """Hash Python files, and all below a folder, with their names."""
    total = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            total.update(str(path.relative_to(place.parent)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]
