"""Tables of docs/which-routing.md and which-routing-tables.md: errors of all sets, then each set with costs."""

from pathlib import Path
from statistics import mean

from torchcaps.papers.against_cnn import NARROW, PAIRS, compared, read_intervals, spread_of
from torchcaps.papers.routings.measured import Measured, measured
from torchcaps.papers.routings.rows import ABOUT, COMPARED, CONTROL, SETS, WITHOUT_CAPSULES
from torchcaps.results.statistics import UNCHECKED

HEAD = ("routing", "error, % (n)", f"minus {CONTROL}, 95 % interval", "parameters")
COSTS = ("ms per step", "memory, MiB")  # of the machine: no predictions give them again
ALL = "all"  # in place of a set
SHORT = {
    "cifar": "CIFAR-10",
    "fashion": "Fashion-MNIST",
    "smallnorb": "smallNORB",
    "like": "affine digits",
    "digits": "small digits",
}
NOTE = f"{UNCHECKED} Measured by `torchcaps bench routings` and kept in costs.csv; `torchcaps verify` cannot check it."


def routings_table(which: str, results: Path) -> str:
    """Format a set's rows as a Markdown table, the lowest error first; `all`: the errors of every set."""
    if which == ALL:
        return _overview(results)
    if which not in SETS:
        raise ValueError(f"there is no set {which!r} of routings; there are {', '.join(SETS)}, {ALL}")
    rows = measured(which, results)
    done = sorted((row for row in rows if row.errors), key=lambda row: mean(row.errors))
    beside = _differences(which, results)
    marked = UNCHECKED if any(row.ms_per_step is not None for row in rows) else ""
    head = (*HEAD, *(name + marked for name in COSTS))
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in (*done, *(row for row in rows if not row.errors)):
        error = spread_of(row.errors) if row.errors else "not run yet"
        cells = (row.about, error, beside.get(row.name, "-"), *_costs(row))
        lines.append(f"| {' | '.join(cell.translate(NARROW) for cell in cells)} |")
    return "\n".join([*lines, *(["", NOTE] if marked else [])]) + "\n"


def _overview(results: Path) -> str:
    """Format the mean errors of all sets: bold where surely below the control, in brackets where surely above."""
    columns, head = {}, ("routing", *SHORT.values())
    for which in SHORT:
        leaders = {name: leader for name, (_, leader) in _compared(which, results).items()}
        columns[which] = {
            row.name: beside_control(f"{mean(row.errors):.2f}", leaders.get(row.name, "open"))
            for row in measured(which, results)
            if row.errors
        }
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in (CONTROL, *(name for name in (*COMPARED, *WITHOUT_CAPSULES) if name != CONTROL)):
        cells = (ABOUT.get(name, name), *(columns[which].get(name, "-") for which in SHORT))
        lines.append(f"| {' | '.join(cell.translate(NARROW) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def beside_control(error: str, leader: str) -> str:
    """Mark an error that is surely below the control's or above; a star: surely for these two networks alone."""
    if leader == "-":
        return f"{error} stale"
    star = r"\*" if leader.endswith("*") else ""
    if leader.startswith("capsules"):  # the first of the pair
        return f"**{error}{star}**"
    return f"({error}{star})" if leader.startswith("baseline") else error


def _compared(which: str, results: Path) -> dict[str, tuple[str, str]]:
    """Compare every row with the control: the difference in words, and which of the two leads."""
    stored, found = read_intervals(results), {}
    for pair in PAIRS[f"routings_{which}"]:
        both = pair.results(results)
        if all(both):
            found[pair.model] = compared(pair, both, stored)
    return found


def _differences(which: str, results: Path) -> dict[str, str]:
    """Format the difference of every row from the control, in bold where the interval leaves out zero."""
    found = {}
    for name, (difference, leader) in _compared(which, results).items():
        starred = difference.replace("*", r"\*")  # a bare star would end the bold
        found[name] = difference if leader in ("open", "-") else f"**{starred}**"
    return found


def _costs(row: Measured) -> tuple[str, str, str]:
    pace = "-" if row.ms_per_step is None else f"{row.ms_per_step:.2f}"
    memory = "-" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:,.0f}"
    return f"{row.parameters:,}", pace, memory
