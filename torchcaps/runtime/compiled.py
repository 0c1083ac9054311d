"""Folder of compiled programs, so that a second run starts without compiling.

PyTorch caches what torch.compile made, by graph, options and versions, in a temporary folder that a reboot or a fresh
container empties. Its key for an op of ours is the name alone, although the op's gradient is part of what is cached:
programs compiled before a change of that code would be taken for new ones. So the folder is the user's, and its name
holds a hash of the ops' code. Our own Triton kernels are cached by Triton itself, by source, in ~/.triton/cache.
"""

import hashlib
import os
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # PyTorch's own; one that the user has set is left alone
OPS = Path(__file__).parents[1] / "ops"


def keep_compiled(cache: Path) -> Path:
    """Tell PyTorch to keep compiled programs below `cache`; return the folder that it uses."""
    return Path(os.environ.setdefault(VARIABLE, str(cache / "compiled" / _code_hash(OPS))))


def _code_hash(folder: Path) -> str:
    """Hash all Python files below a folder, with their names."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]
