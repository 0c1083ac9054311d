"""One self-contained HTML page about a trained model: facts, figures, and what they mean. It loads nothing from anywhere."""

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
    """What stands around a figure of that name, whatever model it shows."""

    heading: str
    alt: str
    words: str


LEAD = (
    "A capsule is a small group of neurons that speaks in vectors. How long its vector is says whether something is there; where it "
    "points says in which form: slanted, thick, moved to the left. This page shows what such a network learnt and how it decides."
)
SECTIONS = {
    "learning_curve": Section(
        "How it learnt",
        "Two line charts over the training steps: the loss and its parts, and the percentage of wrong answers",
        "After each small batch of pictures the network corrects itself, and the loss says how far off it was. Its margin part asks the "
        "capsule of the right class to be long and all others to be short. Its reconstruction part, where there is a decoder, asks "
        "that capsule to remember enough to draw the picture again: that is what pushes it to learn forms, and not names alone.",
    ),
    "confusion_matrix": Section(
        "What it gets right",
        "A table of true classes against answers; right answers are blue, mistakes orange",
        "The answer is the class whose capsule is longest. Rows are the true classes, columns the answers: blue is right, orange is wrong. "
        "Mistakes that gather in one cell tell which shapes look alike to the network.",
    ),
    "reconstructions": Section(
        "What a capsule saw",
        "Input pictures above the pictures that the decoder draws from one class capsule",
        "A decoder is given the few numbers of one class capsule, and nothing else, and draws the picture again. What survives is what the "
        "capsule knows. A mistaken picture is drawn twice, and often both drawings look reasonable: each is what the network would have "
        "to believe for that answer.",
    ),
    "dimension_sweeps": Section(
        "What its numbers mean",
        "Rows of drawings in which one number of a capsule changes from left to right",
        "Move one number of the winning capsule, leave all others alone, and draw again. A number that has found a meaning changes the "
        "drawing in one way: slant, width, thickness, the size of a loop. Nobody told the network what to use its numbers for.",
    ),
    "couplings": Section(
        "How the routing decides",
        "For each routing pass a map of votes, the share of votes by class, and the capsule length by class",
        "Each small capsule of the layer below votes on what every class capsule should look like. At first it spreads its vote evenly. "
        "Then classes whose votes agree receive more of them, pass after pass. Shares need to move only a little: votes that agree "
        "add up to a long vector, while the others cancel out.",
    ),
    "couplings_of_a_mistake": Section(
        "When the routing goes astray",
        "The same maps and bars for a mistaken picture",
        "The same view of a picture that the network gets wrong. The truth is blue, the answer it gave is orange: see whether the wrong "
        "class led from the first pass, or whether the routing tipped the balance.",
    ),
}
CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1f2430; --soft: #5b6472; --line: #e2e6ec; --blue: #0072b2; --orange: #d55e00;
}
@media (prefers-color-scheme: dark) {
  :root { --page: #11141a; --card: #191d25; --ink: #e8eaee; --soft: #a3adbb; --line: #2b313c; --blue: #62b5e8; --orange: #f0905a }
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
th, td { text-align: left; vertical-align: top; padding: .45rem 0; border-top: 1px solid var(--line); overflow-wrap: anywhere }
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
/* small print stays readable on a phone: wide figures scroll sideways there */
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
<footer>Made by torchcaps. This file is complete in itself: keep it, send it, open it offline.</footer>
</main>
</body>
</html>
"""


def write_report(path: Path | str, title: str, facts: list[tuple[str, Any]], figures: dict[str, tuple[Figure, str]]) -> Path:
    """Write the page to `path`; a figure of a name that SECTIONS does not know gets its name as heading."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = "\n".join(_section(name, figure, caption) for name, (figure, caption) in figures.items())
    page = PAGE.format(title=escape(title), css=CSS, lead=escape(LEAD), facts=_table(facts), sections=sections)
    path.write_text(page, encoding="utf-8")
    return path


def _table(facts: list[tuple[str, Any]]) -> str:
    rows = "\n".join(f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>' for name, value in facts)
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
