"""Self-contained HTML report on a trained model: facts, figures and explanations, with no external files."""

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcaps.figures import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn


class Section(NamedTuple):
    """Heading, alternative text and explanation of a figure."""

    heading: str
    alt: str
    words: str


LEAD = (
    "A capsule is a small group of neurons whose output is a vector. The length of the vector is the probability that "
    "something is present; its direction describes its form: slant, thickness, position. "
    "This page shows what a capsule network learnt and how it decides."
)
SECTIONS = {
    "learning_curve": Section(
        "How it learnt",
        "Two line charts over the training steps: the loss and its parts, and the error in percent",
        "Each training step lowers the loss on one batch of images. "
        "The margin loss makes the capsule of the true class "
        "long and all others short. With a decoder, the reconstruction loss makes that capsule encode enough to redraw "
        "the image. So it learns form, not only class.",
    ),
    "confusion_matrix": Section(
        "Correct and wrong answers",
        "A table of true against predicted classes; correct predictions are blue, errors orange",
        "The prediction is the class with the longest capsule. Rows are true classes, columns predictions: blue is "
        "correct, orange is wrong. Many errors in one cell mean that two classes look alike to the network.",
    ),
    "reconstructions": Section(
        "Reconstructions",
        "Input images above their reconstructions from one class capsule",
        "A decoder reconstructs the image from the pose of one class capsule alone. The reconstruction shows what the "
        "capsule encodes. A misclassified image is reconstructed twice, from the true and from the predicted class. "
        "Often both look plausible.",
    ),
    "dimension_sweeps": Section(
        "Pose dimensions",
        "Rows of reconstructions in which one pose dimension changes from left to right",
        "One pose dimension of the predicted class is changed, all others stay, and the image is reconstructed. A "
        "dimension with a meaning changes one property: slant, width, thickness, the size of a loop. The network was "
        "never given these properties.",
    ),
    "couplings": Section(
        "How the routing decides",
        "For each routing iteration a map of couplings, the couplings by class, and the capsule length by class",
        "Each primary capsule votes for the pose of every class capsule. At first its couplings are uniform. In each "
        "routing iteration, classes whose votes agree receive larger couplings. Small changes suffice: "
        "votes that agree "
        "add up to a long vector, the others cancel out.",
    ),
    "couplings_of_a_mistake": Section(
        "When routing goes wrong",
        "The same maps and bars for a misclassified image",
        "The same view of a misclassified image. The true class is blue, the predicted class is orange. "
        "Compare whether "
        "the wrong class led from the first iteration or overtook later.",
    ),
}
CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1f2430; --soft: #5b6472; --line: #e2e6ec; --blue: #0072b2; --orange: #d55e00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11141a; --card: #191d25; --ink: #e8eaee; --soft: #a3adbb; --line: #2b313c;
    --blue: #62b5e8; --orange: #f0905a;
  }
  .plate { filter: brightness(.93) }
}
* { box-sizing: border-box }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1.0625rem/1.65 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 56rem; margin: 0 auto; padding: clamp(1.5rem, 5vw, 4rem) clamp(1rem, 4vw, 2rem) }
.mark { display: flex; gap: .35rem; margin-bottom: 1.4rem }
.mark i { width: .8rem; height: .6rem; border-radius: 1rem; background: var(--line) }
.mark .long { width: 3.4rem; background: var(--blue) }
.mark .short { width: 1.6rem; background: var(--orange) }
h1, h2 { overflow-wrap: anywhere; text-wrap: balance }
h1 { font-size: clamp(1.8rem, 5vw, 2.6rem); line-height: 1.15; letter-spacing: -.02em; margin: 0 0 1rem }
h2 { font-size: 1.4rem; line-height: 1.25; letter-spacing: -.01em; margin: 0 0 .4rem }
p { margin: 0 0 1.2rem; max-width: 42rem; text-wrap: pretty }
.lead { color: var(--soft); font-size: 1.15rem }
table { border-collapse: collapse; margin: 2rem 0 0; width: 100%; max-width: 42rem; font-size: .95rem }
th, td {
  text-align: left; vertical-align: top; padding: .45rem 0; border-top: 1px solid var(--line);
  overflow-wrap: anywhere;
}
tr:last-child > * { border-bottom: 1px solid var(--line) }
th { font-weight: 400; color: var(--soft); width: 30%; padding-right: 1rem }
td { font-variant-numeric: tabular-nums }
section { margin-top: clamp(2.8rem, 7vw, 4.5rem) }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 14px; overflow: hidden }
.plate { overflow-x: auto; background: #fff; padding: clamp(.8rem, 3vw, 1.6rem); text-align: center }
img { display: inline-block; vertical-align: top; width: min(100%, var(--width)); height: auto }
figcaption {
  padding: .9rem clamp(.9rem, 3vw, 1.6rem); border-top: 1px solid var(--line);
  color: var(--soft); font-size: .9rem; line-height: 1.5;
}
footer { margin-top: 4rem; color: var(--soft); font-size: .85rem }
/* wide figures scroll sideways on a phone, so that small text stays readable */
@media (max-width: 40rem) { body { font-size: 1rem } img { width: max(100%, calc(.72 * var(--width))) } }
@media print { figure, tr { break-inside: avoid } body { background: none } }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
<header>
<div class="mark" aria-hidden="true"><i></i><i class="long"></i><i></i><i class="short"></i><i></i></div>
<h1>{title}</h1>
<p class="lead">{lead}</p>
{facts}
</header>
{sections}
<footer>Made by torchcaps. This file is self-contained and works offline.</footer>
</main>
</body>
</html>
"""


def write_report(
    path: Path | str, title: str, facts: list[tuple[str, Any]], figures: dict[str, tuple[Figure, str]]
) -> Path:
    """Write the page to `path`; a figure without an entry in SECTIONS gets its name as heading."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = "\n".join(_section(name, figure, caption) for name, (figure, caption) in figures.items())
    page = PAGE.format(title=escape(title), css=CSS, lead=escape(LEAD), facts=_table(facts), sections=sections)
    path.write_text(page, encoding="utf-8")
    return path


def _table(facts: list[tuple[str, Any]]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>' for name, value in facts
    )
    return f"<table>\n<tbody>\n{rows}\n</tbody>\n</table>" if rows else ""


def _section(name: str, figure: Figure, caption: str) -> str:
    plain = name.replace("_", " ").capitalize()
    heading, alt, words = SECTIONS.get(name, Section(plain, plain, ""))
    image = base64.b64encode(png(figure)).decode()
    width, height = (round(100 * inches) for inches in figure.get_size_inches())
    size = f'width="{width}" height="{height}" style="--width: {width}px"'
    return f"""<section>
<h2>{escape(heading)}</h2>
{f"<p>{escape(words)}</p>" if words else ""}
<figure>
<div class="plate"><img src="data:image/png;base64,{image}" alt="{escape(alt)}" {size}></div>
<figcaption>{escape(caption)}</figcaption>
</figure>
</section>"""
