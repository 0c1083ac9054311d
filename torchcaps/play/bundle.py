"""Make the small networks that come with the playground: `python -m torchcaps.play.bundle`.

Each is a recipe trained on the CPU with seed 0, its weights rounded to bfloat16. Beside the weights lies their result file, with
the hash of the file and the metrics of the rounded weights.
"""

import hashlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from torchcaps import data as datasets
from torchcaps.checkpoint import load_model, save_checkpoint
from torchcaps.papers import RECIPES
from torchcaps.recipe import to_plain
from torchcaps.results import make_result, write_result
from torchcaps.train import Options, train

FOLDER = Path(__file__).parent / "weights"
BUNDLED = {"digits": "digits/warped", "plain": "digits/plain", "pairs": "digits/pairs"}
SEED = 0


def bundled(name: str) -> Path:
    """Where the weights of that network lie."""
    return FOLDER / f"{name}.safetensors"


def bundle(name: str, folder: Path = FOLDER) -> Path:
    """Train one and write its weights and its result file."""
    recipe = BUNDLED[name]
    run = RECIPES[recipe].make()
    with TemporaryDirectory() as scratch:
        trained = train(run, name=recipe, seed=SEED, options=Options(out=Path(scratch)))
    path = folder / f"{name}.safetensors"
    about = {"name": recipe, "seed": SEED, "run": to_plain(run), "step": trained.steps}
    # only the weights: nobody resumes from here, and half the bits draw the same pictures
    save_checkpoint(path, {f"model/{key}": tensor.bfloat16() for key, tensor in trained.model.state_dict().items()}, about)
    result = make_result(recipe, SEED, run, trained)
    result["bundled"] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "metrics": measured(path)}
    write_result(path.with_suffix(".json"), result)
    return path


def measured(path: Path) -> dict[str, float]:
    """The metrics of these weights, as they lie there, on the test part of their data."""
    model, run, about = load_model(path, torch.device("cpu"))
    return run.judge().evaluate(model, datasets.load(run.data, "test", seed=about["seed"]), torch.device("cpu")).metrics


if __name__ == "__main__":
    for chosen in sys.argv[1:] or BUNDLED:
        print(bundle(chosen))
