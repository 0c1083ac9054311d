"""Train a recipe with Ray Train, which starts, connects and restarts the processes.

    pip install 'ray[train]'
    python examples/ray_train.py sabour2017/mnist-r3-recon --out /shared/runs/mnist --workers 4

`--out` is a folder that all machines of the Ray cluster can access. Without a cluster, Ray uses this machine. The same
command resumes an interrupted run, with any number of workers.
"""

import argparse
from pathlib import Path


def loop(config: dict) -> None:
    """Train in one of the processes; the first one writes the result."""
    import torch

    from torchcaps.papers import RECIPES
    from torchcaps.results.store import make_result, write_result
    from torchcaps.train import Options, train

    name, seed, out = config["recipe"], config["seed"], Path(config["out"])
    run = RECIPES[name].make()
    # `train` finds the process group that Ray has made
    trained = train(run, name=name, seed=seed, options=Options(out=out, device=config["device"], progress=False))
    if torch.distributed.get_rank() == 0:
        write_result(out / "result.json", make_result(name, seed, run, trained))


def start(recipe: str, seed: int, out: Path, workers: int, device: str) -> None:
    """Start the workers, one GPU or CPU core each, and wait for them."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        loop,
        train_loop_config={"recipe": recipe, "seed": seed, "out": str(out), "device": device},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=device != "cpu"),
        run_config=RunConfig(storage_path=str(out / "ray"), failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a name that `torchcaps ls` shows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log and result")
    parser.add_argument("--workers", type=int, default=1, help="number of processes; it must divide the batch")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto takes one GPU for each worker")
    args = parser.parse_args()
    start(args.recipe, args.seed, args.out.resolve(), args.workers, args.device)
