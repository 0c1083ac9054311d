"""Table of docs/which-routing.md: error, difference from uniform couplings, parameters, time and memory."""

from pathlib import Path
from statistics import mean

from torchcaps.papers.against_cnn import NARROW, PAIRS, compared, read_intervals, spread_of
from torchcaps.papers.routings.measured import Measured, measured
from torchcaps.papers.routings.rows import CONTROL, SETS
from torchcaps.results.statistics import UNCHECKED

HEAD = ("routing", "error, % (n)", f"minus {CONTROL}, 95 % interval", "parameters")
COSTS = ("ms per step", "memory, MiB")  # of the machine: no predictions give them again
NOTE = f"{UNCHECKED} Measured by `torchcaps bench routings` and kept in costs.csv; `torchcaps verify` cannot check it."


def routings_table(which: str, results: Path) -> str:
    """Format a set's rows as a Markdown table, the lowest error first."""
    if which not in SETS:
        raise ValueError(f"there is no set {which!r} of routings; there are {', '.join(SETS)}")
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


def _differences(which: str, results: Path) -> dict[str, str]:
    """Format the difference of every row from the control, in bold where the interval leaves out zero."""
    stored, found = read_intervals(results), {}
    for pair in PAIRS[f"routings_{which}"]:
        both = pair.results(results)
        if all(both):
            difference, leader = compared(pair, both, stored)
            starred = difference.replace("*", r"\*")  # a bare star would end the bold
            found[pair.model] = difference if leader in ("open", "-") else f"**{starred}**"
    return found


def _costs(row: Measured) -> tuple[str, str, str]:
    pace = "-" if row.ms_per_step is None else f"{row.ms_per_step:.2f}"
    memory = "-" if row.memory_bytes is None else f"{row.memory_bytes / 2**20:,.0f}"
    return f"{row.parameters:,}", pace, memory
