"""Result files tell everything, and stay small."""

import base64
import json
import tracemalloc
import zlib

import pytest
import torch

from torchcaps.analysis.metrics import (
    error_percent,
)
from torchcaps.data import load
from torchcaps.results.store import pack, read_result, thin, unpack


def test_a_result_file_tells_everything_needed_to_check_it(result):
    wanted = "recipe seed metrics steps seconds peak_memory_bytes device routing versions commit dirty run data curve predictions"
    assert {*wanted.split(), "weights_sha256"} <= set(result)
    assert result["steps"] == 20
    assert result["metrics"]["test"]["error_percent"] == error_percent(
        unpack(result["predictions"]["test"]).long(), load("generated-16", "test").labels
    )


def test_predictions_survive_packing(rng):
    said = torch.randint(0, 10, (1000, 2), generator=rng, dtype=torch.uint8)
    assert torch.equal(unpack(json.loads(json.dumps(pack(said)))), said)


def test_the_declared_shape_bounds_the_memory_of_packed_predictions():
    bomb = {"shape": [1000], "zlib_base64": base64.b64encode(zlib.compress(bytes(1 << 26), 9)).decode()}
    tracemalloc.start()
    with pytest.raises(ValueError, match="do not have the 1,000 bytes of their shape"):
        unpack(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    for shape in ([1 << 40], [-1], ["a"], 3, None):
        with pytest.raises(ValueError, match="have a shape of at most"):
            unpack(bomb | {"shape": shape})
    for text in ("x", "AAAA", pack(torch.zeros(9))["zlib_base64"]):
        with pytest.raises(ValueError, match="packed predictions"):
            unpack({"shape": [10], "zlib_base64": text})


def test_a_thinned_curve_keeps_the_start_the_end_and_every_validation():
    curve = [{"step": step, "loss": 1 / 3} for step in range(50, 100_050, 50)]
    curve.insert(1000, {"step": 50_000, "validation_error_percent": 1.0})
    thinned = thin(curve)
    assert [line["step"] for line in thinned][:4] == [50, 100, 150, 200]
    assert thinned[-1] == {"step": 100_000, "loss": 0.333333}
    assert {"step": 50_000, "validation_error_percent": 1.0} in thinned
    assert len(thinned) < 120


@pytest.mark.parametrize("text", ["", "[1", '{"recipe": "x"}'])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a (readable )?result file"):
        read_result(tmp_path / "r.json")
