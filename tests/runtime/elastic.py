"""Run by test_processes under torchrun: `torchcaps` itself, which saves often; before any restart steps are slow enough
to be killed in.
"""

import os
import time
from functools import partial

from torchcaps import cli
from torchcaps.train.step import TrainingStep

step = TrainingStep.__call__


def slow_step(self) -> None:
    time.sleep(0.1 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
    step(self)


TrainingStep.__call__ = slow_step
cli.training.Options = partial(cli.training.Options, save_every=4)
cli.main()
