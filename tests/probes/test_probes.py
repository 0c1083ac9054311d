"""Probes: from a finished network to a verified result, with features from files, and nothing from half a run."""

import json
from dataclasses import replace

import pytest
import torch

from torchcaps.analysis.attacks import frozen, lead_of_the_wrong
from torchcaps.data import load
from torchcaps.papers import RECIPES
from torchcaps.probes.attack import _answering
from torchcaps.probes.classifier import Linear, Svm
from torchcaps.probes.features import Missing, Seen, _keep, _kept, look, network, require
from torchcaps.probes.kinds import Attack, FrozenClassifier, stored
from torchcaps.results.store import make_result, unpack
from torchcaps.results.verify import check_metrics
from torchcaps.train import Options, train
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run

pytest.importorskip("sklearn")
CPU = torch.device("cpu")
SMALL = {"channels": 8, "n_types": 2, "hidden": (8, 8), "kernel": 5, "primary_kernel": 5}
PROBES = [name for name, recipe in RECIPES.items() if isinstance(recipe.make(), FrozenClassifier)]
MASKED = {"features": "masked", "n_fit": 20_000}
# probes that no row has: by a row's name, and what is changed in it
OTHERS = {
    "linear": ("mnist-sparse-svm", {"classifier": Linear()}),
    "narrow-pixels": ("pixels-wide-svm-a", {"classifier": Svm()}),
    "attack-masked": ("attack-sparse", MASKED),
}


def small(name: str) -> FrozenClassifier:
    row, changes = OTHERS.get(name, (name, {}))
    probe = replace(RECIPES[f"rawlinson2018/{row}"].make(), **changes)
    probe = replace(probe, network=shrunk(probe.network))
    if isinstance(probe, Attack) and probe.source:
        probe = replace(probe, source=replace(probe.source, network=shrunk(probe.source.network)))
    return probe.quick(6)


def shrunk(run: Run) -> Run:
    return replace(run, model_args=run.model_args | SMALL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The networks that the probes below look at, each trained for six steps."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("mnist-sparse-svm", "attack-supervised"):
        probe = small(name)
        train(probe.network, name=probe.of, seed=0, options=Options(out=folder / probe.of / "0", progress=False))
    return folder


def options(folder, name: str) -> Options:
    return Options(out=folder / name / "0", progress=False, rows=lambda of, seed: folder / of / str(seed))


def carried_out(folder, name: str):
    probe = small(name)
    found = probe.execute(name, 0, options(folder, name))
    return probe, found, json.loads(json.dumps(make_result(name, 0, probe, found)))


def test_every_probe_names_a_row_that_trains_and_has_its_run():
    assert len(PROBES) >= 20
    for name in PROBES:
        probe = RECIPES[name].make()
        if probe.features != "pixels":
            assert RECIPES[probe.of].make() == probe.network, name
        assert isinstance(probe, Attack) or RECIPES[name].claim.metric == f"{probe.on[0]}.error_percent"
        if isinstance(probe, Attack) and probe.source:
            assert RECIPES[probe.source.of].make() == probe.source.network, name


def test_rows_that_share_digits_say_so():
    for name in PROBES:
        run = RECIPES[name].make()
        assert ("the same digits on both sides" in RECIPES[name].claim.row) == (run.fit == "affnist-like/0-60000"), name
        assert ("digit-disjoint" in RECIPES[name].claim.row) == (run.fit == "affnist-like/fit-digits"), name


def test_rows_fitted_to_fewer_say_so():
    for name in PROBES:
        run = RECIPES[name].make()
        said = "fitted to 20,000" in RECIPES[name].claim.row
        assert said == (run.n_fit == 20_000) == (run.features == "masked"), name


@pytest.mark.parametrize("name", ["mnist-sparse-svm", "mnist-sparse-svm-masked", "linear", "narrow-pixels"])
def test_a_classifier_is_fitted_and_its_result_verified(runs, name):
    run, trained, result = carried_out(runs, name)
    (asked,) = run.on
    assert list(result["metrics"]) == [asked] and result["extras"]["n_fit"] == 200
    # hashes of what it was fitted to and tested on
    assert set(result["data"]) == {"name", f"{run.data}/train", f"{run.data}/test"}
    if name in ("linear", "narrow-pixels"):  # after six steps capsules differ too little for one scale of the SVM
        assert trained.evaluations[asked].metrics["error_percent"] < 70
    assert ("n_support_vectors" in result["extras"]) == (not isinstance(run.classifier, Linear))
    checks = check_metrics(result, stored(result["run"]), None)
    assert [check.passed for check in checks] == [True], checks
    result["metrics"][asked]["error_percent"] += 1
    assert not check_metrics(result, run, None)[0].passed


@pytest.mark.parametrize("name", ["mnist-sparse-svm", "mnist-sparse-svm-masked"])
def test_the_answers_are_those_of_scikit_learn_on_these_features(runs, name):
    from sklearn.svm import SVC

    run, trained, _ = carried_out(runs, name)
    model, data = network(run, runs / run.of / "0", CPU).eval(), load("generated", "test")
    with torch.no_grad():
        images = {part: load("generated", part).images[:256] / 255 for part in ("train", "test")}
        seen = {part: getattr(model.features(shown), run.features) for part, shown in images.items()}
    theirs = SVC(C=100.0, gamma=0.1).fit(seen["train"][:200].double(), load("generated", "train").labels[:200])
    agree = theirs.predict(seen["test"].double()) == trained.evaluations["generated/test"].predictions.numpy()
    assert agree.mean() > 0.95 and len(data.labels) == 256  # half floats move a few that are near a border


def test_a_machine_of_the_features_own_width_is_scikit_learns_default(runs):
    from sklearn.decomposition import PCA
    from sklearn.svm import SVC

    run, trained, _ = carried_out(runs, "pixels-wide-svm-a")
    train, test = (load(run.data, part).images.flatten(1).double() / 255 for part in ("train", "test"))
    components = PCA().fit(train[:200])
    theirs = SVC(C=100.0, gamma="scale").fit(components.transform(train[:200]), load(run.data, "train").labels[:200])
    agree = theirs.predict(components.transform(test)) == trained.evaluations[run.on[0]].predictions.numpy()
    assert agree.mean() > 0.97


def test_masked_and_pre_mask_features_are_not_the_same(runs):
    names = "mnist-sparse-svm", "mnist-sparse-svm-masked"
    said = [unpack(carried_out(runs, name)[2]["predictions"]["generated/test"]) for name in names]
    assert (said[0] != said[1]).any()


@pytest.mark.slow
def test_features_outlive_the_checkpoint_and_another_training_is_noticed(runs, tmp_path):
    run = small("mnist-sparse-svm")
    train(run.network, name=run.of, seed=0, options=Options(out=tmp_path, progress=False))
    here = {"device": CPU, "root": None, "seed": 0, "shown": False}
    first = look(run, "generated/test", tmp_path, **here)
    (tmp_path / "checkpoint.safetensors").rename(tmp_path / "aside")
    again = look(run, "generated/test", tmp_path, **here)
    assert torch.equal(first.poses, again.poses) and first.weights == again.weights
    told = r"no features of generated/train and no finished .* `torchcaps train rawlinson2018/mnist-sparse"
    with pytest.raises(Missing, match=told):
        require(run, tmp_path)
    with pytest.raises(Missing, match="no finished checkpoint"):
        look(run, "generated/train", tmp_path, **here)
    (tmp_path / "features" / "generated-test-0.npz").rename(tmp_path / "features" / "generated-train-0.npz")
    train(run.network, name=run.of, seed=1, options=Options(out=tmp_path, progress=False))
    other = look(run, "generated/train", tmp_path, **here)
    assert other.weights != first.weights and len(other.poses) == 512  # of the new weights, not from the old file


def test_damaged_caches_are_not_read(rng, tmp_path):
    seen = Seen(torch.randn(40, 2, 3, generator=rng).half(), torch.ones(40, 2).half(), "hash of the weights")
    _keep(tmp_path, "generated/test", seen)
    rows, labels, cache = seen.features("poses"), torch.arange(40) % 2, tmp_path / "svm.npz"
    machine = Svm().fit(rows, labels, cache, 1, "")
    assert torch.equal(_kept(tmp_path, "generated/test", seen.weights).poses, seen.poses)
    for path in (tmp_path / "features" / "generated-test-0.npz", cache):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    assert _kept(tmp_path, "generated/test", seen.weights) is None
    with pytest.warns(UserWarning, match=r"svm.npz is damaged; the support vector machines are fitted again"):
        assert torch.equal(Svm().fit(rows, labels, cache, 1, "").vectors, machine.vectors)


def test_half_a_run_and_another_run_are_not_read(tmp_path):
    run = small("mnist-sparse-svm")
    train(run.network, name="x", seed=0, options=Options(out=tmp_path, progress=False, max_steps=3))
    here = {"device": CPU, "root": None, "seed": 0, "shown": False}
    with pytest.raises(Missing, match="no finished checkpoint"):
        look(run, "generated/test", tmp_path, **here)
    train(run.network, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    stage = replace(run.network.stages[0], learning_rate=0.1)
    other = replace(run, network=replace(run.network, stages=(stage,)))
    with pytest.raises(ValueError, match="is of another run than rawlinson2018/mnist-sparse is today"):
        look(other, "generated/test", tmp_path, **here)


@pytest.mark.parametrize("name", ["attack-masked", "attack-supervised", "transfer-to-sparse"])
def test_attacks_only_make_answers_worse_and_are_verified(runs, name):
    run, _, result = carried_out(runs, name)
    errors = [part["error_percent"] for part in result["metrics"].values()]
    assert list(result["metrics"]) == list(run.parts())
    if run.source is None:
        assert max(errors[1:]) >= errors[0] and errors[-1] > errors[0]
        after_pgd = [part for name, part in zip(result["metrics"], errors, strict=True) if name.startswith("pgd")]
        assert min(after_pgd) >= errors[0]
    assert all(check.passed for check in check_metrics(result, stored(result["run"]), None))
    assert stored(json.loads(json.dumps(to_plain(run)))) == run


@pytest.mark.parametrize("name", ["attack-sparse", "attack-masked", "attack-supervised"])
def test_gradients_of_an_attack_are_those_of_the_whole_chain(runs, name, monkeypatch):
    """From the score through the SVM, the mask, the routing and the network to every image, by finite differences."""
    # differences need float64 all the way
    monkeypatch.setattr("torchcaps.analysis.classifiers.SvmDecision.float", lambda machine: machine)
    run = small(name)
    with frozen(network(run, runs / run.of / "0", CPU).double()) as model:
        scores, _ = _answering(run, model, 0, options(runs, name))
        images = load("generated", "test").images[:4].double() / 255
        labels = load("generated", "test").labels[:4]
        asked = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(lead_of_the_wrong(scores(asked), labels).sum(), asked)
        assert slope.flatten(1).abs().amax(1).gt(0).all()
        step = 1e-5 * slope.sign()
        with torch.no_grad():
            ahead, behind = (lead_of_the_wrong(scores(images + sign * step), labels) for sign in (1, -1))
        torch.testing.assert_close(ahead - behind, 2 * (slope * step).flatten(1).sum(1), rtol=1e-3, atol=1e-12)


def test_a_machine_is_fitted_once(runs, monkeypatch):
    carried_out(runs, "mnist-sparse-svm")
    monkeypatch.setattr("torchcaps.probes.classifier.fit_svm", lambda *args: pytest.fail("it lies in its file"))
    carried_out(runs, "mnist-sparse-svm")


def test_an_attack_needs_the_checkpoint(tmp_path):
    with pytest.raises(Missing, match="no finished checkpoint of rawlinson2018/mnist-supervised in"):
        small("attack-supervised").execute("attack-supervised", 0, options(tmp_path, "attack-supervised"))
