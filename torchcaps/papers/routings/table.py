"""Tables of docs/which-routing.md and which-routing-tables.md: errors of all sets, then each set with costs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from torchcaps.papers.against_cnn import NARROW, PAIRS, PHOTOS, compared, read_intervals, spread_of
from torchcaps.papers.routings.measured import Measured, measured
from torchcaps.papers.routings.rows import ABOUT, COMPARED, CONTROL, SETS, WITHOUT_CAPSULES
from torchcaps.results.paired import LEVEL
from torchcaps.results.statistics import UNCHECKED

HEAD = ("routing", "error, % (n)", f"minus {CONTROL}, 95 % interval", "parameters")
COSTS = ("ms per step", "MiB")  # of the machine: no predictions give them again
ALL, BETWEEN = "all", "between"  # in place of a set
SHORT = {
    "cifar": "CIFAR-10",
    "fashion": "Fashion-MNIST",
    "smallnorb": "smallNORB",
    "like": "affine digits",
    "digits": "small digits",
}
NOTE = f"{UNCHECKED} Measured by `torchcaps bench routings` and kept in costs.csv; `torchcaps verify` cannot check it."


def routings_table(which: str, results: Path) -> str:
    """Format a set's rows as a Markdown table, the lowest error first.

    `all`: the errors of every set. `between`: differences of other rows than the control, on photographs.
    """
    if which == ALL:
        return _overview(results)
    if which == BETWEEN:
        return _between(results)
    if which not in SETS:
        raise ValueError(f"there is no set {which!r} of routings; there are {', '.join(SETS)}, {ALL}, {BETWEEN}")
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
    return "\n".join([*lines, *(["", NOTE, *_of_other_code(rows)] if marked else [])]) + "\n"


def _of_other_code(rows: Sequence[Measured]) -> list[str]:
    """Name the rows that were timed at another commit than most of their set."""
    commits = [row.commit for row in rows if row.commit]
    most = max(commits, key=commits.count)
    others = [f"`{row.about}`" for row in rows if row.commit not in ("", most)]
    return [f"Timed with other code than the rest: {', '.join(others)}."] if others else []


def _overview(results: Path) -> str:
    """Format the mean errors of all sets: bold where significantly below the control, in brackets where above."""
    columns, head, n_compared, n_seeds = {}, ("routing", *SHORT.values()), 0, set()
    for which in SHORT:
        leaders = {name: leader for name, (_, leader) in _compared(which, results).items()}
        rows = [row for row in measured(which, results) if row.errors]
        columns[which] = {
            row.name: beside_control(f"{mean(row.errors):.2f}", leaders.get(row.name, "open")) for row in rows
        }
        n_compared += len(leaders)
        n_seeds |= {len(row.errors) for row in rows}
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in (CONTROL, *(name for name in (*COMPARED, *WITHOUT_CAPSULES) if name != CONTROL)):
        cells = (ABOUT.get(name, name), *(columns[which].get(name, "-") for which in SHORT))
        lines.append(f"| {' | '.join(cell.translate(NARROW) for cell in cells)} |")
    if not n_compared:
        return "\n".join(lines) + "\n"
    by_chance = f"about {(1 - LEVEL) * n_compared:.0f} would be marked by chance"
    seeds = " or ".join(map(str, sorted(n_seeds)))
    lines += ["", f"{seeds} seeds per row; {n_compared} comparisons with `{CONTROL}`, of which {by_chance}."]
    return "\n".join(lines) + "\n"


def _between(results: Path) -> str:
    """Format the differences of the pairs that do not have the control, a column for each set of photographs."""
    stored, found = read_intervals(results), {}
    for pair in PAIRS[f"routings_{BETWEEN}"]:
        both = pair.results(results)
        name, other = (ABOUT.get(name, name).removeprefix("no capsules: ") for name in (pair.model, pair.without))
        cell = in_bold(*compared(pair, both, stored)) if all(both) else "not run yet"
        found.setdefault((name, other), {})[pair.data] = cell
    sets = [SETS[which] for which in PHOTOS]
    lines = [f"| {' | '.join(('row', 'minus', *sets))} |", "|---|---|" + "---|" * len(sets)]
    for names, cells in found.items():
        lines.append(f"| {' | '.join((*names, *(cells.get(name, '-') for name in sets))).translate(NARROW)} |")
    return "\n".join(lines) + "\n"


def beside_control(error: str, leader: str) -> str:
    """Mark an error that is significantly below the control's or above; a star: for these two networks alone."""
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
    return {name: in_bold(*difference) for name, difference in _compared(which, results).items()}


def in_bold(difference: str, leader: str) -> str:
    """Set a difference in bold where one of the two rows leads."""
    starred = difference.replace("*", r"\*")  # a bare star would end the bold
    return difference if leader in ("open", "-") else f"**{starred}**"


def _costs(row: Measured) -> tuple[str, str, str]:
    pace = "-" if row.ms_per_step is None else f"{row.ms_per_step:.2f}"
    memory = "-" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:,.0f}"
    return f"{row.parameters:,}", pace, memory
