"""Well-formed files with a wrong content are refused in one line: no traceback, no endless loop, no memory."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from commands import refuses
from commands import run as command

from torchcaps.papers import RECIPES
from torchcaps.results.store import read_result
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import load_checkpoint, save_checkpoint
from torchcaps.train.loading import load_model

CPU = torch.device("cpu")
NAME = "smoke/capsnet-plain"
SENTENCES = ("smoke/em-sentences", "smoke/pooled-sentences")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Checkpoints in the middle of a run, by recipe."""

    @cache
    def begun(name: str) -> Path:
        out = tmp_path_factory.mktemp("run")
        train(RECIPES[name].make(), name=name, seed=0, options=Options(out=out, progress=False, max_steps=2))
        return out / "checkpoint.safetensors"

    return begun


@pytest.fixture(scope="module")
def trained(checkpoint) -> Path:
    return checkpoint(NAME)


def changed(about: dict, path: str, value: object) -> dict:
    """The header with one entry replaced, `run.stages.0.batch` for instance."""
    about = json.loads(json.dumps(about))
    *way, last = path.split(".")
    at = about
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return about


HEADERS = [
    ("name", 3), ("seed", "0"), ("seed", None), ("step", "2"), ("step", -1), ("step", True), ("run", []), ("run", "x"),
    ("run.kind", 3), ("run.kind", "Stage"), ("run.kind", "Nothing"), ("run.data", 7), ("run.data", ["mnist"]),
    ("run.data", "no such set"), ("run.model", None), ("run.model", {"a": 1}), ("run.model_args", []),
    ("run.model_args.n_iters", 10**9), ("run.model_args.n_iters", "3"), ("run.model_args.n_iters", -1),
    ("run.model_args.channels", 10**9), ("run.model_args.channels", -4), ("run.model_args.channels", None),
    ("run.stages", {}), ("run.stages", []), ("run.stages.0", 3), ("run.stages.0.batch", "16"),
    ("run.stages.0.task", None), ("run.stages.0.optimizer", {"kind": "Adam", "beta1": "x"}), ("run.augment", [3]),
    ("run.hold_out", 1.5), ("without", "decoder"),
]  # fmt: skip


@pytest.mark.parametrize("path, value", HEADERS, ids=[f"{path}={str(value)[:12]}" for path, value in HEADERS])
def test_a_checkpoint_with_a_wrong_header_is_refused(trained, tmp_path, path, value):
    found = load_checkpoint(trained)
    save_checkpoint(tmp_path / "x.safetensors", found.tensors, changed(found.about, path, value))
    with pytest.raises(ValueError, match=r"\w+") as refused:
        load_model(tmp_path / "x.safetensors", CPU)
    assert "\n" not in str(refused.value)


VALUES = (None, -1, 10**30, "x", [3], {"a": 1})  # no entry of a header takes all of them
OF_SENTENCES = ("n_iters", "n_layers", "d_embedding", "n_classes", "hidden", "layers", "depth", "cost", "backend")


def entries(part: object, path: str = "") -> Iterator[str]:
    """Paths of all entries of a header, for `changed`."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield f"{path}{key}"
        if isinstance(value, dict | list):
            yield from entries(value, f"{path}{key}.")


@pytest.mark.parametrize("name", SENTENCES)
def test_every_entry_of_a_sentence_network_is_read_or_refused_in_one_line(checkpoint, tmp_path, name):
    """Fuzzed: a value that fits, such as a batch of 10**9, changes nothing about the answers."""
    found, file, refused = load_checkpoint(checkpoint(name)), tmp_path / "x.safetensors", 0
    paths = [*entries(found.about), *(f"run.model_args.{name}" for name in OF_SENTENCES)]
    for path, value in product(dict.fromkeys(paths), VALUES):
        save_checkpoint(file, found.part("model"), changed(found.about, path, value))
        try:
            load_model(file, CPU)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 500, f"{path} = {value}"
    assert refused > len(paths) * len(VALUES) / 2


@pytest.mark.parametrize(
    "words", [("eval",), ("explain", "--test", "0"), ("equivariance",)], ids=lambda words: words[0]
)
def test_a_command_refuses_a_sentence_network_in_one_line(checkpoint, tmp_path, capsys, monkeypatch, words):
    found, file = load_checkpoint(checkpoint(SENTENCES[0])), tmp_path / "x.safetensors"
    depth = found.tensors["model/depth"]
    for tensors, path, value in [
        ({}, "run.model_args.n_iters", 10**9),
        ({}, "run.data", "no such set"),
        ({"model/depth": torch.full_like(depth, float("nan"))}, "seed", 0),
        ({"model/depth": depth > 0}, "seed", 0),
    ]:
        save_checkpoint(file, found.tensors | tensors, changed(found.about, path, value))
        code, _, err = command(capsys, monkeypatch, words[0], str(file), *words[1:], "--device", "cpu")
        assert code == 2 and err.startswith("torchcaps: ") and len(err.splitlines()) == 1 and len(err) < 500


def test_sentences_are_not_moved_to_measure_equivariance(checkpoint, capsys, monkeypatch):
    answer = command(capsys, monkeypatch, "equivariance", str(checkpoint(SENTENCES[0])), "--device", "cpu")
    refuses(answer, "EMSentenceNet was trained on Sentences")


ARGUMENTS = [
    ("matrix-capsnet", "density_power", ()), ("matrix-capsnet", "density_power", float("nan")),
    ("matrix-capsnet", "n_types", (4, 4)), ("sparsecaps", "sharpness", (1, 2)), ("baseline", "dropout", float("nan")),
    ("routing-net", "n_parts", 10**30), ("routing-net", "channels", 1.5), ("experts", "n_chains", "x"),
    ("efficient-capsnet", "d_class", 10**30), ("inverted-capsnet", "channels", (float("inf"), 8)),
]  # fmt: skip


@pytest.mark.parametrize("name, argument, value", ARGUMENTS)
def test_no_model_is_built_with_an_argument_of_another_type(name, argument, value):
    """Found by fuzzing: they were built and failed in the middle of evaluation, or with forty lines of torch's own."""
    run = RECIPES[f"smoke/{name}"].make()
    with torch.device("meta"), pytest.raises(ValueError, match=f"{name} cannot be built with") as refused:
        replace(run, model_args=run.model_args | {argument: value}).build()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_a_list_is_taken_for_a_tuple_and_a_refusal_tells_what_to_do():
    run = RECIPES["smoke/inverted-capsnet"].make()
    with torch.device("meta"):
        channels = list(run.model_args["channels"])
        listed = replace(run, model_args=run.model_args | {"channels": channels})
        assert listed == run and str(listed.build()) == str(run.build())
        with pytest.raises(ValueError, match=r"channels = \('8', 8\), which is no tuple.*; give a value of that type$"):
            replace(run, model_args=run.model_args | {"channels": ["8", 8]}).build()


RESUMED = [
    ("stage", 7), ("stage", "0"), ("done", None), ("seconds", "long"), ("phases", 3), ("phases", {"training": "long"}),
    ("made_by", {}), ("made_by", [3]), ("made_by", [{}]), ("made_by", [{"device": 3, "dirty": False}]),
    ("made_by", [{"device": "cpu"}]), ("ended", 1), ("done", 10**9), ("step", 1),
]  # fmt: skip


@pytest.mark.parametrize("path, value", RESUMED, ids=[f"{path}={value}" for path, value in RESUMED])
def test_a_checkpoint_with_a_wrong_state_is_not_resumed(trained, tmp_path, path, value):
    found = load_checkpoint(trained)
    save_checkpoint(tmp_path / "checkpoint.safetensors", found.tensors, changed(found.about, path, value))
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors") as refused:
        train(RECIPES[NAME].make(), name=NAME, seed=0, options=Options(out=tmp_path, progress=False))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["rng/epoch", "rng/cpu", "step/counter", "step/unread"])
@pytest.mark.parametrize("value", [None, torch.zeros(3)], ids=["missing", "other"])
def test_a_checkpoint_without_its_state_is_not_resumed(trained, tmp_path, name, value):
    found = load_checkpoint(trained)
    tensors = {key: tensor for key, tensor in found.tensors.items() if key != name}
    save_checkpoint(
        tmp_path / "checkpoint.safetensors", tensors if value is None else tensors | {name: value}, found.about
    )
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors cannot be resumed"):
        train(RECIPES[NAME].make(), name=NAME, seed=0, options=Options(out=tmp_path, progress=False))


@pytest.mark.parametrize(
    "value", [torch.zeros(0), torch.zeros(2), torch.tensor(1), torch.tensor(float("nan"))], ids=str
)
def test_a_sum_of_losses_is_one_number(trained, tmp_path, value):
    """Two summed losses trained on, and ended in a traceback at the next log line."""
    found = load_checkpoint(trained)
    save_checkpoint(tmp_path / "checkpoint.safetensors", found.tensors | {"step/totals/loss": value}, found.about)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors .*totals/loss"):
        train(RECIPES[NAME].make(), name=NAME, seed=0, options=Options(out=tmp_path, progress=False))


@pytest.mark.parametrize("network", SENTENCES)
@pytest.mark.parametrize("kind", ["ema", "optimizer"])
@pytest.mark.parametrize("change", ["nan", "broadcast", "whole", "missing"])
def test_a_sentence_network_is_not_resumed_with_another_average_or_optimiser(
    checkpoint, tmp_path, network, kind, change
):
    """NaN in an average was named only when the run was trained to its end; others passed, or ended in a traceback."""
    found = load_checkpoint(checkpoint(network))
    for name in [name for name in found.tensors if name.startswith(f"step/{kind}/classes")]:
        bad = {
            "nan": {name: torch.full_like(found.tensors[name], float("nan"))},
            "broadcast": {name: torch.zeros(1, 1)},
            "whole": {name: found.tensors[name].long()},
            "missing": {},
        }
        tensors = {key: tensor for key, tensor in found.tensors.items() if key != name} | bad[change]
        save_checkpoint(tmp_path / "checkpoint.safetensors", tensors, found.about)
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors") as refused:
            train(RECIPES[network].make(), name="x", seed=0, options=Options(out=tmp_path, progress=False))
        assert "\n" not in str(refused.value) and name.removeprefix("step/") in str(refused.value)


def test_a_rounded_count_of_steps_is_resumed(checkpoint, tmp_path):
    """The fused Adam ended in a traceback."""
    found = load_checkpoint(checkpoint(SENTENCES[1]))
    half = {name: tensor.half() for name, tensor in found.tensors.items() if name.endswith("/step")}
    save_checkpoint(tmp_path / "checkpoint.safetensors", found.tensors | half, found.about)
    options = Options(out=tmp_path, progress=False, max_steps=3)
    assert half and train(RECIPES[SENTENCES[1]].make(), name="x", seed=0, options=options).steps == 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_weights_of_another_kind_of_number_are_refused(trained, tmp_path, dtype):
    """They became zeros and ones without a word. Rounded ones, as released, are read."""
    found = load_checkpoint(trained)
    name = next(name for name in found.tensors if name.startswith("model/"))
    save_checkpoint(tmp_path / "x.safetensors", found.tensors | {name: found.tensors[name].to(dtype)}, found.about)
    with pytest.raises(ValueError, match=rf"holds {dtype} in .*, not torch\.float32"):
        load_model(tmp_path / "x.safetensors", CPU)
    save_checkpoint(tmp_path / "x.safetensors", found.tensors | {name: found.tensors[name].bfloat16()}, found.about)
    load_model(tmp_path / "x.safetensors", CPU)


def test_weights_that_are_not_finite_are_refused(trained, tmp_path):
    found = load_checkpoint(trained)
    name = next(name for name in found.tensors if name.startswith("model/"))
    bad = found.tensors[name].clone()
    bad.view(-1)[0] = float("nan")
    save_checkpoint(tmp_path / "x.safetensors", found.tensors | {name: bad}, found.about)
    with pytest.raises(ValueError, match="NaN or infinite, in " + name.removeprefix("model/")):
        load_model(tmp_path / "x.safetensors", CPU)


@pytest.mark.parametrize("name", sorted(name for name in RECIPES if name.startswith("smoke/")))
def test_every_model_has_its_shapes_without_memory(name):
    """`load_model` compares shapes before it takes memory; a layer that cannot be built on meta would break it."""
    run = RECIPES[name].make()
    with torch.device("meta"):
        shapes = {key: tensor.shape for key, tensor in run.build().state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in run.build().state_dict().items()}


RESULTS = [
    ("metrics", []), ("metrics.test", 3), ("metrics.test.error_percent", "1"), ("predictions", 5), ("seed", "x"),
    ("predictions.test", 5), ("predictions.test.shape", "x"), ("predictions.test.shape", [10**12]),
    ("predictions.test.zlib_base64", 3), ("predictions.test.zlib_base64", "!"), ("curve", {}), ("curve.0", 3),
    ("curve.0.step", "1"), ("curve.0.loss", None), ("run", []), ("run.stages", 3), ("run.stages", []),
    ("run.model", []), ("run.kind", []), ("data", None), ("data.test", 3), ("steps", "a"), ("begun_by", 3),
    ("begun_by", [3]), ("evaluated_by", []), ("recipe", None), ("extras", []), ("weights_sha256", 3), ("dirty", "no"),
]  # fmt: skip


@pytest.mark.parametrize("path, value", RESULTS, ids=[f"{path}={str(value)[:12]}" for path, value in RESULTS])
def test_a_result_with_a_wrong_type_is_refused_in_one_line(result_file, tmp_path, capsys, monkeypatch, path, value):
    file = tmp_path / "r.json"
    file.write_text(json.dumps(changed(read_result(result_file), path, value)))
    monkeypatch.setattr("torchcaps.results.verify.check_commits", lambda result, history: [])
    code, _, err = command(capsys, monkeypatch, "verify", str(file), "--device", "cpu")
    assert code == 2 and err.startswith("torchcaps: ") and len(err.splitlines()) == 1 and len(err) < 500


@pytest.fixture(scope="module")
def result_file(tmp_path_factory) -> Path:
    from torchcaps.cli.training import train_recipe

    return train_recipe(RECIPES[NAME], 0, Options(out=tmp_path_factory.mktemp("result"), progress=False))
