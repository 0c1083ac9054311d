"""The command line as a user meets it: what works, and one clear line with exit code 2 for what does not."""

import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import refuses, run

from torchcaps import cli
from torchcaps.data import DataError, load
from torchcaps.papers import RECIPES
from torchcaps.pretrained import open_model
from torchcaps.probes.kinds import FrozenClassifier, Linear
from torchcaps.results.claims import Claim, Recipe
from torchcaps.results.store import pack, read_result
from torchcaps.results.verify import Check
from torchcaps.train import Options, train

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(sys, "argv", ["torchcaps", "train", "smoke/capsnet", "--device", "cpu", "--out", str(out)])
        cli.main()
    return out


@pytest.fixture
def trained(command, trained_once):
    """Where `torchcaps train smoke/capsnet` puts its files by default."""
    return shutil.copytree(trained_once, Path("runs/smoke/capsnet/0"))


def test_help_breaks_lines_where_the_terminal_does():
    """The first paragraph is joined by typer; a line break in a later one would be printed as it is."""
    commands = [*cli.app.registered_commands]
    for group in cli.app.registered_groups:
        commands += group.typer_instance.registered_commands
    assert len(commands) > 20
    for command in commands:
        _, *later = inspect.getdoc(command.callback).split("\n\n")
        assert not [paragraph for paragraph in later if "\n" in paragraph.strip()], command.callback.__name__


def test_show_gives_the_run_the_parameters_and_the_backend(command):
    code, out, _ = command("show", "sabour2017/mnist-r3-recon")
    assert code == 0
    assert "8,215,728 parameters" in out
    assert "routing on cpu: blocked" in out
    _, out, _ = command("show", "smoke/capsnet", "--json")
    assert json.loads(out)["data"] == "generated-16"


@pytest.fixture
def any_commit(monkeypatch):
    """Verification starts a Python for the code of the commit, which takes seconds; tested in results/test_history."""
    monkeypatch.setattr("torchcaps.results.verify.check_commit", lambda result, history: Check("commit", True, ""))


def test_train_eval_figures_and_verify_fit_together(command, trained, any_commit):
    assert {path.name for path in trained.iterdir()} >= {"checkpoint.safetensors", "metrics.jsonl", "result.json"}
    error = json.loads((trained / "result.json").read_text())["metrics"]["test"]["error_percent"]
    code, out, _ = command("eval", str(trained / "checkpoint.safetensors"), "--device", "cpu")
    assert code == 0
    assert f"test: error {error:.2f} % (256 images)" in out
    code, out, _ = command("figures", str(trained / "checkpoint.safetensors"), "--out", "pictures", "--device", "cpu")
    assert code == 0
    assert len(out.splitlines()) >= 4
    assert all(Path(line).stat().st_size > 1000 for line in out.splitlines())
    code, out, _ = command("verify", str(trained / "result.json"), "--replay", "--device", "cpu")
    assert "recomputed" in out
    assert "20 steps again" in out


def test_verify_ends_with_1_on_a_changed_number(command, trained, any_commit):
    result = json.loads((trained / "result.json").read_text())
    result["metrics"]["test"]["error_percent"] = 0.0
    Path("changed.json").write_text(json.dumps(result))
    code, out, _ = command("verify", "changed.json", "--device", "cpu")
    assert code == 1
    assert "BAD test.error_percent" in out


def test_a_folder_of_results_is_verified(command, trained, any_commit):
    result = json.loads((trained / "result.json").read_text())
    row = Path("results") / result["recipe"]
    row.mkdir(parents=True)
    (row / f"{result['seed']}.json").write_text(json.dumps(result))
    code, out, _ = command("verify", str(row))
    assert (code, out.strip()) == (0, "1 result file, 0 bad")
    (row / f"{result['seed']}.json").rename(row / "77.json")
    code, out, _ = command("verify", str(row))
    assert code == 1 and "77.json place: recipe and seed are those of" in out
    _, _, error = command("verify", str(trained))
    assert f"{trained} is no part of results" in error.replace("\n", " ")
    _, _, error = command("verify", str(row), "--replay")
    assert "are for one result file" in error


def test_compare_tells_two_results_apart(command, trained):
    result = json.loads((trained / "result.json").read_text())
    labels = load("generated-16", "test").labels
    result["predictions"]["test"] = pack(labels)
    Path("perfect.json").write_text(json.dumps(result))
    wrong = round(
        json.loads((trained / "result.json").read_text())["metrics"]["test"]["error_percent"] * len(labels) / 100
    )
    code, out, _ = command("compare", str(trained / "result.json"), "perfect.json")
    assert code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    cells = {name: of_test for name, of_test, *_ in rows}
    assert [cells[name] for name in ("n", "only first wrong", "only second wrong", "both wrong")] == [
        str(len(labels)),
        str(wrong),
        "0",
        "0",
    ]
    assert cells["over"] == f"{len(labels)} images"


def test_train_again_goes_on_from_the_end(command, trained):
    before = (trained / "checkpoint.safetensors").stat().st_mtime_ns
    code, _, _ = command("train", "smoke/capsnet", "--device", "cpu")
    assert code == 0
    assert (trained / "checkpoint.safetensors").stat().st_mtime_ns == before


def test_hold_out_never_writes_under_the_recipes_own_name(command):
    code, out, err = command("train", "smoke/capsnet-plain", "--hold-out", "64", "--device", "cpu")
    assert code == 0, err
    assert "validation: error " in out
    assert Path("runs/smoke/capsnet-plain-hold-out-64/0/result.json").exists()


def test_bench_train_prints_what_was_measured(command, monkeypatch):
    measured = lambda recipe, device, steps: f"{recipe.name} {device} {steps}"  # noqa: E731
    monkeypatch.setattr("torchcaps.cli.bench.benches.bench_train", measured)
    assert command("bench", "train", "smoke/capsnet", "--steps", "10", "--device", "cpu")[:2] == (
        0,
        "smoke/capsnet cpu 10\n",
    )


def test_bench_train_lists_kernels_when_asked(command, monkeypatch):
    measured = lambda recipe, device, steps, most: f"{recipe.name} {device} {steps} {most}"  # noqa: E731
    monkeypatch.setattr("torchcaps.cli.bench.benches.bench_kernels", measured)
    asked = command("bench", "train", "smoke/capsnet", "--steps", "10", "--kernels", "3", "--device", "cpu")
    assert asked[:2] == (0, "smoke/capsnet cpu 10 3\n")


def test_bench_ops_checks_before_it_times(command, monkeypatch):
    from torchcaps.bench import cases, ops

    few = [cases.dynamic(2, 7, 3, 4, 5), cases.local(2, 3, 2, 2, 4, 4, kernel=2), cases.squashing(2, 7, 4)]
    monkeypatch.setattr(ops, "CASES", {"cpu": few})
    code, out, err = command("bench", "ops", "--repeats", "2", "--device", "cpu")
    assert code == 0, err
    assert out.count("1.00x") == 3

    def wrong(*args, **kwargs):
        raise AssertionError("off by 1")

    monkeypatch.setattr(ops, "compare_routing", wrong)
    _, out, _ = command("bench", "ops", "--repeats", "2", "--device", "cpu")
    assert "wrong: off by 1" in out
    assert "1.00x" not in out


def test_unknown_names_get_near_ones(command):
    refuses(
        command("train", "sabour2017/mnist-r3-recom"),
        "no recipe 'sabour2017/mnist-r3-recom'; did you mean sabour2017/mnist-r3-recon",
    )
    refuses(command("show", "???"), "`torchcaps ls --all` lists them all")
    refuses(command("table", "sabour2018"), "no paper 'sabour2018'", "sabour2017")
    refuses(command("data", "get", "mnits"), "no data set 'mnits'", "mnist")
    refuses(command("reproduce", "smoke/capsnet", "--seeds", "a"), "--seeds takes whole numbers", "'a'")


def test_missing_data_names_every_place(command, tmp_path):
    answer = command("train", "sabour2017/mnist-r1", "--device", "cpu", "--data", str(tmp_path))
    refuses(answer, str(tmp_path), "torchcaps data get mnist", "cache")


def test_an_altered_data_file_is_named_not_used_and_not_deleted(command, tmp_path):
    (tmp_path / "mnist").mkdir()
    bad = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    bad.write_bytes(b"not what it says")
    refuses(command("train", "sabour2017/mnist-r1", "--device", "cpu", "--data", str(tmp_path)), str(bad))
    assert bad.read_bytes() == b"not what it says"


def test_bad_checkpoints_are_refused(command, trained):
    path = trained / "checkpoint.safetensors"
    refuses(command("eval", "nowhere"), "no trained model 'nowhere'; there are", "or give the path of a checkpoint")
    refuses(command("eval", "nowhere/checkpoint.safetensors"), "no checkpoint at nowhere/checkpoint.safetensors")
    refuses(command("train", "smoke/capsnet-paper", "--out", str(trained), "--device", "cpu"), "belongs to another run")
    path.write_bytes(path.read_bytes()[:-10])
    refuses(command("eval", str(path)), "is not a whole checkpoint")
    refuses(command("train", "smoke/capsnet", "--device", "cpu"), "is not a whole checkpoint")
    assert path.exists()


def test_an_unwritable_folder_is_refused_before_training(command):
    Path("file").write_text("")
    refuses(command("train", "smoke/capsnet", "--out", "file/x", "--device", "cpu"), "cannot write to file/x", "--out")
    refuses(command("demo", "--out", "file/x"), "cannot write to file/x")


def test_a_device_that_is_not_there_is_refused(command):
    import torch

    refuses(
        command("train", "smoke/capsnet", "--device", "abacus"),
        "device must be auto, cpu, cuda or cuda:N; got 'abacus'",
    )
    refuses(
        command("train", "smoke/capsnet", "--device", "meta"), "device must be auto, cpu, cuda or cuda:N; got 'meta'"
    )
    if not torch.cuda.is_available():
        refuses(command("train", "smoke/capsnet", "--device", "cuda"), "use --device cpu")


def test_a_full_disk_ends_with_one_line(command, monkeypatch):
    from torchcaps.train import checkpoint

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "write_whole", full)
    answer = command("train", "smoke/capsnet-plain", "--device", "cpu")
    refuses(
        answer,
        "could not write the checkpoint (No space left on device)",
        "there is no earlier checkpoint",
        "choose another --out",
    )
    assert "Errno" not in answer[2]


@pytest.mark.slow
def test_it_runs_from_a_bare_checkout():
    command = [sys.executable, "-m", "torchcaps", "ls"]
    done = subprocess.run(command, cwd=HOME, env=os.environ | {"PYTHONPATH": str(HOME)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sabour2017" in done.stdout


def test_eval_says_what_the_routing_does_and_keeps_it(command, trained):
    code, out, _ = command("eval", str(trained / "checkpoint.safetensors"), "--device", "cpu", "--json", "numbers.json")
    assert code == 0 and "3 (as trained): " in out and "entropy of the couplings" in out
    kept = json.loads(Path("numbers.json").read_text())
    assert f"test: error {kept['test']['error_percent']:.2f} % (" in out and "error_percent" not in out
    assert kept["test"]["error_percent"] == read_result(trained / "result.json")["metrics"]["test"]["error_percent"]
    assert len(kept["diagnostics"]["passes"]) == 5


@pytest.mark.parametrize("words", ["eval --device cpu", "show --device cpu"])
def test_sentences_about_a_model_are_broken_between_words_at_80_columns(capsys, monkeypatch, trained, words):
    name, *options = words.split()
    _, wide, _ = run(capsys, monkeypatch, name, str(trained), *options, width=300)
    code, out, _ = run(capsys, monkeypatch, name, str(trained), *options, width=80)
    assert code == 0 and max(map(len, out.splitlines())) <= 80, max(out.splitlines(), key=len)
    assert out.split() == wide.split()


def test_the_folder_of_a_run_stands_for_its_checkpoint(command, trained):
    code, out, _ = command("eval", str(trained), "--device", "cpu")
    assert code == 0 and "smoke/capsnet seed 0" in out
    refuses(command("eval", str(trained.parent)), "is a folder without checkpoint.safetensors", "--out folder of a run")


def test_show_of_a_checkpoint_gives_model_settings_and_dead_layers(command, trained, monkeypatch):
    code, out, err = command("show", str(trained), "--device", "cpu")
    assert code == 0, err
    assert "smoke/capsnet seed 0" in out and '"data": "generated-16"' in out and "PrimaryCapsules(" in out
    assert out.splitlines()[-1] == "dead layers: none"
    _, out, _ = command("show", str(trained), "--json")
    assert json.loads(out)["data"] == "generated-16"

    def killed(*place):
        model, *rest = open_model(*place)
        model.primary.weight.data.zero_()
        model.primary.bias.data.zero_()
        return model, *rest

    monkeypatch.setattr("torchcaps.cli.checkpoints.open_model", killed)
    for words in ("show", "eval"):
        code, out, err = command(words, str(trained / "checkpoint.safetensors"), "--device", "cpu")
        assert code == 0 and "layer primary: all activities below 0.0001" in out, err
    refuses(command("show", "nowhere.safetensors"), "no checkpoint at nowhere.safetensors")


@pytest.mark.parametrize("why", ["there is no file:", "these are images of your own; give --data FOLDER"])
def test_show_of_a_checkpoint_needs_no_data(command, trained, monkeypatch, why):
    def missing(*_):
        raise DataError(f"{why}\n  look elsewhere")

    monkeypatch.setattr("torchcaps.data.load", missing)
    code, out, _ = command("show", str(trained), "--device", "cpu")
    last = out.splitlines()[-1]
    assert code == 0 and last.startswith(f"dead layers: not known, {why.rstrip(':')}"), last
    assert last.count("--data FOLDER") == 1


@pytest.mark.slow
def test_equivariance_of_two_checkpoints_side_by_side(command):
    for recipe in ("smoke/capsnet", "smoke/baseline"):
        run = RECIPES[recipe].make()
        sizes = {"kernel": 9, "primary_kernel": 9} if run.model == "capsnet" else {}
        run = replace(run, data="generated", model_args=run.model_args | sizes)
        train(run, name=recipe, seed=0, options=Options(out=Path(recipe), progress=False))
    paths = [f"smoke/{name}/checkpoint.safetensors" for name in ("capsnet", "baseline")]
    code, out, err = command("equivariance", *paths, "--copies", "1", "--device", "cpu", "--json", "numbers.json")
    assert code == 0, err
    assert all(word in out for word in ("rotation", "stroke width", "smoke/capsnet seed 0", "smoke/baseline seed 0"))
    assert set(json.loads(Path("numbers.json").read_text())) == {"smoke/capsnet seed 0", "smoke/baseline seed 0"}


def test_rows_whose_data_cannot_be_had_are_left_out_and_the_others_made(command, monkeypatch):
    here = RECIPES["smoke/capsnet"].make()
    runs = {"here": here, "far": replace(here, data="mnist"), "farther": replace(here, data="fashion-mnist")}
    made = {f"smoke/{name}": Recipe(f"smoke/{name}", lambda each=each: each, None) for name, each in runs.items()}
    for module in (cli.training, cli.reproduction):
        monkeypatch.setattr(module, "RECIPES", made)

    def refuse(name, root):
        raise DataError(f"{name} cannot be fetched; put it into a folder")

    monkeypatch.setattr(cli.reproduction.datasets, "get", refuse)
    options = "--seeds", "0", "--device", "cpu", "--results", "kept", "--no-table"
    code, out, err = command("reproduce", "smoke", *options)
    assert code == 2 and "smoke/far: left out, its data cannot be had" in out
    assert all(f"{name} cannot be fetched; put it into a folder" in out for name in ("\nmnist", "fashion-mnist"))
    assert "2 rows were left out: mnist cannot be fetched; put it into a folder" in err
    assert Path("kept/smoke/here/0.json").exists() and not Path("kept/smoke/far").exists()
    code, out, err = command("reproduce", "smoke/far", *options)
    assert code == 2 and "mnist cannot be fetched" in err and "left out" not in out + err


def test_rows_that_read_a_network_follow_it_and_need_only_its_features(command, monkeypatch):
    """Trained and classified by one command; then, without the checkpoint, from the features alone; then from nothing,
    which is said.
    """
    network = RECIPES["smoke/sparsecaps"].make()
    how = {"classifier": Linear(), "fit": "generated-16/train", "n_fit": 300, "on": ("generated-16/test",)}
    read = FrozenClassifier(network=network, of="smoke/net", **how)
    claims = {"net": "test.squared_error", "read": "generated-16/test.error_percent"}
    made = {"net": lambda: network, "read": lambda: read}
    recipes = {
        f"smoke/{name}": Recipe(f"smoke/{name}", made[name], Claim(table="1", row=name, metric=claims[name]))
        for name in made
    }
    for module in (cli.training, cli.reproduction, cli.probes):
        monkeypatch.setattr(module, "RECIPES", recipes)
    options = "--seeds", "0", "--device", "cpu", "--results", "kept", "--jobs", "1"
    code, out, err = command("reproduce", "smoke", *options)
    assert code == 0, err
    result = read_result(Path("kept/smoke/read/0.json"))
    assert result["weights_sha256"] == read_result(Path("kept/smoke/net/0.json"))["weights_sha256"]
    assert result["metrics"]["generated-16/test"]["error_percent"] < 60
    assert "done, kept/smoke/read/0.json" in command("reproduce", "smoke", *options)[1]
    assert (
        "512 of generated-16/train in runs/smoke/net/0/features"
        in command("features", "smoke", "--seeds", "0", "--device", "cpu")[1]
    )
    Path("kept/smoke/read/0.json").unlink(), Path("runs/smoke/net/0/checkpoint.safetensors").unlink()
    assert command("reproduce", "smoke", *options)[0] == 0
    again = read_result(Path("kept/smoke/read/0.json"))
    assert (again["predictions"], again["weights_sha256"]) == (result["predictions"], result["weights_sha256"])
    Path("kept/smoke/read/0.json").unlink(), shutil.rmtree("runs/smoke/net")
    code, out, err = command("reproduce", "smoke", *options)
    assert (
        code == 2
        and "smoke/read seed 0: left out" in out
        and "1 rows were left out: no features of generated-16/" in err
    )
    assert command("train", "smoke/read")[0] == 2  # it trains nothing
