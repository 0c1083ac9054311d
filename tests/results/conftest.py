import copy
import json

import pytest

from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.train import Options, train

NAME = "smoke/capsnet-plain"


@pytest.fixture(scope="session")
def trained_result(tmp_path_factory):
    run = RECIPES[NAME].make()
    trained = train(
        run, name=NAME, seed=0, options=Options(out=tmp_path_factory.mktemp("run"), progress=False, log_every=5)
    )
    return json.loads(json.dumps(make_result(NAME, 0, run, trained)))


@pytest.fixture
def result(trained_result):
    """A result file as a dict, a copy for every test."""
    return copy.deepcopy(trained_result)
