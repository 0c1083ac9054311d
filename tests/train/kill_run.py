"""Run by test_resume in a process of its own: trains a smoke recipe, each time until SIGKILL at a chosen moment.

Usage: kill_run.py OUT MOMENT-NUMBER ...; MOMENT is inside | between | aside, NUMBER counts checkpoint writes from 1.
Each trains in a child
of its own, in OUT/MOMENT-NUMBER: a new process would import everything again, which takes longer than the run.
"""

import os
import signal
import sys
from pathlib import Path

import torch._inductor  # noqa: F401 - training imports it: once here, and not in every child

from torchcaps.papers import RECIPES
from torchcaps.runtime import metrics_log
from torchcaps.train import Options, checkpoint, train

metrics_log.find_spec = lambda name: None  # TensorBoard takes longer to import than all of this

written, in_checkpoint = 0, False
write_whole, fsync, replace = checkpoint.write_whole, os.fsync, os.replace


def trained_until(moment: str, number: int, out: Path) -> None:
    def die_if(now: str) -> None:
        if in_checkpoint and written == number and moment == now:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_write(path, content):
        global written, in_checkpoint
        written, in_checkpoint = written + 1, True
        write_whole(path, content)
        in_checkpoint = False

    def cut_short(file) -> None:
        if moment == "inside" and in_checkpoint and written == number:
            os.ftruncate(file, os.fstat(file).st_size // 2)
        die_if("inside")
        fsync(file)

    def noted_replace(source, target) -> None:
        die_if("aside")  # whole, but not renamed yet
        replace(source, target)
        die_if("between")

    checkpoint.write_whole, os.fsync, os.replace = counted_write, cut_short, noted_replace
    options = Options(out=out, log_every=2, save_every=3, progress=False)
    train(RECIPES["smoke/capsnet"].make(), name="smoke/capsnet", seed=0, options=options)


for case in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        moment, number = case.split("-")
        trained_until(moment, int(number), Path(sys.argv[1]) / case)
        os._exit(0)  # it was to be killed
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{case} ended by itself: {status}"
