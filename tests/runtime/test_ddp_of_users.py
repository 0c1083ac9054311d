"""PyTorch's DistributedDataParallel around our modules, in a loop of one's own, as docs/faq.md tells it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import free_port

SCRIPT = """
import sys
import torch
from torch import distributed
from torch.nn.functional import one_hot
from torch.nn.parallel import DistributedDataParallel
from torchcaps import LOSSES, CapsNet

routing, decoder, flag = sys.argv[1], sys.argv[2] == "decoder", sys.argv[3] == "flag"
distributed.init_process_group("gloo")
torch.manual_seed(0)
small = dict(channels=8, kernel=5, n_types=4, primary_kernel=5, hidden=(16, 16))
ddp = DistributedDataParallel(
    CapsNet((1, 16, 16), 10, routing=routing, reconstruction=decoder, **small), find_unused_parameters=flag
)
images, labels = torch.rand(4, 1, 16, 16), torch.arange(4)
for _ in range(3):
    capsules = ddp(images)
    loss = LOSSES[ddp.module.routing.loss](capsules, one_hot(labels, 10).float()).mean()
    if decoder:
        loss = loss + 5e-4 * (ddp.module.reconstruct(capsules.poses, labels) - images).square().sum()
    ddp.zero_grad()
    loss.backward()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, works",
    [
        ("dynamic decoder without", True),
        ("dynamic alone without", True),
        ("self-routing alone flag", True),
        ("self-routing decoder without", True),
        ("self-routing alone without", False),
        ("self-routing decoder flag", False),
    ],
)
def test_every_weight_gets_a_gradient_where_the_page_says_so(words, works, tmp_path):
    (tmp_path / "loop.py").write_text(SCRIPT)
    home = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    home |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "loop.py"), *words.split()],
            env=os.environ | home | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=100)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert all((process.returncode == 0) == works for process in both), said
    assert works or "Expected to" in said[0]
