"""The networks that come with the playground are what their cards say; which others it takes; the page as plain
files.
"""

import re
import tarfile

import pytest
import torch

from torchcaps.data import OwnImages
from torchcaps.data.augment import as_seen
from torchcaps.integrations.image_folder import own_run
from torchcaps.layers import ROUTINGS, Dynamic
from torchcaps.models import CapsNet
from torchcaps.papers import RECIPES
from torchcaps.papers.routings.rows import LEFT_OUT
from torchcaps.play.networks import COMPARED, TITLES, Look, bundled_networks, load_network, network_of
from torchcaps.play.web import RUNTIME, export_web, onnx_parts
from torchcaps.pretrained import entry

ABOUT = {"name": "smoke", "seed": 0, "step": 20}


def test_the_networks_that_come_along_are_told_with_their_errors():
    """All else about them is tested in tests/pretrained/test_pretrained.py."""
    networks = bundled_networks()
    assert [network.name for network in networks] == list(TITLES)
    for network in networks:
        assert re.fullmatch(rf"{TITLES[network.name]}, \d+\.\d\d % error on test (digits|pairs)", network.note)
        assert network.about()["compared"] == (network.name in COMPARED)


def test_every_routing_that_learns_is_compared():
    """Random couplings are a control, leaky ones a variant, and ladders take no part in the comparison."""
    given = {load_network(name).model.routing for name in COMPARED}
    assert given == {rule for name, rule in ROUTINGS.items() if name not in ("random", *LEFT_OUT)}


def test_the_page_opens_with_mnist_capsules_that_reconstruct_and_are_small():
    first, beside = list(TITLES)[:2]
    network = load_network(first)
    assert network.run.data == load_network(beside).run.data == "mnist"
    assert network.about()["draws"]
    assert entry(first).bytes < 3_000_000 and entry(first).measured["test"]["error_percent"] <= 0.45
    assert "capsnet-mnist" not in [other.name for other in bundled_networks(most_bytes=3_000_000)]


def test_networks_of_other_pictures_are_refused_by_name():
    model = CapsNet((1, 16, 16), channels=4, kernel=5, n_types=2, primary_kernel=5, hidden=(8,))
    with pytest.raises(ValueError, match="one channel; smoke takes 2x48x48"):
        network_of(model, RECIPES["sabour2017/smallnorb"].make(), ABOUT)
    run = RECIPES["smoke/sparsecaps"].make()
    with pytest.raises(ValueError, match="is a SparseCaps"):
        network_of(run.build(), run, ABOUT)


@pytest.mark.parametrize(
    "name",
    [
        "smoke/capsnet",
        "smoke/capsnet-plain",
        "smoke/capsnet-pairs",
        "smoke/lcapsnet",
        "smoke/baseline",
        "smoke/capsnet-shared",
        "smoke/deep-capsnet",
        "smoke/efficient-capsnet",
        "smoke/inverted-capsnet",
        "smoke/matrix-capsnet",
        "smoke/routing-net",
        "smoke/pooled-net",
    ],
)
def test_other_networks_are_shown_as_they_answer(name):
    run = RECIPES[name].make()
    network = network_of(run.build(), run, ABOUT)
    about, (_, side, _) = network.about(), network.data.shape
    levels = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(0)).mul(255).round()
    with torch.no_grad():
        seen = network.look(levels)
        found = network.model.eval()(as_seen(levels, run.augment))
        wanted = found if isinstance(found, torch.Tensor) else found.confidence
    shown = seen.lengths[about["own_passes"] - 1]
    torch.testing.assert_close(
        shown, wanted.softmax(-1)[0] if about["measure"] == "share" else found.activity[0], atol=1e-5, rtol=1e-4
    )
    assert seen.lengths.shape == (about["n_passes"], about["n_classes"])
    assert about["draws"] == (network.draw is not None)
    if about["grid"]:
        assert seen.couplings.shape[1] == about["grid"][0] * about["grid"][1]


def test_a_network_with_batch_norm_is_shown_as_it_answers():
    small = {"channels": 4, "kernel": 5, "n_types": 2, "primary_kernel": 5, "hidden": (8,)}
    model, images = CapsNet((1, 16, 16), routing=Dynamic(batch_norm=True), **small), torch.rand(8, 1, 16, 16)
    model.calibrate(images)
    levels = images[:1].mul(255).round()
    seen = Look(model, ())(levels)
    torch.testing.assert_close(seen.lengths[model.classes.routed.n_iters - 1], model(levels / 255).activity[0])


def test_a_network_of_own_pictures_is_shown_with_its_own_classes():
    shape, classes = (1, 16, 16), ("crow", "gull", "a bird with a long name")
    run = own_run(OwnImages(classes=classes, shape=shape, n_train=100, n_test=10))
    network = network_of(run.build(), run, ABOUT)
    about = network.about()
    assert (about["labels"], about["style"], about["size"]) == (list(classes), "plain", 16)
    assert network.look(torch.zeros(1, *shape)).lengths.shape == (about["n_passes"], 3)
    assert load_network("capsnet-digits").about()["labels"] == list("0123456789")


def test_places_are_where_the_capsules_look():
    """A pixel changes the primary capsules whose field it lies in, and the places name the middle of that field."""
    network = load_network("capsnet-digits")
    about, picture = network.about(), torch.zeros(1, 1, 16, 16)
    picture.requires_grad_()
    capsules = network.model.primary_capsules(picture).poses.view(8, 4, 4, 8)
    capsules[:, 1, 2].sum().backward()
    rows, columns = (picture.grad[0, 0] != 0).any(1).nonzero(), (picture.grad[0, 0] != 0).any(0).nonzero()
    middle = [float(axis.min() + axis.max() + 1) / 2 for axis in (rows, columns)]
    assert middle == [about["places"]["first"] + n * about["places"]["step"] for n in (1, 2)]


def test_files_without_a_runtime_are_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="npm install onnxruntime-web"):
        export_web(tmp_path / "out", [])
    with pytest.raises(ValueError, match="has no ort"):
        export_web(tmp_path / "out", [], tmp_path)
    (tmp_path / "x.tgz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a whole archive"):
        export_web(tmp_path / "out", [], tmp_path / "x.tgz")
    assert not (tmp_path / "out").exists()
    dist = tmp_path / "node_modules/onnxruntime-web/dist"
    dist.mkdir(parents=True)
    for name in RUNTIME:
        (dist / name).write_bytes(name.encode())
    assert {"index.html", "web.js", "models.json", *RUNTIME} <= {path.name for path in export_web(tmp_path / "out", [])}
    with tarfile.open(tmp_path / "packed.tgz", "w:gz") as archive:
        archive.add(dist, "package/dist")
    export_web(tmp_path / "out", [], tmp_path / "packed.tgz")
    assert (tmp_path / "out" / RUNTIME[0]).read_bytes() == RUNTIME[0].encode()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TITLES, "smoke/lcapsnet", "smoke/em-capsnet"])
def test_the_onnx_models_say_the_same(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if name in TITLES:
        network = load_network(name)
    else:
        run = RECIPES[name].make()
        network = network_of(run.build(), run, ABOUT)
    parts, rng, side = onnx_parts(network), torch.Generator().manual_seed(0), network.data.shape[1]
    levels = torch.rand(1, 1, side, side, generator=rng).mul(255).round()
    session = onnxruntime.InferenceSession(parts["look"])
    with torch.no_grad():
        wanted = Look(network.model, network.run.augment)(levels)
    for name, part in zip(
        [output.name for output in session.get_outputs()], session.run(None, {"given": levels.numpy()}), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(part), getattr(wanted, name), atol=1e-4, rtol=1e-4)
    if network.draw is not None:
        poses = torch.randn(1, 10, 16, generator=rng)
        (drawn,) = onnxruntime.InferenceSession(parts["draw"]).run(None, {"given": poses.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(drawn), network.draw(poses), atol=1e-4, rtol=1e-4)
