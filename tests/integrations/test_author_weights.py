"""Published weights in their author's layout: converted, they must give what his network gives, written down anew."""

import io
import zipfile
from collections import OrderedDict

import pytest
import torch
from torch.nn.functional import conv2d, logsigmoid
from typer.testing import CliRunner

import torchcaps
from torchcaps.cli import app
from torchcaps.integrations import author_weights
from torchcaps.integrations.author_weights import import_weights, read_state_dict

RUNNER = CliRunner()


def published(rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Random weights under the author's names, in his shapes; nothing is symmetric under a swap of channels."""

    def numbers(*shape: int, size: float = 1.0) -> torch.Tensor:
        return size * torch.randn(*shape, generator=rng)

    def norm(name: str, c: int) -> dict[str, torch.Tensor]:
        return {
            f"{name}.weight": numbers(c).abs() + 0.5,
            f"{name}.bias": numbers(c),
            f"{name}.running_mean": numbers(c, size=0.3),
            f"{name}.running_var": numbers(c).square() + 0.2,
            f"{name}.num_batches_tracked": torch.tensor(121_500),
        }

    found = {}
    for number in range(6):
        c = 4 if number == 0 else 64
        found |= norm(f"convolve.{3 * number}", c)
        where = f"convolve.{3 * number + 1}"
        found |= {f"{where}.weight": numbers(64, c, 3, 3, size=(2 / (9 * c)) ** 0.5), f"{where}.bias": numbers(64)}
    for name, c in (("compute_a", 64), ("compute_mu", 1024)):
        found |= norm(f"{name}.0", 64) | {
            f"{name}.1.weight": numbers(c, 64, 1, 1, size=0.1),
            f"{name}.1.bias": numbers(c),
        }
    for number, (n_in, n_out) in enumerate(((1, 64), (64, 5))):
        found |= {
            f"routings.{number}.CONST_one": torch.tensor(1.0),
            f"routings.{number}.W": numbers(n_in, n_out, 4, 4, size=0.5),
            f"routings.{number}.B": numbers(n_in, n_out, 4, 4, size=0.5),
            f"routings.{number}.beta_use": numbers(n_in, n_out),
            f"routings.{number}.beta_ign": numbers(n_in, n_out, size=0.1),
        }
    return found


def normalised(maps: torch.Tensor, weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    mean, variance, scale, offset = (
        weights[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (maps - mean) / (variance + 1e-5).sqrt() * scale + offset


def routed(a, poses, w, b, use, ignore):
    """Three iterations of Algorithm 1 for one image, written from the paper: a [i], poses [i c d], w [i j d h]."""
    n_in, n_out = len(a), w.shape[1]
    votes = torch.stack([poses @ w.expand(n_in, -1, -1, -1)[:, j] + b[:, j] for j in range(n_out)], 1)  # [i j c h]
    gate = 1 / (1 + (-a).exp())
    r = torch.full((n_in, n_out), 1 / n_out, dtype=votes.dtype)
    score = mean = variance = None
    for _ in range(3):
        if score is not None:
            z = ((votes - mean) ** 2 / (2 * variance)).sum((-2, -1)) + variance.sqrt().log().sum((-2, -1))
            r = (logsigmoid(score) - z).softmax(1)
        d_use = gate[:, None] * r
        score = (use * d_use - ignore * (gate[:, None] - d_use)).sum(0)
        total = (d_use.sum(0) + 1e-5)[:, None, None]
        mean = (d_use[..., None, None] * votes).sum(0) / total
        variance = (d_use[..., None, None] * (votes - mean) ** 2).sum(0) / total + 1e-5
    return score, mean


def authors_network(weights: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
    """Class scores of one image [2 h w]: rows before columns among the coordinates, poses cut as (part, row, column)."""
    height, width = image.shape[1:]
    rows = torch.linspace(-1, 1, height, dtype=image.dtype)[:, None].expand(height, width)
    columns = torch.linspace(-1, 1, width, dtype=image.dtype)[None].expand(height, width)
    maps = torch.stack([image[0], image[1], rows, columns])[None]
    for number, stride in enumerate((1, 2, 1, 2, 1, 2)):
        where = f"convolve.{3 * number + 1}"
        maps = normalised(maps, weights, f"convolve.{3 * number}")
        maps = conv2d(maps, weights[f"{where}.weight"], weights[f"{where}.bias"], stride)
        maps = maps * maps.sigmoid()
    a, mu = (
        conv2d(normalised(maps, weights, f"{name}.0"), weights[f"{name}.1.weight"], weights[f"{name}.1.bias"])[0]
        for name in ("compute_a", "compute_mu")
    )
    places = [(n, y, x) for n in range(64) for y in range(a.shape[1]) for x in range(a.shape[2])]
    scores = torch.stack([a[n, y, x] for n, y, x in places])
    poses = torch.stack([mu[16 * n : 16 * n + 16, y, x].reshape(4, 4) for n, y, x in places])
    for number in range(2):
        layer = (weights[f"routings.{number}.{part}"] for part in ("W", "B", "beta_use", "beta_ign"))
        scores, poses = routed(scores, poses, *layer)
    return scores


@pytest.fixture
def given(rng, tmp_path):
    weights = published(rng)
    torch.save(OrderedDict(weights), tmp_path / "theirs.pt")
    return weights, tmp_path / "theirs.pt"


def test_converted_weights_give_the_scores_of_the_authors_network(given, rng, tmp_path):
    weights, path = given
    import_weights("heinsen2019", path, tmp_path / "ours.safetensors")
    model = torchcaps.load(tmp_path / "ours.safetensors").double()
    images = torch.rand(2, 2, 33, 37, generator=rng, dtype=torch.float64)  # rows and columns differ
    exact = {name: tensor.double() for name, tensor in weights.items()}
    with torch.no_grad():
        wanted = torch.stack([authors_network(exact, image) for image in images])
        torch.testing.assert_close(model(images).score, wanted, rtol=1e-9, atol=1e-9)
        assert wanted.std() > 0.1  # scores that all images share would prove nothing
        swapped = torch.stack([authors_network(exact, image.mT) for image in images])
    assert (swapped - wanted).abs().max() > 1e-3


def test_the_order_of_coordinates_and_the_side_of_a_transform_are_seen(given, rng, tmp_path, monkeypatch):
    """The comparison above can fail: it notices coordinates in another order, and transposed transforms."""
    weights, path = given
    images = torch.rand(1, 2, 33, 37, generator=rng)
    right = authors_network(weights, images[0])

    def off(changed: dict[str, torch.Tensor]) -> float:
        torch.save(changed, path)
        import_weights("heinsen2019", path, tmp_path / "ours.safetensors")
        with torch.no_grad():
            return (torchcaps.load(tmp_path / "ours.safetensors")(images).score[0] - right).abs().max().item()

    assert off(weights) < 1e-3 < off(weights | {"routings.0.W": weights["routings.0.W"].mT.contiguous()})
    monkeypatch.setattr(author_weights, "COLUMNS_FIRST", [0, 1, 2, 3])
    assert off(weights) > 1e-3


def test_the_command_writes_a_checkpoint_that_other_commands_read(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "empty"))
    said = RUNNER.invoke(app, ["import", "heinsen2019", str(given[1]), "--no-evaluate"])
    assert said.exit_code == 0 and "wrote runs/heinsen2019/published.safetensors" in said.output
    shown = RUNNER.invoke(app, ["show", "runs/heinsen2019/published.safetensors", "--device", "cpu"])
    assert "heinsen2019/published seed 0, 121,500 training steps" in shown.output, shown.output
    assert "271,688 parameters" in shown.output


def test_the_command_makes_no_folder_for_a_file_that_it_refuses(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.pt").write_bytes(b"not a file of torch")
    for words in (["sabour2017", str(given[1])], ["heinsen2019", "other.pt"], ["heinsen2019", "nowhere.pt"]):
        assert RUNNER.invoke(app, ["import", *words]).exit_code != 0
    assert not (tmp_path / "runs").exists()


def test_the_command_evaluates_where_the_test_images_are(given, rng, tmp_path, monkeypatch):
    images = torch.randint(0, 256, (2, 2, 96, 96), generator=rng, dtype=torch.uint8)
    weights = {name: tensor.double() for name, tensor in given[0].items()}
    first = authors_network(weights, images[0].double() / 255).argmax()
    shown = torchcaps.data.Labelled(images[:1], first[None])
    monkeypatch.setattr("torchcaps.cli.imports.datasets.status", lambda *asked: "complete in a folder")
    monkeypatch.setattr("torchcaps.cli.imports.datasets.load", lambda *asked: shown)
    out = ["--out", str(tmp_path / "ours.safetensors"), "--device", "cpu"]
    said = RUNNER.invoke(app, ["import", "heinsen2019", str(given[1]), *out])
    assert "test: error 0.00 % (1 images)" in said.output, said.output


def saved(what: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(what, buffer)
    return buffer.getvalue()


class Evil:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a file of torch", "holds no tensors that can be read safely"),
        (saved({"x": Evil()}), "holds no tensors that can be read safely"),
        (saved([torch.ones(2)]), "holds a list, not tensors by name"),
        (saved({"x": torch.zeros(1).expand(1 << 23)}), "declares 33,554,432 bytes of tensors"),
        (saved({"x": torch.zeros(3)}), "no convolve.0.weight, no convolve.0.bias, unknown x"),
    ],
)
def test_files_of_something_else_are_refused_without_running_them(content, message, tmp_path, capsys):
    path = tmp_path / "file.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        import_weights("heinsen2019", path, tmp_path / "ours.safetensors")
    assert "ran" not in capsys.readouterr().out and not (tmp_path / "ours.safetensors").exists()


def test_an_archive_that_unpacks_to_gigabytes_is_refused_unread(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 25))
    assert (tmp_path / "bomb.pt").stat().st_size < 1 << 16
    with pytest.raises(ValueError, match=r"has 33,554,432 bytes, at most 16,777,216 are read"):
        read_state_dict(tmp_path / "bomb.pt")


def test_wrong_shapes_numbers_and_papers_are_refused(given, tmp_path):
    weights, path = given
    bad = {
        "is a checkpoint of another model": weights | {"routings.1.W": torch.zeros(64, 6, 4, 4)},
        r"scores.1.bias must be finite; got 64 of 64 numbers that are not; give": weights
        | {"compute_a.1.bias": torch.full((64,), torch.nan)},
        r"scores.1.bias must be numbers like torch.float32; got torch.int64; give": weights
        | {"compute_a.1.bias": torch.zeros(64, dtype=torch.int64)},
        r"scores.0.running_var must be at least 0; got -1; give": weights
        | {"compute_a.0.running_var": torch.full((64,), -1.0)},
        r"scores.0.num_batches_tracked must be at least 0; got -5; give": weights
        | {"compute_a.0.num_batches_tracked": torch.tensor(-5)},
        r"unknown routings.2.CONST_one; give": weights | {"routings.2.CONST_one": torch.tensor(1.0)},
        r"unknown CONST_one; give": weights | {"CONST_one": torch.tensor(1.0)},
        r"routings.1.CONST_one must be the constant 1; got \[2.0\]; give": weights
        | {"routings.1.CONST_one": torch.tensor(2.0)},
    }
    for message, changed in bad.items():
        torch.save(changed, path)
        with pytest.raises(ValueError, match=message):
            import_weights("heinsen2019", path, tmp_path / "ours.safetensors")
    with pytest.raises(ValueError, match="no published weights of 'sabour2017' are known; there are heinsen2019"):
        import_weights("sabour2017", path, tmp_path / "ours.safetensors")
