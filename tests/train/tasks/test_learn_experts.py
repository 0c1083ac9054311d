"""Three stages: each trains its own part and leaves the rest, and resumes to the bit."""

import json
from dataclasses import replace

import pytest
import torch

from torchcaps.data import load
from torchcaps.data.batches import Batch
from torchcaps.ops.experts import contrast, sweep
from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.results.verify import check_metrics
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256
from torchcaps.train.plain import to_plain, unlike
from torchcaps.train.recipe import Stage, stored_run
from torchcaps.train.tasks.experts import Autoencode, LearnDecoder, LearnExperts
from torchcaps.train.tasks.rbm import LearnRBM

CPU = torch.device("cpu")


def smoke(name: str = "smoke/experts"):
    return RECIPES[name].make()


def model_of(name: str = "smoke/experts"):
    torch.manual_seed(0)
    return smoke(name).build()


def batch_of(n: int = 8) -> Batch:
    data = load("generated-16", "train")
    return Batch(data.images[:n].float() / 255, data.labels[:n])


@pytest.mark.parametrize(
    ("task", "part"), [(Autoencode(), "autoencoder."), (LearnExperts(), "encoders.0."), (LearnDecoder(), "decoders.0.")]
)
def test_each_stage_trains_its_own_part(task, part):
    model = model_of()
    names = {name for name, _ in model.named_parameters() if name.startswith(part)}
    assert set(task.parameters(model)) == names != set()


def test_the_update_of_the_experts_is_algorithm_1_with_the_sign_turned():
    model, batch, task = model_of(), batch_of(), LearnExperts()
    task.init(model, batch)
    layer = model.encoders[0]
    data = layer.phase(model.primary_capsules(batch.images))
    with torch.no_grad():
        losses, gradients = task.updates(model, batch)
        wanted = contrast(data, sweep(data, layer.weight))
    assert set(gradients) == {"encoders.0.weight"}
    torch.testing.assert_close(gradients["encoders.0.weight"], -wanted)
    assert losses["on"].item() == pytest.approx(0.2, abs=1e-3)


def test_the_update_of_the_decoder_is_the_papers():
    """2 e (z x / (1 + |z|²) - z~ x~ / (1 + |z~|²)), written out for every pair."""
    model, batch = model_of(), batch_of(3)
    LearnExperts().init(model, batch)
    with torch.no_grad():
        model.decoders[0].weight.mul_(30)
        poses, z = model.below(batch.images, 0)
        x = model.encoders[0](poses).poses
        made = model.decoders[0].phase(x)
        u, e = model.decoders[0].weight, made.couplings
        again = torch.einsum("bji,jied,bid->bje", e, u, made.sums)
        square = again.square().sum(-1, keepdim=True)
        again = again * square.sqrt() / (1 + square)

        def half(sums, parents):
            slope = 2 * sums / (1 + sums.square().sum(-1, keepdim=True))
            return torch.einsum("bji,bid,bje->bjied", e, slope, parents)

        wanted = (half(z, x) - half(made.sums, again)).mean(0)
        _, gradients = LearnDecoder().updates(model, batch)
    torch.testing.assert_close(gradients["decoders.0.weight"], -wanted)


def loud_plain_numbers(size: float):
    """A model of which two of six numbers do not lie on the sphere, in the mean `size` long while a capsule is on."""
    torch.manual_seed(0)
    run = smoke()
    model, batch = replace(run, model_args=run.model_args | {"n_plain": 2}).build(), batch_of(64)
    LearnExperts().init(model, batch)
    with torch.no_grad():
        plain = model.phase(batch.images).sums[..., -2:].norm(dim=-1).mean()
        model.encoders[0].weight[..., -2:] *= size / plain
    return model, batch


def test_a_decoder_of_long_plain_numbers_learns_at_the_rate_of_the_others():
    """Nine units long, as after MNIST: read unscaled they overshoot, and nothing is finite after some ten steps."""
    model, batch = loud_plain_numbers(9.0)
    task, stage = LearnDecoder(), RECIPES["hauser2019/mnist-plain"].make().stages[-1]
    now = [torch.tensor(number) for number in stage.optimizer.numbers(0, stage.learning_rate, 1.0)]
    optimizer, missed = stage.optimizer.make(task.parameters(model).values(), now), []
    for _ in range(60):
        with torch.no_grad():
            losses, gradients = task.updates(model, batch)
        model.decoders[0].weight.grad = gradients["decoders.0.weight"]
        optimizer.step()
        missed.append(losses["loss"].item())
    assert max(missed) < 2 and missed[-1] < 0.8 * missed[0], missed
    without = model.encoders[0](model.primary_capsules(batch.images)).poses.clone()
    whole, without[..., -2:] = without.clone(), 0
    assert not torch.allclose(
        model.reconstruct(whole), model.reconstruct(without), atol=0.01
    )  # they are not merely silenced


def test_a_plain_number_is_remembered_as_it_was_while_its_capsule_was_on():
    model, batch = loud_plain_numbers(0.5)
    with torch.no_grad():
        LearnDecoder(memory=0.0).updates(model, batch)
        capsules, sums = model(batch.images), model.phase(batch.images).sums
    on = capsules.activity.unsqueeze(-1)
    torch.testing.assert_close(model.visited()[:, -2:], (on * sums[..., -2:]).sum(0) / on.sum(0))
    torch.testing.assert_close(model.visited()[:, :-2], capsules.poses[..., :-2].mean(0))


def test_chains_that_persist_move_and_need_a_model_that_keeps_them():
    model, batch = model_of("smoke/experts-persistent"), batch_of()
    before = model.chain(0).clone()
    with torch.no_grad():
        LearnExperts(persistent=True, sampled=True).updates(model, batch)
    assert not torch.equal(model.chain(0), before)
    with pytest.raises(ValueError, match="build it with n_chains"):
        LearnExperts(persistent=True).init(model_of(), batch)


def test_a_chain_whose_experts_are_all_off_is_reseeded_from_an_image():
    """Chains 1 and 3 have sent nothing; the others go on as they are."""
    model, batch, task = model_of("smoke/experts-persistent"), batch_of(3), LearnExperts(persistent=True)
    task.init(model, batch)
    model.chain(0)[[1, 3]] = 0
    with torch.no_grad():
        dreamt = sweep(model.encoders[0].phase(model.chain(0)), model.encoders[0].weight)
        task.updates(model, batch)
        images = model.primary_capsules(batch.images).poses
    awake = [n for n in range(len(model.chain(0))) if n not in (1, 3)]
    torch.testing.assert_close(model.chain(0)[awake], dreamt.poses[awake])
    assert dreamt.poses[awake].any() and not dreamt.poses[[1, 3]].any()
    torch.testing.assert_close(model.chain(0)[[1, 3]], images[[1, 0]])  # the fourth of three images is the first


def stored_experts(**fields) -> dict:
    """A run as a file holds it, with these fields of its task."""
    stage = to_plain(Stage()) | {"task": to_plain(LearnExperts()) | fields}
    return to_plain(smoke()) | {"stages": [stage]}


@pytest.mark.parametrize(("persistent", "restart"), [(False, False), (True, True)])
def test_a_stored_restart_is_read_where_it_says_what_persistent_says(persistent, restart):
    run = replace(smoke(), stages=(Stage(task=LearnExperts(persistent=persistent)),))
    stored = stored_experts(persistent=persistent, restart=restart)
    assert unlike(stored, run) == [] and stored_run(stored) == run
    assert unlike(stored, replace(run, stages=(Stage(task=LearnExperts(persistent=not persistent)),)))


def test_a_stored_run_whose_persistent_chains_were_not_reseeded_is_stale_and_refused():
    stored = stored_experts(persistent=True, restart=False)
    assert unlike(stored, replace(smoke(), stages=(Stage(task=LearnExperts(persistent=True)),)))
    with pytest.raises(ValueError, match="restart"):
        stored_run(stored)


def test_longer_chains_and_drawn_magnitudes_give_other_updates():
    model, batch = model_of(), batch_of()
    LearnExperts(start_length=0.5).init(model, batch)
    tasks = LearnExperts(), LearnExperts(sweeps=5), LearnExperts(sampled=True), LearnExperts(sparse=1.0)
    with torch.no_grad():
        found = [task.updates(model, batch)[1]["encoders.0.weight"] for task in tasks]
    assert all(not torch.allclose(found[0], other, rtol=0.01) for other in found[1:])


def test_the_papers_first_weights_are_kept_if_wanted_and_their_dream_is_nothing():
    model, batch = model_of(), batch_of()
    before = model.encoders[0].weight.clone()
    LearnExperts(start_length=None).init(model, batch)
    assert torch.equal(model.encoders[0].weight, before)
    with torch.no_grad():
        losses, _ = LearnExperts().updates(model, batch)
    assert losses["dreamt_on"] < 1e-8 and losses["loss"].item() == pytest.approx(1, abs=1e-3)


def test_a_probe_looks_and_touches_nothing():
    model, batch = model_of("smoke/experts-persistent"), batch_of()
    before = tensors_sha256(model.state_dict())
    found = LearnExperts().probe(model, batch.images)
    with torch.no_grad():
        losses, _ = LearnExperts().updates(model, batch)
    assert tensors_sha256(model.state_dict()) == before and model.training
    assert found == pytest.approx(
        {
            "probed_on": losses["on"].item(),
            "probed_dreamt_on": losses["dreamt_on"].item(),
            "probed_missed": losses["loss"].item(),
        }
    )
    assert 0 < found["probed_dreamt_on"] < 1e-20  # the paper's initialisation


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return train(smoke(), name="smoke/experts", seed=0, options=Options(out=out, progress=False, save_every=3)), out


def test_a_run_of_three_stages_remembers_where_capsules_pointed_and_is_verified(trained):
    run, (finished, _) = smoke(), trained
    assert finished.steps == 20 and set(finished.evaluations) == {"test"}
    assert finished.model.visited().any() and finished.model.loudness(0) != 1
    result = json.loads(json.dumps(make_result("smoke/experts", 0, run, finished)))
    assert [check.passed for check in check_metrics(result, run, None)] == [True]


def test_later_stages_leave_earlier_parts_alone(trained, tmp_path):
    """Stopped at the end of the first stage: the filters are those of the end."""
    train(smoke(), name="smoke/experts", seed=0, options=Options(out=tmp_path, progress=False, max_steps=6))
    early, late = (load_checkpoint(out / "checkpoint.safetensors").part("model") for out in (tmp_path, trained[1]))
    same = {name for name in early if torch.equal(early[name], late[name])}
    assert same == {name for name in early if name.startswith("autoencoder.")}


@pytest.mark.parametrize("name", ["smoke/experts", "smoke/experts-persistent"])
def test_a_resumed_run_ends_with_the_same_bits(name, trained, tmp_path):
    """Stopped within each stage and at the end of one; chains and drawn magnitudes go on as they would have."""
    whole = trained[1] if name == "smoke/experts" else tmp_path / "whole"
    for out, stops in ((whole, (None,)), (tmp_path / "parts", (4, 6, 9, 15, None))):
        for stop in stops:
            train(
                smoke(name), name=name, seed=0, options=Options(out=out, progress=False, save_every=3, max_steps=stop)
            )
    one, other = (load_checkpoint(out / "checkpoint.safetensors").tensors for out in (whole, tmp_path / "parts"))
    assert tensors_sha256(one) == tensors_sha256(other)


def test_samples_are_judged_where_it_is_asked_for(monkeypatch):
    called = []
    monkeypatch.setattr("torchcaps.train.tasks.experts.study", lambda *args: called.append(args[-2:]) or {"n_pure": 3})
    data = load("generated-16", "test")
    assert LearnDecoder().study(model_of(), data, data, CPU, (), 0) == {} and not called
    assert LearnDecoder(samples=7).study(model_of(), data, data, CPU, (), 0) == {"n_pure": 3} and called == [(7, 1500)]
    assert (
        LearnDecoder(samples=500).quick() == LearnDecoder(samples=2, judge_steps=2)
        and LearnDecoder().quick().samples == 0
    )


def test_neurons_learn_by_contrast(tmp_path):
    run = smoke("smoke/rbm")
    last = replace(run.stages[1], steps=60, learning_rate=0.003)
    finished = train(
        replace(run, stages=(run.stages[0], last)),
        name="x",
        seed=0,
        options=Options(out=tmp_path, progress=False, log_every=10),
    )
    losses = [line["loss"] for line in finished.curve if line["step"] > 10]
    assert isinstance(last.task, LearnRBM) and losses[-1] < 0.95 * losses[0], losses
    assert finished.extras["probe_accuracy"] > 30
