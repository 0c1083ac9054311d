"""The tokens of a sentence that a class used, and figure 8."""

import json
import sys

import pytest
import torch

from torchcaps.cli import main
from torchcaps.data import load
from torchcaps.data.sets.sst import GeneratedEncoder
from torchcaps.figures import all_figures
from torchcaps.figures.sentence_map import Explained, explain, sentence_map
from torchcaps.models import EMSentenceNet, PooledSentences
from torchcaps.papers import RECIPES
from torchcaps.papers.heinsen2019.figures import figures
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain


@pytest.fixture
def model():
    model = EMSentenceNet(3, 8, 5, d_features=6, n_parts=4)
    for name, parameter in model.named_parameters():
        if "beta" in name or name == "depth":
            torch.nn.init.normal_(parameter)
    return model


def test_what_classes_use_is_what_reached_them_through_the_parts(model, rng):
    """Path by path, from the last pass of both layers of routing."""
    embeddings, present = torch.randn(2, 4, 3, 8, generator=rng), torch.tensor([[1.0, 1, 0.5, 0], [1, 1, 1, 1]])
    used = model.used(embeddings, present)
    primary = model.primary_capsules(embeddings, present)
    *_, first = model.parts.steps(primary)
    *_, second = model.classes.steps(model.parts(primary))
    for b, k, n, layer in ((0, 3, 2, 1), (1, 0, 3, 2)):
        wanted = sum(first.used[b, n * 3 + layer, j] * second.used[b, j, k] for j in range(4))
        torch.testing.assert_close(used[b, k, n, layer], wanted)
    assert not used[0, :, 3].any() and used.min() >= 0
    assert (used.sum(1) <= present[..., None] + 1e-6).all()


def test_a_sentence_is_explained_word_by_word(model):
    seen = explain(model, GeneratedEncoder(), "the film is great")
    assert seen.words == ["the", "film", "is", "great", "[end]"]
    assert seen.used.shape == (5, 5, 3)
    assert seen.shares.sum().item() == pytest.approx(1, abs=1e-6)
    figure, caption = sentence_map(seen)
    cells, others = figure.axes[1:3]
    assert [label.get_text() for label in others.get_xticklabels()] == seen.words
    more = seen.used[seen.answer] - seen.used.mean(0)
    torch.testing.assert_close(torch.as_tensor(others.images[0].get_array().filled()), more.T)
    assert torch.equal(torch.as_tensor(cells.images[0].get_array().filled()), seen.used[seen.answer].T)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx(seen.used[seen.answer].sum(1).tolist())
    assert "Predicted: " in caption


def test_the_caption_names_the_most_used_token():
    used = torch.zeros(2, 3, 4)
    used[1, 2, 3] = 0.5
    _, caption = sentence_map(Explained(["a", "dull", "film"], torch.tensor([0.2, 0.8]), used))
    assert "“positive” used 4.2 % of all embeddings, most of 'film' in layer 3 (50.0 %)" in caption
    with pytest.raises(ValueError, match="there are classes 0 to 1; got 2"):
        sentence_map(Explained(["a"], torch.tensor([0.2, 0.8]), used[:, :1]), 2)


def test_only_routing_can_tell():
    with pytest.raises(ValueError, match="PooledSentences has none"):
        explain(PooledSentences(3, 8, 5), GeneratedEncoder(), "dull")


def test_the_command_and_the_report(tmp_path, monkeypatch, capsys):
    run = RECIPES["smoke/em-sentences"].make()
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    checkpoint = tmp_path / "checkpoint.safetensors"

    def ask(*words: str, code: int) -> None:
        monkeypatch.setattr(
            sys,
            "argv",
            ["torchcaps", "explain", str(checkpoint), "--out", str(tmp_path / "out"), "--device", "cpu", *words],
        )
        with pytest.raises(SystemExit, match=str(code)):
            main()

    ask("--sentence", "a dull film", "--label", "0", code=0)
    assert "“very negative” used" in (tmp_path / "out/captions.md").read_text()
    assert (tmp_path / "out/sentence_1.png").read_bytes().startswith(b"\x89PNG")
    ask("--test", "3", code=0)
    ask("--sentence", " ", code=2)
    assert capsys.readouterr().err == "torchcaps: sentence 1 of 1 is empty; give it a word, or leave it out\n"
    ask("--image", "x.png", code=2)
    assert "is a network for sentences: give --sentence or --test instead of --image" in capsys.readouterr().err
    ask("--test", "128", code=2)
    assert "generated-sentences has 128 test sentences, numbered from 0; got 128" in capsys.readouterr().err
    drawn = all_figures(trained.model, load(run.data, "test"), trained.curve)
    assert list(drawn) == ["learning_curve", "sentence_1", "sentence_2", "sentence_3"]


def result(seed: int, losses, run) -> dict:
    named = ("loss", "loss_sd", "error_percent", "error_percent_sd")
    numbers = {n: dict(zip(named, (loss, 0.1, 50 - n, 5.0), strict=True)) for n, loss in enumerate(losses, start=1)}
    curve = [
        {"step": 10 * n, "epoch": n} | {f"watched_validation_{name}": x for name, x in some.items()}
        for n, some in numbers.items()
    ]
    parts = {"metrics": {"test": {"accuracy_percent": 50.0}}, "predictions": {}, "data": {}}
    return {
        "recipe": "heinsen2019/sst5",
        "seed": seed,
        "run": run,
        "curve": [{"step": 5, "loss": 9.0}, *curve],
        **parts,
    }


def test_figure_8_shows_sentences_of_todays_results_alone(tmp_path):
    run = to_plain(RECIPES["heinsen2019/sst5"].make())
    folder = tmp_path / "heinsen2019" / "sst5"
    folder.mkdir(parents=True)
    (folder / "0.json").write_text(json.dumps(result(0, [3.0, 2.0, 1.5], run)))
    (folder / "1.json").write_text(json.dumps(result(1, [1.0, 1.0, 1.0], run | {"keep_scores": True})))
    made = figures(tmp_path, tmp_path / "runs", tmp_path, torch.device("cpu"))
    assert list(made) == ["figure-8"]
    figure, caption = made["figure-8"]
    loss, accuracy = figure.axes
    assert loss.lines[-1].get_xdata().tolist() == [1, 2, 3] and loss.lines[-1].get_ydata().tolist() == [3.0, 2.0, 1.5]
    assert accuracy.lines[-1].get_ydata().tolist() == [51, 52, 53]
    band = loss.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(1.4) and band.max() == pytest.approx(3.1)
    assert "1,101 validation sentences (SST-5)" in caption and "SST-5 53.00 % after 3 epochs" in caption
    assert figures(tmp_path / "none", tmp_path, None, torch.device("cpu")) == {}
