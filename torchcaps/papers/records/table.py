"""Records from result files: seconds of training, the error over seeds, and whether a row counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from torchcaps.data import info
from torchcaps.papers.records import rows
from torchcaps.papers.records.rows import BARS, REDRAWN
from torchcaps.results.claims import Recipe, recipes_of
from torchcaps.results.statistics import NOTE, UNCHECKED, p_below, todays
from torchcaps.runtime.environment import device_in_words

LEVEL, LEAST = 0.05, 3
RULE = (
    f"A row counts as a record if a one-sided t-test over its seeds, {LEAST} at least, gives p < {LEVEL:g} "
    "that its mean error is below the bar."
)
CORRECTED = (
    "Every seed draws training and test images anew, so errors of seeds depend on each other: "
    "the variance of their mean is corrected (Nadeau and Bengio 2003)."
)
HEAD = ("row", "settings", "seconds", "error, % (n)", "p", "counts", "device", "date")


@dataclass(frozen=True)
class Record:
    """Time and error of one row over its seeds."""

    bar: float  # error in percent
    errors: tuple[float, ...]  # by seed, in percent
    seconds: tuple[float, ...]  # by seed, of training alone
    devices: tuple[str, ...]
    dates: tuple[str, ...]
    dirty: int  # seeds of uncommitted code
    overlap: float = 0.0  # test images per training image, if every seed draws both anew

    @property
    def p(self) -> float:
        """P-value of the test that the mean error is below the bar."""
        return p_below(self.errors, self.bar, self.overlap)

    def why_not(self) -> str:
        """Say why this is no record; "" if it is one."""
        if len(self.errors) < LEAST:
            return f"fewer than {LEAST} seeds"
        if self.p >= LEVEL:
            return "misses the bar" if mean(self.errors) >= self.bar else "not surely below the bar"
        if len(self.devices) > 1:
            return "several devices"
        return "uncommitted code" if self.dirty else ""

    def time(self) -> str:
        """Format mean ± sd of the seconds of training."""
        return _spread(self.seconds, 2)

    def error(self) -> str:
        """Format mean ± sd of the error."""
        return _spread(self.errors, 3)


def record_of(recipe: Recipe, results: Path, seeds: Sequence[int] | None = None) -> Record | None:
    """Read the record of a row from the results that have times, of these seeds or of all; None without any."""
    split, metric = recipe.claim.metric.split(".")
    found = [result for result in todays(recipe, results)[0] if "training" in result.get("phases", {})]
    found = [result for result in found if seeds is None or result["seed"] in seeds]
    if not found:
        return None
    makers = [maker for result in found for maker in (*result["begun_by"], result)]
    return Record(
        bar=BARS[recipe.claim.table],
        errors=tuple(result["metrics"][split][metric] for result in found),
        seconds=tuple(result["phases"]["training"] for result in found),
        devices=tuple(dict.fromkeys(device_in_words(maker["device"]) for maker in makers)),
        dates=tuple(sorted({result["date"] for result in found})),
        dirty=sum(result["dirty"] for result in found),
        overlap=_overlap(recipe),
    )


def _overlap(recipe: Recipe) -> float:
    """Compute the test images per training image of a set that every seed draws anew; 0 for another set."""
    about = info(recipe.make().data)
    return about.n_test / about.n_train if recipe.claim.table in REDRAWN else 0.0


def records_table(sets: Sequence[str], results: Path) -> str:
    """Format a Markdown table for each of these sets: the fastest record first, rows not run last."""
    if unknown := [name for name in sets if name not in BARS]:
        raise ValueError(f"there are no records of {', '.join(unknown)}; there are {', '.join(BARS)}")
    recipes = recipes_of("records", rows).values()
    found = {
        name: [(recipe, record_of(recipe, results)) for recipe in recipes if recipe.claim.table == name]
        for name in sets
    }
    timed = any(record for both in found.values() for _, record in both)
    head = [f"{title}{UNCHECKED if timed and title in ('seconds', 'date') else ''}" for title in HEAD]
    lines = [RULE]
    for name, both in found.items():
        lines += [
            "",
            f"## {name}: error below {BARS[name]:g} %",
            "",
            f"| {' | '.join(head)} |",
            "|" + "---|" * len(head),
        ]
        lines += [_line(*pair) for pair in sorted(both, key=lambda pair: _place(pair[1]))]
        if name in REDRAWN and any(record for _, record in both):
            lines += ["", CORRECTED]
    return "\n".join([*lines, *(["", NOTE] if timed else [])]) + "\n"


def _place(record: Record | None) -> tuple[bool, bool, float]:
    """Sort records before other rows that were run, the fastest first."""
    return record is None, bool(record and record.why_not()), mean(record.seconds) if record else 0.0


def _line(recipe: Recipe, record: Record | None) -> str:
    known = f"`{recipe.name.split('/')[1]}`", recipe.claim.row
    if record is None:
        return f"| {' | '.join((*known, 'not run yet', *'-----'))} |"
    p = "-" if len(record.errors) < 2 else f"{record.p:.2g}"
    reason = record.why_not()
    error = f"{record.error()} ({len(record.errors)})"
    made = ", ".join(record.devices), " to ".join(record.dates[:: max(1, len(record.dates) - 1)])
    cells = (*known, record.time(), error, p, f"no: {reason}" if reason else "yes", *made)
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")
