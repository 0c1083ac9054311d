"""Figures show what the model does; the report is one honest, self-contained page."""

import math
import re
import sys
from html.parser import HTMLParser

import pytest
import torch

from torchcaps import CapsNet, figures
from torchcaps.data import Labelled, load
from torchcaps.figures import numbers
from torchcaps.figures.report import SECTIONS, write_report

matplotlib = pytest.importorskip("matplotlib")
SMALL = {"channels": 8, "kernel": 5, "n_types": 2, "primary_kernel": 5, "hidden": (16,)}
CURVE = [
    {"step": 10, "loss": 0.9, "margin": 0.6, "reconstruction": 0.3, "error_percent": 80.0},
    {"step": 19, "validation_error_percent": 40.0},
    {"step": 20, "loss": 0.2, "margin": 0.1, "reconstruction": 0.1, "error_percent": 0.0},
]


def make_model(**changes):
    return CapsNet((1, 16, 16), 10, **(SMALL | changes))


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_model()


@pytest.fixture(scope="module")
def images():
    return load("generated-16", "test").images[:12]


def labelled_half_right(model, images):
    """Labels that make an untrained model right about the first six images and wrong about the others."""
    labels = numbers.predict(model, Labelled(images, torch.zeros(12, dtype=torch.long)))
    labels[6:] = (labels[6:] + 1) % 10
    return Labelled(images, labels)


@pytest.fixture(scope="module")
def half_right(model, images):
    return labelled_half_right(model, images)


@pytest.fixture(scope="module")
def made(model, half_right):
    return figures.all_figures(model, half_right, CURVE, "cpu")


def words_of(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def test_offsets_are_those_of_the_paper():
    assert list(numbers.OFFSETS) == pytest.approx([-0.25, -0.2, -0.15, -0.1, -0.05, 0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert numbers.OFFSETS[5] == 0


def test_a_sweep_moves_one_number_of_one_capsule(rng):
    poses = torch.randn(10, 16, generator=rng)
    moved = numbers.sweep_poses(poses, label=3) - poses
    assert moved.shape == (16, 11, 10, 16)
    assert torch.equal(moved.nonzero()[:, 2].unique(), torch.tensor([3]))
    offsets = torch.tensor(numbers.OFFSETS)
    torch.testing.assert_close(moved[:, :, 3], torch.einsum("de,k->dke", torch.eye(16), offsets), atol=1e-6, rtol=0)


def test_the_middle_column_of_a_sweep_is_the_plain_reconstruction(model, images):
    pictures = numbers.sweep(model, images[0], label=4)
    with torch.no_grad():
        plain = model.reconstruct(model(images[:1].float() / 255).poses, torch.tensor([4]))[0]
    assert pictures.shape == (16, 11, 1, 16, 16)
    torch.testing.assert_close(pictures[:, 5], plain.expand(16, 1, 16, 16))
    assert (pictures[:, 0] - plain).abs().amax((1, 2, 3)).min() > 1e-4


def test_the_strongest_dimension_is_the_one_that_moves_the_most_pixels():
    pictures = torch.zeros(3, 11, 1, 4, 4)
    pictures[1, 0], pictures[2, :, :, 0] = 0.5, 1.0  # the last one is bright, and never changes
    assert numbers.pixel_change(pictures).argmax() == 1
    assert numbers.pixel_change(pictures)[2] == 0


def test_examples_are_the_first_of_each_class_and_the_first_failures():
    labels = torch.tensor([2, 0, 0, 1, 2, 1])
    predictions = torch.tensor([1, 0, 0, 0, 2, 2], dtype=torch.uint8)
    assert numbers.pick_examples(predictions, labels, n_classes=3, n_failures=2) == ([1, 4], [0, 3])


def test_a_failure_is_drawn_from_the_label_and_from_the_answer(model, half_right):
    predictions = numbers.predict(model, half_right)
    columns = numbers.picture_examples(model, half_right, predictions, numbers.Examples([0], [7]))
    label, answer = int(half_right.labels[7]), int(predictions[7])
    assert [(column.index, column.target) for column in columns] == [
        (0, int(half_right.labels[0])),
        (7, label),
        (7, answer),
    ]
    with torch.no_grad():
        poses = model(half_right.images[7:8].float() / 255).poses
        for column in columns[1:]:
            torch.testing.assert_close(column.picture, model.reconstruct(poses, torch.tensor([column.target]))[0])


def test_every_failure_stands_in_the_figure_with_both_reconstructions(model, half_right, made):
    predictions = numbers.predict(model, half_right)
    words = words_of(made["reconstructions"][0])
    for label, answer in zip(half_right.labels[6:11].tolist(), predictions[6:11].tolist(), strict=True):
        assert f"({label}, {answer}, {label})" in words
        assert f"({label}, {answer}, {answer})" in words


def test_a_model_without_failures_says_so(model, half_right):
    right = Labelled(half_right.images[:6], half_right.labels[:6])
    assert "No errors: all 6 images are classified correctly." in words_of(
        figures.reconstructions(model, right, right.labels.to(torch.uint8))
    )


@pytest.mark.parametrize("couplings", ["softmax", "leaky"])
def test_the_map_adds_up_to_the_mass_of_the_label(images, couplings):
    model = make_model(couplings=couplings)
    view = numbers.watch_routing(model, images[0], label=3)
    assert view.places.shape == (3, *model.grid)
    torch.testing.assert_close(view.places.sum((1, 2)), view.mass[:, 3])
    n_shares = 11 if couplings == "leaky" else 10
    torch.testing.assert_close(view.mass[0], torch.full((10,), 1 / n_shares))
    assert view.entropy[0] == pytest.approx(1)
    assert view.entropy[-1] < 1
    with torch.no_grad():
        torch.testing.assert_close(view.lengths[-1], model(images[:1].float() / 255).activity[0])


def test_long_input_capsules_weigh_more(model, images):
    view = numbers.watch_routing(model, images[0], label=0)
    with torch.no_grad():
        active = model.primary(model.conv(images[:1].float() / 255).relu()).activity[0]
    by_place = active.view(2, *model.grid).sum(0) / active.sum()
    torch.testing.assert_close(view.places[0], by_place / 10)


def test_a_curve_leaves_out_what_a_line_does_not_hold_or_what_is_not_finite():
    lines = [*CURVE, {"step": 30, "loss": math.nan}]
    assert numbers.series(lines, "loss") == ([10, 20], [0.9, 0.2])
    assert numbers.series(lines, "validation_error_percent") == ([19], [40.0])


def test_the_curve_names_its_last_errors(made):
    words = words_of(made["learning_curve"][0])
    assert "training, last 0.00 %" in words
    assert "validation, last 40.00 %" in words


def test_the_confusion_matrix_counts():
    words = words_of(figures.confusion_matrix(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 0]), 2))
    assert "4 images, 2 errors (50.00 %)" in words
    assert words.count("2") == 1


def test_looking_changes_neither_the_model_nor_matplotlib(images):
    model, settings = make_model(), dict(matplotlib.rcParams)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    figures.couplings_over_iterations(model, images[0], 3)
    numbers.sweep(model, images[0], 3)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert dict(matplotlib.rcParams) == settings


def test_no_figure_is_blank_and_each_becomes_a_file(made, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(figures.canvas, "DPI", 40)  # coarse is enough, and quick
    assert list(made) == list(SECTIONS), "every section of the report has its figure, in the same order"
    paths = figures.save_figures(made, tmp_path / "new")
    assert [path.name for path in paths] == [*(f"{name}.png" for name in made), "captions.md"]
    captions = paths.pop().read_text()
    assert all(f"## {name}\n{caption}\n" in captions for name, (_, caption) in made.items())
    for path in paths:
        pixels = torch.tensor(list(Image.open(path).convert("L").resize((200, 120)).tobytes())).float()
        assert pixels.std() > 5, path.name


def test_a_model_without_decoder_lacks_its_figures(images):
    model = make_model(reconstruction=False)
    found = list(figures.all_figures(model, labelled_half_right(model, images), [], "cpu"))
    assert found == ["confusion_matrix", "couplings", "couplings_of_a_mistake"]


@pytest.mark.parametrize("changes", [{"n_iters": 1}, {"couplings": "uniform"}])
def test_where_nothing_is_routed_there_is_nothing_to_watch(images, changes):
    model = make_model(reconstruction=False, **changes)
    assert list(figures.all_figures(model, labelled_half_right(model, images), [], "cpu")) == ["confusion_matrix"]


def test_many_passes_are_thinned(images):
    words = words_of(figures.couplings_over_iterations(make_model(n_iters=7), images[0], 0))
    assert [word for word in words if re.fullmatch(r"Iteration \d", word)] == [f"Iteration {n}" for n in (1, 2, 3, 7)]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    for name in ("matplotlib", "matplotlib.style"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=re.escape("figures need matplotlib; pip install 'torchcaps[experiments]'")):
        figures.learning_curve(CURVE)


class Page(HTMLParser):
    """Refuses tags that do not close in order; keeps attributes and text."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.attributes, self.text, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> does not close {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_checker_sees_a_wrong_page():
    for wrong in ("<p><b>x</p></b>", "<p>", "</p>"):
        with pytest.raises(AssertionError):
            Page(wrong)


@pytest.fixture(scope="module")
def report(made, tmp_path_factory):
    figure = made["learning_curve"][0]
    shown = {"learning_curve": (figure, "x < y"), "my_own": (figure, "z")}
    wanted = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    path = write_report(wanted, 'A <run> & "more"', [("a<b", "<script>"), ("error", 1.5)], shown)
    assert path == wanted
    return path.read_text(encoding="utf-8")


def test_the_report_needs_nothing_from_outside(report):
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[A-Za-z0-9+/=]+", "", report))
    sources = [
        value for _, name, value in Page(report).attributes if name in ("src", "href", "srcset", "data", "action")
    ]
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)


def test_the_report_is_well_formed_and_escapes_its_text(report):
    page = Page(report)
    assert not {"script", "run"} & set(page.tags)
    for text in (
        'A <run> & "more"',
        "a<b",
        "<script>",
        "1.5",
        "x < y",
        "How it learnt",
        SECTIONS["learning_curve"].words,
        "My own",
    ):
        assert text in page.text
    assert page.tags.count("figure") == page.tags.count("figcaption") == page.tags.count("h2") == 2


def test_the_report_reads_on_a_phone_in_the_dark_and_by_ear(report):
    attributes = Page(report).attributes
    assert {("meta", "name", "viewport"), ("html", "lang", "en")} <= set(attributes)
    assert "prefers-color-scheme: dark" in report
    assert all(value for tag, name, value in attributes if (tag, name) == ("img", "alt"))
