"""Sentences trained and judged: losses of mixed sentences, the curve of figure 8, and the loop with a window."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from torchcaps.data import load
from torchcaps.data.batches import SentenceBatch, embeddings, sentences_in_order
from torchcaps.data.batches.embeddings import InMemory, Window
from torchcaps.data.batches.sentences import mixed
from torchcaps.models import EMSentenceNet, PooledSentences
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train
from torchcaps.train.evaluate import sample
from torchcaps.train.recipe import Watch
from torchcaps.train.tasks.sentences import ClassifySentences

CPU = torch.device("cpu")
TASK = ClassifySentences()


@pytest.fixture
def batch(rng):
    present = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    return SentenceBatch(
        torch.randn(3, 4, 3, 8, generator=rng) * present[..., None, None], present, torch.tensor([0, 4, 2])
    )


def net() -> EMSentenceNet:
    model = EMSentenceNet(3, 8, 5, d_features=6, n_parts=5)
    for name, parameter in model.named_parameters():
        if "beta" in name:
            torch.nn.init.normal_(parameter)
    return model


def test_mixed_sentences_are_held_against_both_labels_by_their_shares(batch):
    model, shares = net(), torch.tensor([0.25, 1.0, 0.75])
    both = mixed(batch, shares)
    logs = log_softmax(model(both.embeddings, both.present).logit, -1)
    wanted = -(0.25 * logs[0, 0] + 0.75 * logs[0, 4] + logs[1, 4] + 0.75 * logs[2, 2] + 0.25 * logs[2, 0]) / 3
    torch.testing.assert_close(TASK.losses(model, both)["loss"], wanted)


def test_scores_of_mixed_masks_are_log_odds(batch):
    """Figure 5(d): log(x / (1 - x)), so that the share x of the token is there; all layers of a token alike."""
    both = mixed(batch, torch.tensor([0.25, 0.5, 0.5]))
    scores = net().primary_capsules(both.embeddings, both.present).score.unflatten(1, (4, 3))
    assert torch.equal(scores[..., 0], scores[..., 2])
    torch.testing.assert_close(scores[0, :, 0].sigmoid(), torch.tensor([1.0, 1.0, 1.0, 0.75]))
    torch.testing.assert_close(scores[0, 3, 0], torch.tensor(3.0).log())
    assert scores[0, 0, 0] == torch.inf and scores[2, :, 0].sigmoid().tolist() == [1.0, 0.5, 0.5, 0.0]


def test_evaluation_is_of_every_sentence_whatever_its_batch():
    data, model = load("generated-sentences", "test"), net()
    found = TASK.evaluate(model, data, CPU)
    with torch.no_grad():
        scores = torch.cat([model(batch.embeddings, batch.present).logit for batch in sentences_in_order(data, 7, CPU)])
    torch.testing.assert_close(found.answers, scores)
    right = (scores.argmax(-1) == data.labels).float()
    assert found.metrics["accuracy_percent"] == pytest.approx(100 * right.mean().item())
    assert found.metrics["accuracy_percent"] + found.metrics["error_percent"] == pytest.approx(100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "n_iters"), [("aot_eager", 2), pytest.param("inductor", 3, marks=pytest.mark.slow)]
)
def test_the_loss_compiles_whole_and_says_the_same(batch, fresh_dynamo, backend, n_iters):
    """As the step on CUDA needs it: no break in the graph, mixed masks included."""
    model, both = net(), mixed(batch, torch.tensor([0.25, 1.0, 0.75]))
    model.parts.n_iters = model.classes.n_iters = n_iters
    compiled = torch.compile(lambda part: TASK.losses(model, part), backend=backend, fullgraph=True)(both)
    plain = TASK.losses(model, both)
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(plain["loss"], list(model.parameters()))
    torch.testing.assert_close(
        torch.autograd.grad(compiled["loss"], list(model.parameters())), wanted, rtol=1e-3, atol=1e-5
    )
    assert all(gradient.isfinite().all() for gradient in wanted)


@pytest.fixture
def run():
    run = RECIPES["smoke/em-sentences"].make()
    return replace(run, stages=(replace(run.stages[0], steps=None, epochs=3, batch=64, ema=0.0),))


def test_every_epoch_is_watched_for_figure_8_and_the_test_set_is_seen_once(run, tmp_path):
    run = replace(run, stages=(replace(run.stages[0], batch=16, epochs=2, watch=Watch(part="validation")),))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    lines = [line for line in trained.curve if "watched_validation_loss" in line]
    assert [(line["step"], line["epoch"]) for line in lines] == [(32, 1), (64, 2)]
    assert not any(name.startswith(("test_", "watched_test")) for line in trained.curve for name in line)
    assert [line["step"] for line in trained.curve if "validation_error_percent" in line] == [64], (
        "once, since it is watched"
    )
    judged, labels = trained.evaluations["validation"], load(run.data, "validation").labels
    losses = cross_entropy(judged.answers, labels, reduction="none")
    assert lines[-1]["watched_validation_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert lines[-1]["watched_validation_error_percent"] == pytest.approx(judged.metrics["error_percent"])
    batches = losses[torch.randperm(64, generator=torch.Generator().manual_seed(82019))].view(4, 16).mean(1)
    assert lines[-1]["watched_validation_loss_sd"] == pytest.approx(batches.std().item(), rel=1e-4)
    assert set(trained.evaluations) == {"test", "validation"}
    assert trained.extras["encoder"] == "generated" and len(trained.extras["encoder_weights_sha256"]) == 64


def test_some_sentences_are_watched_with_their_own_labels():
    data = load("generated-sentences", "validation")
    some = sample(data, 10)
    labels = dict(zip(data.texts, data.labels.tolist(), strict=True))
    assert len(some.texts) == 10 and [labels[text] for text in some.texts] == some.labels.tolist()
    assert sample(data, 64) is data, "or its embeddings would be computed twice"


def test_embeddings_computed_ahead_of_the_steps_train_the_same(run, tmp_path, monkeypatch):
    """And a run that is stopped within an epoch goes on with the sentences that it would have seen."""
    whole = train(run, name="x", seed=0, options=Options(out=tmp_path / "one", progress=False, log_every=1))
    made = []

    def windowed(encoder, tokens, device, batch):
        ahead = batch == 64  # of the training
        made.append(
            Window(encoder, tokens, batch, device, room=3 * 64 * 9 * 3 * 8 * 2)
            if ahead
            else InMemory.of(encoder, tokens, device)
        )
        return made[-1]

    monkeypatch.setattr(embeddings, "_make", windowed)
    train(run, name="x", seed=0, options=Options(out=tmp_path / "two", progress=False, log_every=1, max_steps=11))
    again = train(run, name="x", seed=0, options=Options(out=tmp_path / "two", progress=False, log_every=1))
    assert any(isinstance(store, Window) and store.n_steps < 8 for store in made)
    losses = [[line["loss"] for line in trained.curve if "loss" in line] for trained in (whole, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 24


def test_a_mean_is_over_tokens_and_counts_parts_of_them(rng):
    """Layer by layer, normalised; padding may hold anything."""
    model = PooledSentences(2, 4, 3)
    tokens = torch.randn(1, 3, 2, 4, generator=rng)
    padded = torch.cat([tokens, torch.full((1, 2, 2, 4), torch.nan)], 1)
    present = torch.tensor([[1, 1, 1, 0, 0]])
    wanted = torch.nn.functional.layer_norm(tokens.mean(1), (4,)).flatten(1)
    torch.testing.assert_close(model.features(padded, present), wanted)
    torch.testing.assert_close(model.features(tokens), wanted)
    torch.testing.assert_close(model(tokens, present[:, :3].bool()), model.classes(wanted))
    last = PooledSentences(2, 4, 3, layers="last")
    torch.testing.assert_close(last.features(padded, present), wanted[:, 4:])
    # a mixture of a sentence of two words with one of one word: shares of tokens, over the sum of shares
    two, one = torch.randn(2, 2, 4, generator=rng), torch.randn(1, 2, 4, generator=rng)
    blend = torch.stack([0.5 * two[0] + 0.5 * one[0], 0.5 * two[1]])[None]
    wanted = torch.nn.functional.layer_norm((0.5 * two.sum(0) + 0.5 * one[0]) / 1.5, (4,)).flatten()
    torch.testing.assert_close(model.features(blend, torch.tensor([[1.0, 0.5]]))[0], wanted)


def test_sizes_and_wrong_settings():
    assert sum(p.numel() for p in PooledSentences(13, 768, 5).parameters()) == 13 * 768 * 5 + 5
    assert (
        sum(p.numel() for p in PooledSentences(13, 768, 2, hidden=(256,)).parameters())
        == 13 * 768 * 256 + 256 + 256 * 2 + 2
    )
    with pytest.raises(ValueError, match="layers must be one of all, last; got 'first'"):
        PooledSentences(2, 4, 3, layers="first")
    with pytest.raises(
        ValueError, match=r"PooledSentences expects embeddings \[b, at least one token, 2 layers, 4 dimensions\]"
    ):
        PooledSentences(2, 4, 3)(torch.zeros(1, 3, 2, 5))


@pytest.mark.parametrize(
    ("name", "n"), [("sst5-gpt2-large", 140_480), ("sst2-gpt2-large", 138_944), ("sst5", 70_336), ("sst2", 68_800)]
)
def test_the_papers_network_has_the_papers_size(name, n):
    with torch.device("meta"):
        assert sum(p.numel() for p in RECIPES[f"heinsen2019/{name}"].make().build().parameters()) == n
