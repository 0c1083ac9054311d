"""Output of `torchcaps bench`: no time without a check, no gap without its reason."""

import io
import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from torchcaps import bench, cli
from torchcaps.bench import ops, scale, timing
from torchcaps.bench.cases import CASES, Case, big_images, code_product, dynamic, em, local, select, squashing
from torchcaps.bench.scale import Axis, Sizes, bench_scale, fitted_exponent

CPU = torch.device("cpu")
BOTH = ("reference", "blocked")
# peak of forward and backward in float64, in units of the votes: 4.9, 13.4 and 16.1, measured
TIMES_ITS_VOTES = {"dynamic_routing": 6, "em_routing": 14, "matrix_em_routing": 17}
TIMES_ITS_VOTES |= {"squash": 0, "local_routing": 0, "code_product": 0}


def printed(do, *args, **how) -> str:
    text = io.StringIO()
    do(*args, console=Console(file=text, width=300), **how)
    return text.getvalue()


@pytest.fixture
def table(monkeypatch):
    """The output of `bench ops` for these cases."""

    def of(*cases: Case, **how) -> str:
        monkeypatch.setattr(ops, "CASES", {"cpu": list(cases)})
        return printed(bench.bench_ops, CPU, 2, **how)

    return of


def cells(text: str, backend: str) -> list[str]:
    """Cells of the table's first row for this backend, from ms on."""
    line = next(line for line in text.splitlines() if f"│ {backend} " in line)
    return [cell.strip() for cell in line.split("│")][5:-1]


def wrong_for(*backends: str):
    """A comparison that finds these wrong."""

    def compare(op, args, *, backend, dtype):
        assert backend not in backends, f"{backend}: poses [b j e]: off by 1"

    return compare


def test_every_op_is_timed_on_a_cpu(table):
    text = table(
        dynamic(2, 7, 3, 4, 5, backends=BOTH),
        em(2, 7, 3, 2, 4, 4),
        local(2, 3, 2, 2, 4, 4, kernel=2),
        squashing(2, 7, 4),
    )
    assert len(re.findall(r"│ (?:reference|blocked) +│ \d", text)) == 5
    ms, repeats, speed, memory, against = cells(text, "reference")
    assert float(ms) > 0 and repeats == "2" and against == "1.00x"
    assert float(speed.replace(",", "")) == pytest.approx(2000 / float(ms), rel=0.1)
    assert memory == "-" or float(memory) >= 0
    assert cells(text, "blocked")[-1].endswith("x")


def test_a_code_times_a_matrix_is_the_sum_of_its_rows_and_both_are_timed(table):
    case = code_product(3, 9, 4, 5)
    (weight,) = case.inputs(CPU, torch.float64).values()
    dense, rows = (case.call(backend, weight) for backend in case.backends)
    torch.testing.assert_close(rows, dense)
    gradients = [torch.autograd.grad(found.square().sum(), weight)[0] for found in (dense, rows)]
    torch.testing.assert_close(*gradients)
    text = table(case)
    assert float(cells(text, "reference")[0]) > 0 and cells(text, "rows")[-1].endswith("x")


def test_a_red_check_prints_no_time(table, monkeypatch):
    monkeypatch.setattr(ops, "compare_routing", wrong_for("blocked"))
    text = table(dynamic(2, 7, 3, 4, 5, backends=BOTH))
    # the brackets of a shape are no markup
    assert cells(text, "blocked") == ["wrong: blocked: poses [b j e]: off by 1", "", "", "", ""]
    assert cells(text, "reference")[-1] == "1.00x"


def test_nothing_is_compared_with_a_reference_that_is_wrong(table, monkeypatch):
    monkeypatch.setattr(ops, "compare_routing", wrong_for("reference"))
    text = table(dynamic(2, 7, 3, 4, 5, backends=BOTH))
    assert float(cells(text, "blocked")[0]) > 0
    assert cells(text, "blocked")[-1] == "-"


def test_a_reference_that_cannot_run_is_named_with_its_bytes(table):
    text = table(replace(big_images(2, 2, 9, 3), backends=BOTH))
    assert cells(text, "reference") == ["-"] * 5
    assert cells(text, "blocked")[-1] == "-"
    assert (
        "224x224, reference: cannot run: its votes alone, 2 x 18 x 3 x 16 numbers, are 0 GB in float32 (computed)"
        in text
    )
    (big,) = select(CASES["cuda"], ["224x224"])
    assert big.cannot["reference"].endswith("32 x 346,112 x 200 x 16 numbers, are 142 GB in float32 (computed)")


def test_a_backend_that_refuses_or_has_too_little_memory_is_a_gap_with_its_reason(table, monkeypatch):
    text = table(dynamic(2, 7, 3, 4, 5, backends=("reference", "no such")))
    assert cells(text, "no such") == ["-"] * 5
    assert "r3, float32 no such: dynamic_routing: backend must be auto" in text

    def run_out(*args, **how):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(ops, "measure", run_out)
    text = table(dynamic(2, 7, 3, 4, 5))
    assert cells(text, "reference") == ["-"] * 5
    assert "r3, float32 reference: ran out of memory" in text


def test_memory_in_all_is_told_where_it_counts(table, monkeypatch):
    monkeypatch.setattr(ops, "measure", lambda *args, **how: timing.Measured(1.0, 3, 2**20, 1_230_000_000))
    text = table(replace(dynamic(2, 7, 3, 4, 5), in_all=True), squashing(2, 7, 4))
    assert "r3, float32 reference: 1.23 GB in all, with inputs, outputs and gradients" in text
    assert text.count("in all") == 1


def test_forward_alone_is_checked_and_timed_without_gradients(table, monkeypatch):
    grads, compare = [], ops.compare_routing
    case = dynamic(2, 7, 3, 4, 5, backward=False)
    watched = replace(
        case, call=lambda *args, **inputs: grads.append(torch.is_grad_enabled()) or case.call(*args, **inputs)
    )
    monkeypatch.setattr(ops, "compare_routing", lambda *args, **how: margins.append(compare(*args, **how)))
    margins = []
    text = table(watched)
    assert "│ b2 7x4 -> 3x5 r3 forward │" in text and float(cells(text, "reference")[0]) > 0
    assert len(grads) > 3 and not any(grads)
    assert [set(margin) for margin in margins] == [{"output"}]
    (forward,) = (case for case in CASES["cpu"] if not case.backward)
    assert "blocked" in forward.backends


def test_a_row_that_was_checked_on_another_problem_says_so(table):
    small = dynamic(2, 7, 3, 4, 5)
    text = table(dynamic(3, 7, 3, 4, 5, backends=BOTH, stand_in=small), small)
    assert "b3 7x4 -> 3x5 r3, blocked: checked on a smaller problem, b2 7x4 -> 3x5 r3\n" in text
    assert text.count("checked on") == 1
    assert (
        dynamic(3, 7, 3, stand_in=small)
        .checked_on("triton")
        .endswith("which runs the same kernels with the same flags")
    )


def test_a_check_on_another_problem_is_of_that_problem(monkeypatch):
    seen = []
    monkeypatch.setattr(ops, "compare_routing", lambda op, args, **how: seen.append(len(args["poses"])))
    ops.check(dynamic(3, 7, 3, 4, 5, stand_in=dynamic(2, 7, 3, 4, 5)), torch.float32, "blocked", CPU)
    assert seen == [2]


def test_the_head_names_device_version_and_commit(table, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_COMMIT", "0123456789abcdef")
    head = table(squashing(2, 7, 4)).splitlines()[0]
    n = torch.get_num_threads()
    threads = f"{n} thread" if n == 1 else f"{n} threads"
    assert f"CPU, {threads}, torch {torch.__version__}, commit 0123456789ab; medians of at most 2" in head
    monkeypatch.setenv("TORCHCAPS_DIRTY", "1")
    assert "commit 0123456789ab with changes;" in table(squashing(2, 7, 4))
    monkeypatch.setattr(timing, "commit", lambda: {"commit": "unknown", "dirty": True})
    assert f"torch {torch.__version__}; medians" in table(squashing(2, 7, 4))


def test_only_filters(table):
    cases = dynamic(2, 7, 3, 4, 5), dynamic(3, 7, 3, 4, 5), squashing(2, 7, 4)
    assert [case.name for case in select(cases, ["b2"])] == ["dynamic_routing b2 7x4 -> 3x5 r3", "squash b2 7x4"]
    assert select(cases, []) == list(cases)
    assert select(cases, ["b3, squash"]) == select(cases, ["b3", "squash"]) == list(cases[1:])
    assert "dynamic_routing" not in table(*cases, only=["squash"])


def test_a_filter_that_fits_nothing_lists_the_names():
    refused = (
        CliRunner()
        .invoke(cli.app, ["bench", "ops", "--device", "cpu", "--only", "squash", "--only", "sqash"])
        .exception
    )
    assert isinstance(refused, ValueError)
    assert str(refused).startswith("--only 'sqash' fits no case; there are:")
    assert all(case.name in str(refused) for case in CASES["cpu"])


def test_cases_are_told_apart_by_name():
    for cases in CASES.values():
        assert len({case.name for case in cases}) == len(cases) >= 5


POINTS = {
    device: [x for axis in axes for x in axis.cases(scale.LARGEST_REFERENCE[device])]
    for device, axes in scale.AXES.items()
}


@pytest.mark.parametrize(("device", "most"), [("cpu", 2e9), ("cuda", 5e9)])
def test_a_check_in_float64_needs_two_gigabytes_at_most_and_on_a_gpu_five(device, most):
    for case in (*CASES[device], *POINTS[device]):
        assert 8 * TIMES_ITS_VOTES[case.op] * (case.stand_in or case).n_votes <= most, case.name
        assert case.stand_in is None or case.stand_in.op == case.op, case.name


def test_inputs_repeat_and_are_all_different():
    case = dynamic(4, 8, 4, 8, 8)
    once, again = (case.inputs(CPU, torch.bfloat16) for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert all(tensor.dtype == torch.bfloat16 and tensor.requires_grad for tensor in once.values())
    first = [tensor.detach().flatten()[:8] / tensor.detach().flatten()[0] for tensor in once.values()]
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


def test_the_bench_sees_every_shape_of_weight():
    assert list(dynamic(2, 6, 3, types=2).inputs(CPU, torch.float32)["weight"].shape) == [2, 3, 8, 16]
    assert list(dynamic(2, 6, 3).inputs(CPU, torch.float32)["weight"].shape) == [6, 3, 8, 16]


@pytest.mark.parametrize(
    ("seconds_of_one", "asked", "taken", "warm_ups"),
    [(0.001, 20, 20, 2), (0.5, 20, 6, 2), (1.4, 20, 3, 1), (60, 20, 3, 1), (60, 2, 2, 1)],
)
def test_slow_work_is_repeated_less(monkeypatch, seconds_of_one, asked, taken, warm_ups):
    calls = []
    monkeypatch.setattr(timing, "_once_ms", lambda work, *how: calls.append(work) or 1000 * seconds_of_one)
    assert timing.timed(None, CPU, asked, seconds=3.0) == (1000 * seconds_of_one, taken)
    assert len(calls) == taken + warm_ups


def test_without_a_limit_all_repeats_are_taken(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "_once_ms", lambda work, *how: calls.append(work) or 60_000.0)
    assert bench.time_ms(None, CPU, 7) == 60_000
    assert len(calls) == 8


def test_memory_beyond_inputs_outputs_and_gradients_is_seen():
    """2,000 products of 1,000 numbers are summed: all of them are there at once, and they are neither input nor
    output.
    """
    inputs = {"x": torch.ones(1000, requires_grad=True), "y": torch.ones(2000, 1, requires_grad=True)}
    found = timing.measure(lambda x, y: (x * y).sin().sum(), inputs, CPU, 2)
    assert found.repeats == 2 and found.whole is None
    if found.beyond is not None:
        assert 8e6 < found.beyond < 50e6


def test_the_fitted_exponent():
    sizes = [1000, 4000, 16_000, 64_000, 256_000]
    assert fitted_exponent([(n, 0.003 * n) for n in sizes]) == 1
    assert fitted_exponent([(n, 1e-6 * n**2) for n in sizes]) == 2
    # what every call costs shows at the small sizes only, and those do not count
    assert fitted_exponent([(n, 5 + 0.003 * n) for n in sizes]) == pytest.approx(1, abs=0.05)
    assert fitted_exponent([(10, 1.0), (1000, 100.0)]) == 1
    assert fitted_exponent([(10, 1.0)]) is None


TINY = [
    Axis("n_in", (8, 16, 24), Sizes(batch=2, n_in=8, n_out=3, types=4)),
    Axis("n_out", (2, 3), Sizes(batch=2, n_in=5, n_out=3)),
    Axis("batch", (1, 2, 3), Sizes(batch=2, n_in=5, n_out=3)),
]


@pytest.mark.slow
def test_scale_writes_numbers_and_a_picture(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    said = []
    text = printed(lambda console: said.append(bench_scale(CPU, tmp_path / "new", console, TINY, repeats=2)))
    (written,) = said
    assert [path.suffix for path in written] == [".json", ".png"]
    assert all(path.name.endswith(f"-scale{path.suffix}") and path.parent == tmp_path / "new" for path in written)
    record = json.loads(written[0].read_text())
    assert [axis["name"] for axis in record["axes"]] == ["n_in", "n_out", "batch"]
    for axis, wanted in zip(record["axes"], TINY, strict=True):
        assert [(p["value"], p["backend"]) for p in axis["points"]] == [
            (value, backend) for value in wanted.values for backend in BOTH
        ]
        assert all(p["ms"] > 0 and p["repeats"] == 2 and p["reason"] == "" for p in axis["points"])
        assert set(axis["exponents"]) == set(BOTH)
    assert {"device", "versions", "commit", "dirty", "dtype", "n_iters"} <= record.keys()
    assert len(re.findall(r"(reference|blocked): time grows as (n_in|n_out|batch)\^-?\d+\.\d\d", text)) == 6
    assert image.open(io.BytesIO(written[1].read_bytes())).size[0] == 1200
    assert written[1].stat().st_size < 100_000


def test_scale_leaves_out_a_reference_that_is_too_large_and_says_so(monkeypatch):
    monkeypatch.setitem(scale.LARGEST_REFERENCE, "cpu", 12 * 4 * 2 * 16 * 3 * 16)
    axis = scale.measure_axis(TINY[0], CPU, 2, lambda text: None)
    gaps = [(p["value"], p["backend"]) for p in axis["points"] if p["ms"] is None]
    assert gaps == [(24, "reference")]
    assert "12 times its votes in float32, computed" in axis["points"][4]["reason"]
    text = printed(lambda console: scale._show(axis, console))
    assert "n_in 24, reference: left out: about 0 GB" in text


def test_scale_says_what_was_checked_in_place_of_a_point():
    axis = scale.measure_axis(
        replace(TINY[2], stand_ins={3: Sizes(batch=2, n_in=7, n_out=3)}), CPU, 2, lambda text: None
    )
    words = "checked on a smaller problem, b2 7x8 -> 3x16 r3"
    assert [p["checked_on"] for p in axis["points"]] == ["", "", "", "", "", words]
    text = printed(lambda console: scale._show(axis, console))
    assert f"batch 3, blocked: {words}" in text and text.count("checked on") == 1


def test_scale_prints_no_time_on_red(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(ops, "compare_routing", wrong_for("blocked"))
    text = printed(lambda console: bench_scale(CPU, tmp_path, console, TINY[:1], repeats=2))
    assert "blocked: time grows" not in text
    assert text.count("blocked: wrong: blocked: poses [b j e]: off by 1") == 3
    (path,) = tmp_path.glob("*.json")
    assert [p["ms"] for p in json.loads(path.read_text())["axes"][0]["points"] if p["backend"] == "blocked"] == [
        None
    ] * 3


def test_without_matplotlib_scale_says_what_to_install_before_it_measures(monkeypatch, tmp_path):
    for name in ("matplotlib", "matplotlib.style"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(scale, "measure_axis", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'torchcaps[experiments]'")):
        bench_scale(CPU, tmp_path, Console(file=io.StringIO()))


def test_the_axes_on_cuda_are_those_of_the_bar():
    n_in, n_out, batch = scale.AXES["cuda"]
    assert (n_in.values[0], n_in.values[-1]) == (1024, 262_144)
    assert (n_out.values[0], n_out.values[-1]) == (10, 1000)
    assert batch.values == (8, 32, 128, 512, 2048)
    left_out = [
        case.name for axis in scale.AXES["cuda"] for case in axis.cases(scale.LARGEST_REFERENCE["cuda"]) if case.cannot
    ]
    assert left_out == [
        "dynamic_routing b32 262144x8 -> 10x16 r3 32 types",
        "dynamic_routing b128 1152x8 -> 1000x16 r3",
    ]
