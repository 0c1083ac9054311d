"""Write golden losses, of the smoke recipes named or of all: anew only when a change is meant to alter them, and the
commit says why.

PYTHONPATH=. python tests/golden/make.py [smoke/NAME ...]
"""

import json
import sys
import tempfile
from pathlib import Path

from torchcaps.papers import RECIPES
from torchcaps.train import Options, train

for name, recipe in RECIPES.items():
    if name.startswith("smoke/") and (not sys.argv[1:] or name in sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            trained = train(
                recipe.make(), name=name, seed=0, options=Options(out=Path(folder), progress=False, log_every=1)
            )
        losses = [float(f"{line['loss']:.7g}") for line in trained.curve if "loss" in line]
        (Path(__file__).parent / f"{name.replace('/', '-')}.json").write_text(json.dumps(losses) + "\n")
