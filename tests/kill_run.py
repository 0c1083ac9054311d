"""Run by test_resume in a process of its own: trains a smoke recipe and kills itself with SIGKILL at a chosen moment.

Usage: kill_run.py OUT MOMENT NUMBER; MOMENT is never | inside | between | aside, NUMBER counts checkpoint writes from 1.
"""

import os
import signal
import sys
from pathlib import Path

from torchcaps import checkpoint
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train

out, moment, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
written = 0
write = checkpoint._write
replace = os.replace


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def counted_write(path, content) -> None:
    global written
    written += 1
    if written == number and moment == "inside":
        write(path, content[: len(content) // 2])
        die()
    write(path, content)
    if written == number and moment == "aside":
        die()  # whole, but not renamed yet


def counted_replace(source, target) -> None:
    replace(source, target)
    if written == number and moment == "between":
        die()


checkpoint._write = counted_write
checkpoint.os.replace = counted_replace
options = Options(out=out, log_every=2, save_every=3, progress=False)
train(RECIPES["smoke/capsnet"].make(), name="smoke/capsnet", seed=0, options=options)
