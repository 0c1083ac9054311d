"""A folder of images, as a user takes it: train, eval, figures, predict, export."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import refuses, run

from torchcaps import cli
from torchcaps.cli.image_folder import tell_by_class
from torchcaps.data import OwnImages
from torchcaps.data.augment import Flip, Warp
from torchcaps.data.sets.generated import generate
from torchcaps.data.sets.image_folder import survey
from torchcaps.integrations.image_folder import at_chance, by_class, mean_over_classes, own_run
from torchcaps.results.store import read_result

Image = pytest.importorskip("PIL.Image", reason="pip install 'torchcaps[experiments]'")

NAMES = ["flat", "steep", "ring"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of generated images, 16x16: 30, 30 and 8."""
    home = tmp_path_factory.mktemp("own") / "bars"
    images, labels = generate(300, 16, torch.Generator().manual_seed(0))
    for label, name, most in zip((0, 3, 7), NAMES, (30, 30, 8), strict=True):
        (home / name).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == label][:most]):
            Image.fromarray(pixels[0].numpy()).save(home / name / f"{number:02}.png")
    return home


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: run(capsys, monkeypatch, *map(str, words))


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """The folder of one finished run, and what the command said."""
    out = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        said = io.StringIO()
        patch.setattr(
            "sys.argv",
            ["torchcaps", "train", "--data", str(folder), "--out", str(out), "--device", "cpu", "--epochs", "12"],
        )
        patch.setattr(cli.console, "_width", 300)
        patch.setattr(cli.console, "_file", said)
        with contextlib.suppress(SystemExit):
            cli.main()
    return out, said.getvalue()


def test_training_says_what_is_there_and_what_becomes_of_it(trained):
    out, said = trained
    assert (out / "checkpoint.safetensors").exists(), said
    assert "images of 16x16 pixels become 16x16, grey" in said
    assert "the largest class has 4.0 times as many images as the smallest: classes are sampled equally often" in said
    assert "20% of every class is held out for testing; one image is 50 % of the smallest test class" in said
    result = read_result(out / "result.json")
    assert {name: one["n"] for name, one in result["extras"]["by_class"].items()} == {"flat": 6, "ring": 2, "steep": 6}
    assert result["data"]["name"] == "own images"
    assert result["metrics"]["test"]["error_percent"] < 30  # 57 by chance


def test_the_same_command_does_not_train_again_and_another_folder_is_another_run(command, trained, folder):
    out, _ = trained
    code, said, err = command("train", "--data", folder, "--out", out, "--device", "cpu", "--epochs", "12")
    assert code == 0, err
    assert "mean over the classes" in said
    refuses(
        command("train", "--data", folder, "--out", out, "--device", "cpu", "--epochs", "11"),
        "belongs to another run",
        "epochs",
    )


def test_a_checkpoint_is_evaluated_drawn_and_asked(command, trained, folder, tmp_path):
    checkpoint = trained[0] / "checkpoint.safetensors"
    code, said, err = command("eval", checkpoint, "--data", folder, "--device", "cpu")
    assert code == 0, err
    assert "mean over the classes" in said and "steep" in said
    code, said, err = command("eval", checkpoint, "--on", folder, "--device", "cpu")
    assert code == 0 and "│ 30" in said, err  # all of the folder
    refuses(
        command("eval", checkpoint, "--device", "cpu"),
        "trained on images of your own; say where they lie with --data FOLDER",
    )
    pictures = [folder / "flat" / "00.png", folder / "ring" / "01.png"]
    code, said, err = command("predict", checkpoint, *pictures, folder / "steep", "--device", "cpu", "--best", "1")
    assert code == 0, err
    lines = said.splitlines()
    assert len(lines) == 32
    assert lines[0].startswith(f"{pictures[0]}: flat 0.")
    assert sum(": steep" in line for line in lines) > 20


def test_what_predict_cannot_do_is_said(command, trained, tmp_path):
    checkpoint = trained[0] / "checkpoint.safetensors"
    refuses(command("predict", checkpoint, "nowhere.png"), "there is no image nowhere.png")
    (tmp_path / "bad.png").write_text("")
    refuses(
        command("predict", checkpoint, tmp_path / "bad.png"),
        "bad.png: not an image that Pillow can read",
        "give another file",
    )
    (tmp_path / "none").mkdir()
    refuses(command("predict", checkpoint, tmp_path / "none"), "holds no images")


def test_predict_skips_a_bad_file_and_the_exit_code_says_so(command, trained, folder, tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name in ("00.png", "02.png"):
        (mixed / name).write_bytes((folder / "flat" / name).read_bytes())
    (mixed / "01.png").write_bytes((folder / "flat" / "01.png").read_bytes()[:60])
    code, said, err = command("predict", trained[0] / "checkpoint.safetensors", mixed, "--device", "cpu")
    assert code == 1 and "Traceback" not in err
    assert [line.split(":")[0] for line in said.splitlines()] == [str(mixed / "00.png"), str(mixed / "02.png")]
    assert "1 of 3 images cannot be read and were skipped:" in err and f"{mixed / '01.png'}: not an image" in err


def test_predict_prints_an_object_per_image_for_scripts(command, trained, folder, tmp_path):
    (tmp_path / "bad.png").write_bytes((folder / "flat" / "01.png").read_bytes()[:60])
    files = [folder / "flat" / "00.png", tmp_path / "bad.png"]
    checkpoint = trained[0] / "checkpoint.safetensors"
    code, said, err = command("predict", checkpoint, *files, "--device", "cpu", "--best", "2", "--json")
    assert code == 1 and "1 of 2 images" in err
    good, bad = json.loads(said)
    assert good["path"] == str(files[0]) and good["classes"][0] == "flat" and len(good["classes"]) == 2
    assert 1 > good["probabilities"][0] > good["probabilities"][1] > 0
    assert bad.keys() == {"path", "error"} and bad["path"] == str(files[1]) and "not an image" in bad["error"]


def test_the_class_that_is_always_answered_is_quoted_within_80_columns(capsys, monkeypatch):
    monkeypatch.setattr(cli.console, "_width", 80)
    always, labels = torch.zeros(9, dtype=torch.long), torch.arange(9) // 3
    for name, quoted in (("a", '"a"'), ("cat of the neighbours " * 4, '"cat of the neighbours cat of…"')):
        tell_by_class(always, labels, OwnImages(classes=(name, "b", "c"), shape=(1, 16, 16), n_train=9, n_test=9))
        lines = capsys.readouterr().out.splitlines()[-2:]
        assert lines[0].startswith("at chance: ") and lines[1].endswith(f"the answer is always {quoted}"), lines
        assert max(map(len, lines)) <= 80


def test_a_training_that_ends_at_chance_says_so_in_train_and_eval(command, folder, trained, tmp_path):
    advice = "at chance: try more --epochs, a lower --learning-rate or more images"
    assert advice not in trained[1]
    settings = ["--epochs", "1", "--learning-rate", "1e-9", "--batch-size", "8", "--augment", "none", "--device", "cpu"]
    code, said, err = command("train", "--data", folder, "--out", tmp_path / "out", *settings)
    assert code == 0 and said.count(advice) == 1 and "guessing gives 33.3 %" in said, err
    run = read_result(tmp_path / "out/result.json")["run"]
    assert (run["stages"][0]["batch"], run["stages"][0]["learning_rate"], run["augment"]) == (8, 1e-9, [])
    code, said, err = command("eval", tmp_path / "out/checkpoint.safetensors", "--data", folder, "--device", "cpu")
    assert code == 0 and said.count(advice) == 1 and "error_percent" not in said, err


@pytest.mark.parametrize(
    ("said", "guessing"),
    [("aaaaaaaaa", True), ("abcabcabc", True), ("aaabbbccc", False), ("aaabbbaaa", False)],
)
def test_chance_is_one_answer_always_or_no_more_than_guessing(said, guessing):
    """Three images of each of three classes; two classes right and the third never is more than guessing."""
    predictions, labels = torch.tensor(["abc".index(one) for one in said]), torch.arange(9) // 3
    assert at_chance(by_class(predictions, labels, tuple("abc")), predictions) == guessing


def test_settings_for_own_images_and_recipes_do_not_mix(command, folder):
    refuses(command("train"), "give a recipe", "--data FOLDER")
    refuses(command("train", "--data", folder, "--quick"), "--data FOLDER alone, without --quick")
    refuses(command("train", "--data", folder, "--hold-out", "10"), "--data FOLDER alone, without --hold-out")
    refuses(command("train", "smoke/capsnet", "--size", "16"), "--size is for images of your own")
    refuses(command("train", "--data", folder, "--model", "baseline"), "--model must be one of capsnet, em-capsnet")
    refuses(command("train", "smoke/capsnet", "--routing", "em"), "--routing is for images of your own")
    refuses(command("train", "--data", folder, "--routing", "hard"), "routing must be one of dynamic,", "'hard'")
    both = "--model", "em-capsnet", "--routing", "em"
    refuses(command("train", "--data", folder, *both), "--routing swaps that of capsnet", "leave out one")
    refuses(command("train", "smoke/capsnet", "--batch-size", "16"), "--batch-size is for images of your own")
    refuses(command("train", "--data", folder, "--epochs", "0"), "--epochs must be 1 or more")
    refuses(command("train", "--data", folder, "--learning-rate", "0"), "--learning-rate must be more than 0, got 0")
    refuses(command("train", "--data", folder, "--augment", "shift,spin"), "--augment takes shift, flip,", "'spin'")


def test_export_wants_to_know_what_to_write(command, trained, tmp_path):
    refuses(
        command("export", trained[0] / "checkpoint.safetensors"), "--onnx net.onnx, --program net.pt2, --web FOLDER"
    )
    refuses(command("export", "--onnx", "net.onnx"), "write one network, got 0 checkpoints; give one")
    refuses(command("export", "a", "b", "--program", "net.pt2"), "got 2 checkpoints")
    refuses(command("export", "a", "--onnx", "net.onnx", "--runtime", "x.tgz"), "give --web FOLDER too")
    (taken := tmp_path / "taken").write_text("")
    refuses(command("export", "a", "--onnx", taken / "net.onnx"), f"{taken} is a file; name another folder")
    refuses(command("export", "--web", taken), f"{taken} is a file; name another folder")


def test_few_pictures_are_shown_more_often(folder):
    data = survey(folder, 0).data
    few, many = own_run(data), own_run(data.__class__(**{**vars(data), "n_train": 100_000}))
    assert few.stages[0].epochs == 800  # one batch of 32 in an epoch
    assert many.stages[0].epochs == 20
    assert not own_run(data, balance=False).stages[0].balanced
    assert own_run(data, augment="flip, warp").augment == (Flip(), Warp())


@pytest.mark.parametrize("size", [16, 17, 28, 32, 64, 100])
@pytest.mark.parametrize("model", ["capsnet", "em-capsnet"])
def test_both_networks_fit_every_size(folder, size, model):
    data = survey(folder, 0).data
    made = own_run(data.__class__(**{**vars(data), "shape": (3, size, size)}), model)
    with torch.device("meta"):
        assert 1 < max(made.build().grid) <= (42 if model == "capsnet" else 8)


def test_numbers_by_class():
    said, labels = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 1])
    found = by_class(said, labels, ("a", "b", "never"))
    assert {name: tuple(one) for name, one in found.items()} == {"a": (1, 1), "b": (4, 3), "never": (0, 0)}
    assert mean_over_classes(found) == pytest.approx(100 * (1 + 0.75) / 2)
    assert np.isnan(found["never"].percent)


def test_own_images_are_trained_with_a_routing_by_name(command, folder):
    code, _, err = command("train", "--data", folder, "--routing", "em", "--device", "cpu", "--epochs", "1")
    place = f"runs/own/{folder.name}-capsnet-em/0"
    assert code == 0, err
    stored = read_result(Path(place, "result.json"))["run"]
    assert stored["model_args"]["routing"] == "em" and stored["stages"][0]["task"]["kind"] == "ClassifyScores"
    code, said, err = command("predict", f"{place}/checkpoint.safetensors", folder / "flat" / "00.png")
    shares = [float(part.split()[-1]) for part in said.split(": ")[1].split(", ")]
    assert code == 0 and sum(shares) == pytest.approx(1, abs=2e-3), err  # of a softmax


@pytest.mark.slow
def test_em_routing_shows_which_places_it_used(command, folder, tmp_path):
    out = tmp_path / "em"
    code, _, err = command(
        "train", "--data", folder, "--model", "em-capsnet", "--out", out, "--device", "cpu", "--epochs", "8"
    )
    assert code == 0, err
    code, _, err = command(
        "explain", out / "checkpoint.safetensors", "--data", folder, "--out", tmp_path, "--device", "cpu"
    )
    assert code == 0 and (tmp_path / "places.png").exists(), err


def test_names_with_brackets_and_colons_are_told_as_they_are(command, folder, tmp_path):
    """Rich would take them for colours and images, and a path without them leads nowhere."""
    place = tmp_path / "birds [new] :cat:"
    for name, source in (("[bold]a", "flat"), ("b", "steep")):
        (place / name).mkdir(parents=True)
        for number, path in enumerate(sorted((folder / source).iterdir())[:5]):
            (place / name / f"{number}.png").write_bytes(path.read_bytes())
    code, out, errors = command("train", "--data", place, "--epochs", 1, "--device", "cpu")
    assert code == 0
    assert (tmp_path / "runs/own/birds [new] :cat:-capsnet/0/checkpoint.safetensors").exists()
    assert "checkpoint: runs/own/birds [new] :cat:-capsnet/0/checkpoint.safetensors" in out
    assert "own/birds [new] :cat:-capsnet seed 0, test:" in out and out.count("[bold]a ") == 2
    assert "own/birds [new] :cat:-capsnet seed 0 on" in errors
