"""What is typed on the ladder's page: table 3 and the ratios above it are those of the committed output."""

from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs/papers/jeong2019.md").read_text()
NAMES = {"L-CapsNet": "ladder", "shared nets": "one net for all classes", "reference ops": "routing by the reference"}


def measured() -> dict[str, list[str]]:
    """Rows of the output under the page's names, without the peak memory, which the page leaves out."""
    rows = {}
    for line in (HOME / "bench/h200-ladder.txt").read_text().splitlines():
        if line.startswith("│"):
            name, *numbers = (cell.strip() for cell in line.strip("│").split("│"))
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            rows[name] = numbers[:5] + numbers[6:]
    return rows


def test_table_3_is_the_committed_output():
    rows = measured()
    assert len(rows) == 11
    for name, numbers in rows.items():
        assert f"| {' | '.join((name, *numbers))} |\n" in PAGE, name


def test_ratios_in_the_first_table_are_of_that_output():
    """Column 1 is forward and backward, column 3 the whole step."""
    rows = measured()

    def ratios(column: int, by: str) -> str:
        return ", ".join(f"{float(rows[f'ladder, K = {n}'][column]) / float(rows[by][column]):.2f}" for n in (50, 70, 100))

    first = PAGE[: PAGE.index("## The claim")]
    assert f"K = 50, 70, 100: {ratios(1, 'CapsNet, r = 3')};" in first
    assert f"without one {ratios(1, 'CapsNet, r = 3, no decoder')} |" in first
    assert f"{ratios(3, 'CapsNet, r = 3')} of it by our kernels" in first
    assert f"{ratios(3, 'CapsNet, r = 3, routing by the reference')} by the reference" in first
