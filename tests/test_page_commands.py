"""Blocks of commands on the pages, typed as they stand there: own images, releases, several processes and machines,
make.
"""

import os
import subprocess
import sys

import pytest
import torch
from commands import free_port
from test_pages import HOME, PAGES, SHELLS, blocks_of, commands

from torchcaps.data.sets.generated import generate
from torchcaps.play.web import RUNTIME
from torchcaps.results.store import read_result

Image = pytest.importorskip("PIL.Image", reason="pip install 'torchcaps[experiments]'")
pytest.importorskip("onnxruntime", reason="pip install 'torchcaps[export]'")
pytest.importorskip("starlette", reason="pip install 'torchcaps[play]'")


def shell_blocks(name: str) -> list[str]:
    return [block.code for block in blocks_of((HOME / name).read_text()) if block.language in SHELLS]


def test_every_block_of_commands_is_run_by_a_test_of_this_file():
    """But for those of papers, which take hours: test_pages.py parses them."""
    guides = [page for page in PAGES if page.parent.name != "papers"]
    found = {str(page.relative_to(HOME)): len(shell_blocks(page)) for page in guides if shell_blocks(page)}
    assert found == {
        "README.md": 1,
        "docs/own-data.md": 2,
        "docs/pretrained.md": 1,
        "docs/several-machines.md": 5,
        "docs/start.md": 1,
    }


# programs that a cluster has; the two machines of its job are both this one
PROGRAMS = {
    "torchcaps": f'exec "{sys.executable}" -m torchcaps "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    "scontrol": "echo 127.0.0.1",
    "sbatch": 'while [ "${1#--}" != "$1" ]; do shift 2; done; exec bash "$@"',  # options, then the script
    "srun": '"$@" & first=$!; "$@"; second=$?; wait $first && exit $second',
}


@pytest.fixture
def typed(tmp_path):
    """Types a block into a shell in an empty folder, after some words are replaced; what it says comes back."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, line in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": str(os.getpid()),  # makes the port
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    paths = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}

    def type_it(block: str, **replaced: str) -> str:
        for old, new in replaced.items():
            assert old in block, f"the page says {old} no more"
            block = block.replace(old, new)
        command = ["bash", "-e", "-c", block]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | paths | slurm, text=True, capture_output=True, timeout=280
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return type_it


# a row of the paper wants its data and an hour; one of seconds takes the same way
SMALL = {"sabour2017/mnist-r3-recon": "smoke/capsnet"}


@pytest.mark.slow
def test_a_run_is_trained_and_released_as_the_page_says(typed, tmp_path):
    (block,) = shell_blocks("docs/pretrained.md")
    said = typed(
        block,
        **{"sabour2017/mnist-r3-recon-64": "smoke/capsnet", "--without-decoder": "--without-decoder --folder here"},
    )
    assert "\ncapsnet-mnist\n" in said and "left out: the decoder" in " ".join(said.split())
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        "capsnet-mnist.safetensors", "capsnet-mnist.json", "capsnet-mnist.md", "registry.json",
    }  # fmt: skip


@pytest.mark.slow
def test_a_sweep_runs_as_the_page_says(typed, tmp_path):
    typed(shell_blocks("docs/several-machines.md")[0], sabour2017="digits --quick", **{"0,1,2": "0,1"})
    assert len(list(tmp_path.rglob("checkpoint.safetensors"))) == 4  # two rows, two seeds


@pytest.mark.slow
def test_one_machine_runs_as_the_page_says(typed, tmp_path):
    typed(shell_blocks("docs/several-machines.md")[1], **SMALL, **{"torchrun": f"torchrun --master-port {free_port()}"})
    assert read_result(tmp_path / "runs/smoke/capsnet/0/result.json")["processes"] == 2


@pytest.mark.slow
def test_two_machines_run_as_the_page_says(typed, tmp_path):
    """The same command on both, one process each."""
    block = shell_blocks("docs/several-machines.md")[2]
    words = SMALL | {
        "node 8": "node 1",
        "head:29500": f"127.0.0.1:{free_port()}",
        "/shared/mnist": str(tmp_path / "shared"),
    }
    typed("srun " + block, **words)
    assert read_result(tmp_path / "shared/result.json")["processes"] == 2


@pytest.mark.slow
def test_a_job_of_slurm_runs_as_the_page_says(typed, tmp_path):
    """With programs that stand for Slurm's: each of its two machines is a process here."""
    block = shell_blocks("docs/several-machines.md")[3]
    typed(block, **SMALL, **{"examples/": f"{HOME}/examples/"})
    assert read_result(tmp_path / "runs/smoke/capsnet/result.json")["processes"] == 2


@pytest.mark.slow
def test_ray_runs_as_the_page_says(typed, tmp_path):
    pytest.importorskip("ray", reason="pip install 'ray[train]'")
    block = shell_blocks("docs/several-machines.md")[4]
    words = {"examples/": f"{HOME}/examples/", "/shared/runs/mnist": str(tmp_path / "shared")}
    words |= {"python ": f"{sys.executable} ", "--workers 4": "--workers 2 --device cpu"}
    typed(block, **SMALL, **words)
    assert read_result(tmp_path / "shared/result.json")["processes"] == 2


def test_make_starts_what_the_pages_say(tmp_path):
    """With programs that only say how they were called: the demonstration, the playground and the tests have tests of
    their own.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("torchcaps", "python"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (programs / name).chmod(0o755)
    wanted = {"demo": "torchcaps demo", "play": "torchcaps play", "test": "python -m pytest -q"}
    lines = [
        line for page in ("README.md", "docs/start.md") for block in shell_blocks(page) for line in block.splitlines()
    ]
    assert {line.split()[1] for line in lines} == {*wanted}
    for line in lines:
        make, target, *_ = line.split()
        assert make == "make"
        # the environment is taken for made; bash, for the comment behind the command
        command = line.replace("make ", f"make -s -o .venv/done -o .venv/kernels/done BIN={programs} ", 1)
        said = subprocess.run(
            ["bash", "-e", "-c", command], cwd=HOME, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        assert said and all(each.startswith(wanted[target]) for each in said)


@pytest.fixture
def place(tmp_path):
    """A reader's folder: two classes of birds, new images, and onnxruntime-web or a stand-in."""
    images, labels = generate(200, 16, torch.Generator().manual_seed(0))
    for label, folder in ((0, "birds/flat"), (3, "birds/steep"), (7, "more-images")):
        (tmp_path / folder).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == label][:12]):
            Image.fromarray(pixels[0].numpy()).save(tmp_path / folder / f"{number}.png")
    Image.fromarray(images[0, 0].numpy()).save(tmp_path / "new.jpg")
    runtime = tmp_path / "node_modules/onnxruntime-web/dist"
    runtime.mkdir(parents=True)
    for name in RUNTIME:
        (runtime / name).write_bytes(b"not run here")
    return tmp_path


def started(words, place):
    """Run a command with this checkout's package, in the reader's folder."""
    paths = os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "torchcaps", *words],
        cwd=place,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
def test_the_commands_for_own_pictures_do_what_the_page_says(place):
    checkpoint = "runs/own/birds-capsnet/0/checkpoint.safetensors"
    typed = [words for words, whole in commands((HOME / "docs/own-data.md").read_text()) if whole]
    assert [words[0] for words in typed] == ["train", "eval", "figures", "predict", "play", "export", "export"]
    for words in typed:
        process = started([checkpoint if word == "CHECKPOINT" else word for word in words], place)
        if words[0] == "play":  # it serves until it is stopped, and says where
            said = ""
            while "http://127.0.0.1" not in said:
                line = process.stdout.readline()
                assert line, f"torchcaps {' '.join(words)} ended: {said}"
                said += line
            process.terminate()
            process.communicate(timeout=60)
        else:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, f"torchcaps {' '.join(words)}: {said}"
        if words[0] == "predict":
            assert said.count(".png") == len(list((place / "more-images").iterdir())) and "new.jpg" in said
    for path in (checkpoint, "net.onnx", "net.pt2", "page/index.html"):
        assert (place / path).exists(), path
