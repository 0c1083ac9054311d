"""Two rows beside each other, with one and with several seeds, and the stored intervals of the table against CNNs."""

from pathlib import Path
from statistics import mean

import pytest
import torch

from torchcaps.data import DataError, fingerprint, load
from torchcaps.papers import RECIPES, against_cnn
from torchcaps.papers.against_cnn import PAIRS, Pair, check_intervals, paired_path, read_intervals, refresh, table_of
from torchcaps.results.compare import compare
from torchcaps.results.paired import interval, paired, predictions_sha256
from torchcaps.results.store import pack, result_path, write_result
from torchcaps.train.plain import to_plain

pytest.importorskip("scipy")
RESULTS = Path(__file__).parents[2] / "results"
ALL = [
    pair
    for group in PAIRS.values()
    for pair in group
    if all((RESULTS / row).exists() for row in (pair.capsules, pair.baseline))  # the others were not run yet
]


def result_of(name, seed, *wrong):
    """Result of a row on generated images that is wrong about some of them."""
    test = load("generated-16", "test")
    said = test.labels.clone()
    said[list(wrong)] = (said[list(wrong)] + 1) % 10
    return {
        "recipe": name,
        "seed": seed,
        "run": to_plain(RECIPES[name].make()),
        "data": {"test": fingerprint(test)},
        "metrics": {"test": {"error_percent": 100 * len(wrong) / len(said)}},
        "predictions": {"test": pack(said)},
        "curve": [],
    }


def test_one_seed_each_covers_other_images_alone():
    first, second = result_of("smoke/capsnet-plain", 0, 0, 1, 2), result_of("smoke/baseline", 0, 2)
    found = paired([first], [second], "test", None, {})
    (known,) = compare(first, second, None)
    assert not found.seeds and found.difference == pytest.approx(known.difference)
    # t of 97.5 % with 255 degrees of freedom
    assert found.high - found.difference == pytest.approx(1.96931 * known.sd, rel=1e-5)


def test_several_seeds_widen_the_interval_by_their_own_variance():
    # all images alike within a seed, so that only the seeds vary: 0 and 1 against 0 and 0
    first, second = torch.tensor([[0.0] * 8, [1.0] * 8], dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)
    found = interval(first, second, torch.arange(8)[:, None])
    assert found.seeds and found.difference == pytest.approx(50)
    # variance 1/2 of two seeds, over two; t of 97.5 % with one degree of freedom is 12.706
    assert found.high == pytest.approx(50 + 100 * 12.7062 * 0.25**0.5, rel=1e-4)


def test_the_interval_covers_the_truth_as_often_as_it_says(rng):
    hits = 0
    for _ in range(400):
        hard = torch.rand(120, generator=rng, dtype=torch.float64) * 0.4
        chance = hard + torch.randn(2, 3, 1, generator=rng, dtype=torch.float64) * 0.05 + 0.2
        first, second = torch.rand(2, 3, 120, generator=rng, dtype=torch.float64) < chance
        found = interval(first.double(), second.double(), torch.arange(120)[:, None])
        hits += found.low <= 0 <= found.high
    assert 0.93 <= hits / 400 <= 1


def test_rows_on_other_examples_are_refused():
    first, second = result_of("smoke/capsnet-plain", 0, 1), result_of("smoke/baseline", 0)
    with pytest.raises(ValueError, match=r"test has sha256 0, the data here \w{8}; name the folder"):
        paired([{**first, "data": {"test": "0"}}], [second], "test", None, {})
    loaded = {"0": (load("generated-16", "test").labels.flip(0), torch.arange(256)[:, None])}
    with pytest.raises(ValueError, match="evaluated on other examples"):
        paired([{**first, "data": {"test": "0"}}], [second], "test", None, loaded)


def test_a_stored_interval_of_other_predictions_is_called_stale(tmp_path, monkeypatch):
    pair = Pair("digits", "CapsNet", "smoke/capsnet-plain", "smoke/baseline")
    monkeypatch.setitem(PAIRS, "papers", (pair,))
    monkeypatch.setitem(PAIRS, "ours", ())
    for seed in (0, 1):
        write_result(result_path(tmp_path, pair.capsules, seed), result_of(pair.capsules, seed, *range(12 + seed)))
        write_result(result_path(tmp_path, pair.baseline, seed), result_of(pair.baseline, seed, seed))
    assert "stale" in table_of("papers", tmp_path)
    refresh(tmp_path)
    row = table_of("papers", tmp_path).splitlines()[2].replace("\N{NO-BREAK SPACE}", " ")
    assert row.startswith("| digits | CapsNet | 4.88 ± 0.28 (2) | CNN 0.39 ") and row.endswith("| baseline |")
    assert [check.passed for check in check_intervals(tmp_path)] == [True]
    written = paired_path(tmp_path).read_text()
    for field in ("difference", "low", "high", "covers"):
        number = read_intervals(tmp_path)[pair.capsules, pair.baseline, pair.part][field]
        paired_path(tmp_path).write_text(written.replace(number, "images" if field == "covers" else "9.9000"))
        (check,) = check_intervals(tmp_path)
        assert not check.passed and f"{field} is {number}" in check.text
        paired_path(tmp_path).write_text(written)
    write_result(result_path(tmp_path, pair.baseline, 1), result_of(pair.baseline, 1, 2, 3))
    assert "stale" in table_of("papers", tmp_path)
    paired_path(tmp_path).unlink()
    assert "stale" in table_of("papers", tmp_path)


def test_current_intervals_are_kept_where_the_data_is_not_there(tmp_path, monkeypatch):
    pair = Pair("digits", "CapsNet", "smoke/capsnet-plain", "smoke/baseline")
    monkeypatch.setitem(PAIRS, "papers", (pair,))
    monkeypatch.setitem(PAIRS, "ours", ())
    for name in (pair.capsules, pair.baseline):
        write_result(result_path(tmp_path, name, 0), result_of(name, 0, 1))
    refresh(tmp_path)
    written = paired_path(tmp_path).read_bytes()

    def missing(*args, **kwargs):
        raise DataError("generated-16 is not here")

    monkeypatch.setattr(against_cnn, "paired", missing)
    refresh(tmp_path)
    assert paired_path(tmp_path).read_bytes() == written
    write_result(result_path(tmp_path, pair.baseline, 0), result_of(pair.baseline, 0, 2, 3))
    with pytest.raises(DataError, match="is not here"):
        refresh(tmp_path)
    assert paired_path(tmp_path).read_bytes() == written


@pytest.mark.parametrize("pair", ALL, ids=lambda pair: f"{pair.capsules} {pair.baseline.split('/')[1]}")
def test_committed_intervals_are_those_of_the_result_files(pair):
    line, both = read_intervals(RESULTS)[pair.capsules, pair.baseline, pair.part], pair.results(RESULTS)
    assert line["predictions_sha256"] == "-".join(predictions_sha256(results, pair.part) for results in both)
    # recomputed from predictions and labels, the difference is that of the stored metrics
    names = "error_percent", "exact_match_error_percent"
    errors = [
        [r["metrics"][pair.part].get(names[0], r["metrics"][pair.part].get(names[1])) for r in rows] for rows in both
    ]
    assert float(line["difference"]) == pytest.approx(mean(errors[0]) - mean(errors[1]), abs=6e-5)
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])
