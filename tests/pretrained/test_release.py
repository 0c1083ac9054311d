"""A released file answers as the run that it was made of: exactly in float32, closely in bfloat16; and it is of that
run alone.
"""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import refuses, run

import torchcaps
from torchcaps.data import DataError, class_names
from torchcaps.papers import RECIPES
from torchcaps.pretrained import entries
from torchcaps.pretrained.card import _command
from torchcaps.pretrained.release import LARGE, release, rounded_to_bfloat16
from torchcaps.results.store import make_result, write_result
from torchcaps.runtime.environment import commit
from torchcaps.train import Options, splits, train
from torchcaps.train.checkpoint import load_checkpoint, save_checkpoint
from torchcaps.train.loading import load_model
from torchcaps.train.plain import to_plain

BY_ROUNDING = 2e-3  # what bfloat16 weights change in a length, which is between 0 and 1: 8 bits of each number are kept


def trained(recipe: str, folder: Path) -> Path:
    made = RECIPES[recipe].make()
    done = train(made, name=recipe, seed=0, options=Options(out=folder, progress=False))
    write_result(folder / "result.json", make_result(recipe, 0, made, done))
    return folder / "checkpoint.safetensors"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return trained("smoke/capsnet", tmp_path_factory.mktemp("finished"))


@pytest.fixture
def finished_copy(finished, tmp_path) -> Path:
    return shutil.copytree(finished.parent, tmp_path / "run") / finished.name


def said(path: Path, images: torch.Tensor) -> torchcaps.Capsules:
    with torch.no_grad():
        return torchcaps.load(path)(images)


@pytest.fixture
def images(finished, rng):
    return torch.rand(4, *load_checkpoint_image(finished), generator=rng)


def load_checkpoint_image(path: Path) -> tuple[int, ...]:
    return load_model(path, torch.device("cpu"))[0].image


def test_in_float32_it_is_the_same_model(finished, images, tmp_path):
    made = release(finished, "one", folder=tmp_path)
    wanted, got = said(finished, images), said(tmp_path / "one.safetensors", images)
    assert torch.equal(wanted.poses, got.poses) and torch.equal(wanted.activity, got.activity)
    assert made.numbers == {"float32": made.n_parameters}
    assert made.measured["test"] == made.metrics["test"] and made.changed == {"test": 0}
    assert made.bytes < finished.stat().st_size / 3  # no state of the optimiser, no average
    assert entries(tmp_path) == {"one": made}


def test_in_bfloat16_it_is_half_as_large_and_close(finished, images, tmp_path):
    whole, made = release(finished, "one", folder=tmp_path), release(finished, "two", rounded=True, folder=tmp_path)
    wanted, got = said(finished, images), said(tmp_path / "two.safetensors", images)
    assert 0 < (wanted.activity - got.activity).abs().max() < BY_ROUNDING
    assert made.bytes < 0.6 * whole.bytes
    assert made.numbers["bfloat16"] + made.numbers["float32"] == made.n_parameters
    assert next(torchcaps.load(tmp_path / "two.safetensors").parameters()).dtype == torch.float32
    assert [*entries(tmp_path)] == ["one", "two"]


def test_only_large_tensors_of_float32_are_rounded():
    kinds = [torch.zeros(LARGE), torch.zeros(LARGE - 1), torch.zeros(LARGE, dtype=torch.int64)]
    assert [rounded_to_bfloat16(tensor).dtype for tensor in kinds] == [torch.bfloat16, torch.float32, torch.int64]


def test_without_its_decoder_it_tells_the_same_classes_and_draws_nothing(finished, images, tmp_path):
    made = release(finished, "one", drop=("decoder",), folder=tmp_path)
    wanted, got = said(finished, images), said(tmp_path / "one.safetensors", images)
    assert torch.equal(wanted.poses, got.poses)
    model = torchcaps.load(tmp_path / "one.safetensors")
    assert model.decoder is None and made.without == ("decoder",)
    with pytest.raises(
        ValueError, match=r"has no decoder: .*released without; take one built and trained with reconstruction=True"
    ):
        model.reconstruct(got.poses, torch.zeros(4, dtype=torch.long))
    assert "left out: the decoder" in (tmp_path / "one.md").read_text()
    assert made.measured["test"] == made.metrics["test"]
    assert load_checkpoint(tmp_path / "one.safetensors").about["run"] == to_plain(
        RECIPES["smoke/capsnet"].make()
    )  # as it was trained


def test_mnists_capsnet_without_decoder_is_under_fourteen_megabytes():
    with torch.device("meta"):
        whole = RECIPES["sabour2017/mnist-r3-recon"].make()
        weights = replace(whole, model_args=whole.model_args | {"reconstruction": False}).build().state_dict()
    assert (
        sum(rounded_to_bfloat16(tensor).nbytes for tensor in weights.values()) < 13_900_000
    )  # the header has some kilobytes


def test_a_card_tells_the_command_that_trains_it_again():
    for name, command in (
        ("a/b", "torchcaps train a/b"),
        ("a/b-quick", "torchcaps train a/b --quick"),
        ("a/b-quick-hold-out-50", "torchcaps train a/b --quick --hold-out 50"),
        ("a/b-hold-out-5000", "torchcaps train a/b --hold-out 5000"),
    ):
        assert _command(name) == command


def test_released_weights_do_not_make_later_results_look_uncommitted(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.delenv("TORCHCAPS_COMMIT", raising=False)
    package = tmp_path / "torchcaps"
    (package / "pretrained" / "weights").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "ours"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr("torchcaps.runtime.environment.__file__", str(package / "runtime" / "environment.py"))
    (package / "pretrained" / "weights" / "one.safetensors").write_text("")
    assert not commit()["dirty"]
    (package / "pretrained" / "loading.py").write_text("")
    assert commit()["dirty"]


def test_where_the_data_are_missing_the_card_says_so(finished, tmp_path, monkeypatch):
    def missing(*args):
        raise DataError("not here")

    monkeypatch.setattr(splits, "part", missing)
    made = release(finished, "one", folder=tmp_path)
    exact = "the data were not at hand; the weights are those trained, to the bit"
    assert made.measured == {} and made.metrics and made.unmeasured == {"test": exact}
    assert f"not measured: {exact}" in (tmp_path / "one.md").read_text()
    assert release(finished, "two", rounded=True, folder=tmp_path).unmeasured == {"test": "the data were not at hand"}


def test_a_file_that_is_not_to_be_measured_again_says_so(finished, tmp_path):
    """Its data are at hand, which is not the reason."""
    made = release(finished, "one", rounded=True, folder=tmp_path, again=False)
    assert made.measured == made.changed == {} and made.unmeasured == {"test": "it was not asked for"}
    assert "| not measured: it was not asked for |" in (tmp_path / "one.md").read_text()


def test_other_data_than_those_of_the_result_are_not_measured(finished, tmp_path, monkeypatch):
    real = splits.part
    monkeypatch.setattr(splits, "part", lambda run, name, root, seed: real(run, name, root, seed + 1))
    made = release(finished, "one", folder=tmp_path)
    assert made.measured == {} and made.unmeasured.keys() == {"test"}
    assert (
        "not measured: the data at hand were other ones than those of the result file"
        in (tmp_path / "one.md").read_text()
    )


def test_only_the_result_file_of_these_weights_will_do(finished_copy, tmp_path):
    beside = finished_copy.parent / "result.json"
    right = json.loads(beside.read_text())
    for change, message in (
        ({"seed": 1}, "is of smoke/capsnet seed 1, the checkpoint of smoke/capsnet seed 0"),
        ({"weights_sha256": "0" * 64}, "weights of sha256 00000000…, the checkpoint holds"),
    ):
        beside.write_text(json.dumps(right | change))
        with pytest.raises(ValueError, match=message):
            release(finished_copy, "one", folder=tmp_path / "out")
    beside.unlink()
    with pytest.raises(ValueError, match="is not a readable result file"):
        release(finished_copy, "one", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_half_done_runs_and_released_files_are_refused(finished_copy, tmp_path):
    release(finished_copy, "one", folder=tmp_path)
    shutil.copy(finished_copy.parent / "result.json", tmp_path / "result.json")
    with pytest.raises(ValueError, match="is no checkpoint of a run, but a released file"):
        release(tmp_path / "one.safetensors", "two", folder=tmp_path)
    found = load_checkpoint(finished_copy)
    save_checkpoint(finished_copy, found.tensors, found.about | {"ended": False, "step": 7})
    with pytest.raises(ValueError, match="of a run that is not finished, at step 7"):
        release(finished_copy, "two", folder=tmp_path)


def test_names_are_plain_and_what_has_no_decoder_keeps_all_it_has(finished, tmp_path):
    for name in ("Caps", "a--b", "../a", "a/b", "", "a.b"):
        with pytest.raises(ValueError, match="a name is small letters"):
            release(finished, name, folder=tmp_path)
    other = trained("smoke/baseline", tmp_path / "run")
    with pytest.raises(
        ValueError, match="only the decoder of a capsnet can be left out, and this is decoder of baseline"
    ):
        release(other, "one", drop=("decoder",), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_card_and_the_playground_takes_the_file(finished, capsys, monkeypatch, tmp_path):
    words = [
        "release",
        finished,
        "capsnet-smoke",
        "--bf16",
        "--without-decoder",
        "--folder",
        tmp_path,
        "--device",
        "cpu",
    ]
    code, out, err = run(capsys, monkeypatch, *map(str, words))
    assert code == 0, err
    start = f"capsnet-smoke\n\n{RECIPES['smoke/capsnet'].about.splitlines()[0].rstrip('.')}."
    assert out.startswith(start) and (tmp_path / "capsnet-smoke.md").read_text().startswith(f"# {start}")
    refuses(run(capsys, monkeypatch, "release", str(tmp_path / "nothing"), "one"), "no checkpoint at")
    path = tmp_path / "capsnet-smoke.safetensors"
    assert torchcaps.load(path).labels == class_names("generated")
    from torchcaps.play.networks import load_network

    assert load_network(path).draw is None
