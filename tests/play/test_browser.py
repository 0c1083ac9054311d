"""The playground in a real browser: draw a 7, read 7, drag a slider, and the image changes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from torchcaps.data import OwnImages
from torchcaps.integrations.image_folder import own_run
from torchcaps.papers import RECIPES
from torchcaps.play.networks import COMPARED, TITLES
from torchcaps.train.checkpoint import save_checkpoint
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
HOME = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="no chromium here; CHROMIUM names one")]
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; `make test-browser` does it"
)
pytest.importorskip("uvicorn", reason="the extra `play` is not installed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def served(*more: str) -> Iterator[str]:
    """The address of a playground in a process of its own."""
    command = [sys.executable, "-m", "torchcaps", "play", "--port", "0", *more]
    with subprocess.Popen(
        command, cwd=HOME, env=os.environ | {"PYTHONPATH": str(HOME)}, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
        finally:
            server.terminate()


def saved(folder: Path, run: Run) -> list[str]:
    """A checkpoint of the network as it is before training."""
    tensors = {f"model/{key}": tensor for key, tensor in run.build().state_dict().items()}
    save_checkpoint(
        folder / "net.safetensors", tensors, {"name": "untrained", "seed": 0, "step": 0, "run": to_plain(run)}
    )
    return [str(folder / "net.safetensors")]


@contextmanager
def page_of(browser, address: str, where: str = "", **how) -> Iterator:
    """A page that is ready; nothing may go wrong in it, and it may ask nobody but its server."""
    context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | how))
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith((address, "data:", "blob:")) else wrong.append(asked.url)
    )
    page.goto(f"{address}/{where}")
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert wrong == []


def read(page, wanted: str) -> None:
    playwright.expect(page.locator("#answer-one")).to_have_text(wanted, timeout=20_000)


def stroke(page, *points: tuple[float, float], pad: str = "#pad-one canvas") -> None:
    """Draw with the mouse; points in shares of the pad."""
    page.locator(pad).scroll_into_view_if_needed()
    frame = page.locator(pad).bounding_box()
    places = [(frame["x"] + x * frame["width"], frame["y"] + y * frame["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()


def drag(page, frame: dict, *points: tuple[float, float]) -> None:
    """Draw with a finger, which a page that can be scrolled might take for scrolling."""
    line = page.context.new_cdp_session(page)

    def touch(kind: str, *where: tuple[float, float]) -> None:
        places = [{"x": frame["x"] + x * frame["width"], "y": frame["y"] + y * frame["height"]} for x, y in where]
        line.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", points[0])
    for (x, y), (u, v) in pairwise(points):
        for share in (0.25, 0.5, 0.75, 1):
            touch("touchMove", (x + share * (u - x), y + share * (v - y)))
    touch("touchEnd")


def picture(page, name: str) -> str:
    return page.evaluate("name => document.getElementById(name).toDataURL()", name)


def settled(page) -> None:
    """Until nothing is asked any more."""
    page.wait_for_timeout(200)
    page.wait_for_load_state("networkidle")


def test_draw_a_seven_read_seven_and_turn_it(browser, address):
    with page_of(browser, address) as page:
        page.get_by_role("button", name="Example 4").click()
        read(page, "4")
        page.locator("#pad-one").get_by_role("button", name="Clear").click()
        playwright.expect(page.locator("#sure-one")).to_have_text("draw a digit")
        stroke(page, (0.25, 0.2), (0.72, 0.2), (0.45, 0.85))
        stroke(page, (0.42, 0.52), (0.68, 0.52))  # most of the sevens that it was trained on are crossed
        read(page, "7")
        assert page.locator("#bars-one .bar.best b").inner_text() == "7"
        assert page.locator("#sliders-one input").count() == 16
        settled(page)
        before, drawn = picture(page, "turned-one"), picture(page, "drawn-one")
        slider = page.locator("#sliders-one input").nth(6).bounding_box()
        middle = slider["y"] + slider["height"] / 2
        page.mouse.move(slider["x"] + slider["width"] / 2, middle)
        page.mouse.down()
        page.mouse.move(slider["x"] + 3, middle, steps=6)
        page.mouse.up()
        settled(page)
        assert picture(page, "turned-one") != before
        assert picture(page, "drawn-one") == drawn  # the capsule as it was read stays beside it
        page.get_by_role("button", name="Reset").click()
        settled(page)
        assert picture(page, "turned-one") == before


def test_lines_grow_with_the_passes(browser, address):
    with page_of(browser, address) as page:
        read(page, "7")
        widths = "Array.from(document.querySelectorAll('#routing .link'), l => Number(l.getAttribute('stroke-width')))"
        page.locator("#pass").fill("1")
        first = page.evaluate(widths)
        page.locator("#pass").fill("5")
        last = page.evaluate(widths)
        assert len(first) == 360  # 36 places, 10 classes
        assert max(first) < 0.75 < max(last)
        assert "After iteration 5 of 5" in page.locator("#routing-words").inner_text()


def test_two_digits_come_apart_in_two_colours(browser, address):
    with page_of(browser, address, "#pairs") as page:
        page.locator("#pad-first").get_by_role("button", name="Example 6").click()
        page.locator("#pad-second").get_by_role("button", name="Example 2").click()
        playwright.expect(page.locator("#answer-pairs")).to_contain_text("Predicted: 6 and 2", timeout=20_000)
        before = picture(page, "both-pairs")
        page.locator("#aside").fill("4")
        settled(page)
        assert picture(page, "both-pairs") != before


ALL_PAIRS = """async () => {
    const parts = ["glyphs", "prepare", "brain"].map((name) => import(`./${name}.js`));
    const [{ glyph }, { overlaid }, { openBrain }] = await Promise.all(parts);
    const brain = await openBrain(), network = brain.about.networks.find((one) => one.pairs);
    let right = 0;
    for (let a = 0; a < 10; a++) for (let b = 0; b < 10; b++) if (a !== b) {
        const lengths = (await brain.look(network, overlaid([glyph(a), glyph(b)], network, 2, 0))).lengths[network.own_passes - 1];
        const others = lengths.filter((_, n) => n !== a && n !== b);
        right += Math.min(lengths[a], lengths[b]) > Math.max(...others);
    }
    return right;
}"""


def test_most_pairs_of_finished_digits_are_read(browser, address):
    with page_of(browser, address) as page:
        assert page.evaluate(ALL_PAIRS) >= 70  # of 90; the test pairs, which overlap more, are right in four of five


def test_every_network_and_every_number_of_passes_stand_beside_each_other(browser, address):
    with page_of(browser, address, "#compare") as page:
        page.locator("#panel-compare").get_by_role("button", name="Example 0").click()
        playwright.expect(page.locator("#compare td.own .said b").first).to_have_text("0", timeout=20_000)
        assert page.locator("#compare tbody tr").count() == len(TITLES)
        answers = 1 + len(COMPARED)  # the CNN and the routings compared only give an answer
        assert page.locator("#compare td.cell").count() == 5 * (len(TITLES) - answers) + answers
        assert page.locator("#network-one option").count() == len(TITLES) - len(COMPARED) - 1  # nor the pairs


def test_a_phone_by_touch_in_the_dark_and_a_keyboard(browser, address):
    phone = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "color_scheme": "dark"}
    with page_of(browser, address, **phone) as page:
        read(page, "7")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
        page.locator("#pad-one").get_by_role("button", name="Example 0").tap()
        read(page, "0")
        page.locator("#pad-one").get_by_role("button", name="Clear").tap()
        frame = page.locator("#pad-one canvas").bounding_box()
        drag(page, frame, (0.25, 0.2), (0.72, 0.2), (0.45, 0.85))
        drag(page, frame, (0.42, 0.52), (0.68, 0.52))
        read(page, "7")
        page.locator("#pad-one").get_by_role("button", name="Clear").tap()
        page.touchscreen.tap(frame["x"] + 100, frame["y"] + 100)
        playwright.expect(page.locator("#sure-one")).not_to_have_text("draw a digit")
        page.locator("#tab-one").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#panel-pairs").is_visible()
        assert page.locator("#tab-pairs").get_attribute("aria-selected") == "true"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_sentence_shows_which_tokens_each_class_used(browser, tmp_path):
    with (
        served(*saved(tmp_path, RECIPES["smoke/em-sentences"].make())) as address,
        page_of(browser, address, "#sentences") as page,
    ):
        playwright.expect(page.locator("#tokens span")).to_have_count(5, timeout=20_000)  # four words and the end
        assert (
            page.locator("#heat tbody tr").count() == RECIPES["smoke/em-sentences"].make().sizes()[0]
        )  # a row for each layer
        words = page.locator("#sentence-words")
        before = words.inner_text()
        page.locator("#sentence-classes button").nth(1 - int(before.split("predicts: ")[1][0])).click()
        assert words.inner_text() != before  # another class
        page.locator("#sentence").fill("good film")
        page.locator("#sentence-form button").click()
        playwright.expect(page.locator("#tokens span")).to_have_count(3, timeout=20_000)
    with served() as address, page_of(browser, address) as page:
        assert page.locator("#tab-sentences").is_hidden()  # where no network of sentences is loaded


def test_a_network_of_own_pictures_answers_by_the_names_of_its_classes(browser, tmp_path):
    classes = ("crow", "gull", "a bird with a very long name")
    run = own_run(OwnImages(classes=classes, shape=(1, 20, 20), n_train=100, n_test=10))
    with served(*saved(tmp_path, run)) as address, page_of(browser, address) as page:
        playwright.expect(page.locator("#answer-one")).to_have_text(re.compile("|".join(classes)), timeout=20_000)
        assert page.locator("#bars-one .bar b").all_inner_texts() == list(classes)
        assert page.locator("#routing text").all_text_contents() == ["crow", "gull", "a bird w…"]
        page.locator("#tab-compare").click()
        playwright.expect(page.locator("#compare tbody tr")).to_have_count(1 + len(TITLES), timeout=20_000)
        assert page.locator("#compare td.own .said b").first.inner_text() in classes


def test_a_network_without_a_decoder_keeps_its_card_and_says_so(browser, tmp_path):
    with (
        served(*saved(tmp_path, RECIPES["smoke/capsnet-plain"].make())) as address,
        page_of(browser, address) as page,
    ):
        words, drawing = page.locator("#card-turn #no-decoder"), page.locator("#decoder-one")
        playwright.expect(words).to_contain_text("has no decoder")
        assert words.is_visible() and drawing.is_hidden() and "These can: " in words.inner_text()
        options = page.locator("#network-one option").all_inner_texts()
        page.locator("#network-one").select_option(label=next(name for name in options if name.startswith("capsnet-")))
        playwright.expect(drawing).to_be_visible(timeout=20_000)
        assert words.is_hidden()


def test_everything_that_can_be_used_has_a_name(browser, address):
    with page_of(browser, address) as page:
        read(page, "7")
        nameless = page.evaluate(
            "Array.from(document.querySelectorAll('button, input, select, [role=img]')).filter("
            "e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim())).length"
        )
        assert nameless == 0


@pytest.mark.skipif(
    "ONNXRUNTIME_WEB" not in os.environ,
    reason="ONNXRUNTIME_WEB names no npm package of onnxruntime-web, folder or .tgz",
)
def test_the_page_as_plain_files_reads_and_draws_without_a_server_that_computes(browser, tmp_path):
    pytest.importorskip("onnxscript")
    command = [
        sys.executable,
        "-m",
        "torchcaps",
        "export",
        "--web",
        str(tmp_path),
        "--runtime",
        os.environ["ONNXRUNTIME_WEB"],
    ]
    subprocess.run(command, cwd=HOME, env=os.environ | {"PYTHONPATH": str(HOME)}, check=True)
    command = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as files:
        port = re.search(r"port (\d+)", files.stdout.readline())[1]
        address = f"http://127.0.0.1:{port}"
        try:
            with page_of(browser, address) as page:
                read(page, "7")
                page.locator("#pad-one").get_by_role("button", name="Example 0").click()
                read(page, "0")
                settled(page)
                before = picture(page, "turned-one")
                page.locator("#sliders-one input").nth(6).fill("0.6")
                settled(page)
                assert picture(page, "turned-one") != before
                page.locator("#tab-pairs").click()
                playwright.expect(page.locator("#answer-pairs")).to_contain_text("Predicted: ", timeout=20_000)
                assert page.locator("#tab-sentences").is_hidden()
        finally:
            files.terminate()
