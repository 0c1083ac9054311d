"""What docs/papers/heinsen2019.md types of sentences and no mark can name: it says what the files say."""

import re
from statistics import mean

import pytest
import torch
from heinsen_results import CHOSEN, HOME, PAGE, WITH_DATA, errors, n_parameters, result, welch
from scipy import stats
from torch import Tensor

from torchcaps.analysis.metrics import wrong
from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import stored
from torchcaps.results.store import unpack
from torchcaps.train import splits

AHEAD = {  # lines of the page's table: the routing, the baseline
    "SST-5, chosen, MLP": ("sst5", "sst5-mlp-dropout"),
    "SST-5, chosen, linear": ("sst5", "sst5-linear"),
    "SST-2, chosen, MLP": ("sst2-wide", "sst2-mlp-wider-slow"),
    "SST-2, chosen, linear": ("sst2-wide", "sst2-linear"),
    "SST-5, as we began, MLP": ("sst5", "sst5-mlp"),
    "SST-2, as we began, MLP": ("sst2", "sst2-mlp"),
    "SST-2, as we began, linear": ("sst2", "sst2-linear"),
    "SST-2, one round before, MLP": ("sst2-wide", "sst2-mlp-wider"),
}
LEFT_OUT = {  # and of that of ablations
    "SST-5, no depth": ("sst5", "sst5-no-depth"),
    "SST-2, no depth": ("sst2", "sst2-no-depth"),
    "SST-5, no mixup": ("sst5", "sst5-no-mixup"),
    "SST-5, whole sentences alone": ("sst5", "sst5-roots"),
}
KINDS = {"routing": "", "MLP": "mlp-", "linear probe": "linear-"}  # as the page and as the names of recipes call them
ANSWERS = {"sst5": 3_303, "sst2": 2_616}  # of three seeds


def chance(p: float) -> str:
    return f"{p:.1g}" if p >= 0.001 else "less than 0.001"


def right(row: str) -> Tensor:
    """100 for every test sentence that is answered right, 0 for the others, by seed [3 n]."""
    truth = splits.part(stored(result(row.split("-")[0], 0)["run"]), "test", None, 0).labels
    answers = torch.stack([unpack(result(row, seed)["predictions"]["test"]).long() for seed in range(3)])
    return 100 - 100 * wrong(answers, truth).double()


def difference(row: str, other: str) -> tuple[float, float]:
    """By how many points `row` is ahead, and the standard error over sentences, each of which counts by its mean over the seeds."""
    ahead = (right(row) - right(other)).mean(0)
    return ahead.mean().item(), ahead.std().item() / len(ahead) ** 0.5


def on_validation(row: str) -> float:
    """% right in the mean of three seeds."""
    return 100 - mean(result(row, seed)["metrics"]["validation"]["error_percent"] for seed in range(3))


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("line", AHEAD)
def test_how_far_the_routing_is_ahead(line):
    (typed,) = re.findall(rf"^\| {line} \| (.*) \|$", PAGE, re.MULTILINE)
    row, other = AHEAD[line]
    seeds = stats.ttest_ind(right(row).mean(1), right(other).mean(1), equal_var=False)  # Welch's
    (ahead, error), interval = difference(row, other), seeds.confidence_interval()
    assert typed.split(" | ") == [
        f"{ahead:.2f}",
        f"{interval.low:.2f} to {interval.high:.2f}",
        f"{seeds.statistic:.1f}, {chance(seeds.pvalue)}",
        f"{error:.2f}, {chance(2 * stats.norm.sf(ahead / error))}",
    ]


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("line", LEFT_OUT)
def test_what_can_be_left_out_of_sentences(line):
    (typed,) = re.findall(rf"^\| {line} \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    ahead, error = difference(*LEFT_OUT[line])
    assert typed == f"{abs(ahead):.2f} ± {error:.2f} {'fewer' if ahead > 0 else 'more'}"


@pytest.mark.data
@WITH_DATA
def test_what_the_first_lines_say_of_the_lead():
    leads = [difference(*AHEAD[line]) for line in ("SST-5, chosen, MLP", "SST-5, as we began, MLP", "SST-2, chosen, MLP")]
    (chosen, error), (began, began_error), (two, _) = leads
    assert f"by {chosen:.2f} points ({chosen / error:.1f} standard errors over sentences)" in PAGE
    assert f"and {chosen / error:.1f} standard errors of the sentences" in PAGE
    assert f"by {began:.2f} ({began / began_error:.1f}). With two it leads the MLP that was chosen by {two:.2f} points" in PAGE
    on_validation_part = on_validation("sst2-mlp-wider-slow"), on_validation("sst2-wide")
    assert "the MLP is ahead ({:.2f} against {:.2f} %), and".format(*on_validation_part) in PAGE


def test_two_labels():
    assert min(errors("sst2-mlp-wider-slow")) > max(errors("sst2-wide")) and "each seed of the routing is above each of the MLP" in PAGE
    assert sentences_ahead("sst2-wide", "sst2-mlp-wider-slow") == 8 and "is eight sentences of 1,821" in PAGE
    assert sentences_ahead("sst2-wide", "sst2-mlp-wider") == 7 and "(twice that rate), it was seven sentences." in PAGE
    assert sentences_ahead("sst2", "sst2-mlp") == 12 and "0.68 points, twelve sentences" in PAGE
    on_one_line = PAGE.replace("\n", " ")
    assert f"the MLP is ahead, {on_validation('sst2-mlp-wider-slow'):.2f} against {on_validation('sst2-wide'):.2f} %." in on_one_line
    assert f"ahead too, {on_validation('sst2-mlp'):.2f} against {on_validation('sst2'):.2f} %" in PAGE


def sentences_ahead(row: str, other: str) -> int:
    """Of the 1,821 with two labels, in the mean of three seeds."""
    return round(18.21 * (mean(errors(other)) - mean(errors(row))))


def test_the_decoder_beside_the_encoder():
    behind = [mean(errors(f"{labels}-smollm2")) - mean(errors(labels)) for labels in ("sst5", "sst2")]
    assert "{:.1f} and {:.1f} points less than on the encoder".format(*behind) in PAGE


def answered(name: str, n: int) -> int:
    """How many sentences are right, over three seeds, of `n`."""
    return n - sum(round(n / 3 * error / 100) for error in errors(name))


def candidates(labels: str, kind: str) -> list[str]:
    """The list of the last round, as the page has it."""
    words = {"sst5": "five", "sst2": "two"}[labels]
    (line,) = re.findall(rf"^- {words} labels, .*`\.", PAGE, re.MULTILINE)
    (listed,) = re.findall(rf"{kind}: ((?:`[\w-]+`(?:, )?)+)", line)
    return [unshortened(name, labels, kind) for name in re.findall(r"`([\w-]+)`", listed)]


def unshortened(name: str, labels: str, kind: str) -> str:
    """The page shortens `choose-sst2-mlp-wide` after the first of a list to `-wide`, or to `-mlp-wide`."""
    return name if name.startswith("choose") else f"choose-{labels}-{KINDS[kind]}{name.removeprefix('-').removeprefix(KINDS[kind])}"


@pytest.mark.parametrize(("labels", "kind"), CHOSEN)
def test_what_the_last_round_chose(labels, kind):
    """The page's table has the first two or three of each list, with how many they answered right."""
    chosen, row = CHOSEN[labels, kind]
    (line,) = re.findall(rf"^\| {kind} \| (`choose-sst5-.*)$", PAGE, re.MULTILINE)
    typed = line.strip(" |").split(" | ")[labels == "sst2"]
    right = {name: answered(name, ANSWERS[labels]) for name in candidates(labels, kind)}
    told, equals = [], []
    for name, number in re.findall(r"`([\w-]+)`(?: ([\d,]*\d))?", typed):
        equals.append(unshortened(name, labels, kind))
        if number:
            told += [(one, int(number.replace(",", ""))) for one in equals]
            equals = []
    assert [number for _, number in told] == sorted(right.values(), reverse=True)[: len(told)] and len(told) > 1
    assert all(right[name] == number for name, number in told) and told[0][0] == chosen
    (outcome,) = re.findall("^So the first of each list are chosen, .*", PAGE, re.MULTILINE)
    assert f"`{row}`" in outcome
    sizes = {name: n_parameters(RECIPES[f"heinsen2019/{name}"].make()) for name, n in right.items() if n == right[chosen]}
    assert sizes[chosen] == min(sizes.values())  # of equals the one with fewer


def test_what_the_validation_part_says_of_mixup_and_of_the_chosen_ones():
    by_mixup = answered("choose-sst5-fast", 3_303) - answered("choose-sst5-fast-no-mixup", 3_303)
    first = [errors(name, [0])[0] for name in ("choose-sst5-fast", "choose-sst5-fast-no-mixup")]
    assert f"by {by_mixup} right answers of 3,303 in three seeds, all of them by the third" in PAGE
    assert f"(p = {welch(errors('choose-sst5-fast'), errors('choose-sst5-fast-no-mixup')):.1f}; by the first" in PAGE
    assert round(11.01 * (first[0] - first[1])) == 1 and "no mixup was one sentence ahead" in PAGE
    behind = answered("choose-sst2-mlp-wider-slower", 2_616) - answered("choose-sst2-wide", 2_616)
    assert f"with two it is {behind} answers of 2,616 behind the MLP" in PAGE


def test_how_many_settings_of_sentences():
    """As the last lines of the page count them: every choice that was run."""
    names = [folder.name for folder in (HOME / "results/heinsen2019").glob("choose-sst*")]
    counts = [
        sum(name.startswith(f"choose-{labels}") and (kind in name if kind else not re.search("mlp|linear", name)) for name in names)
        for labels in ("sst2", "sst5")
        for kind in ("", "mlp", "linear")
    ]
    said = "with two labels {} for the routing, {} for the MLP, {} for the linear probe; with five labels {}, {} and {}, all"
    assert said.format(*counts) in PAGE
    runs = [len(list(folder.glob("*.json"))) for folder in (HOME / "results/heinsen2019").glob("sst[25]*")]
    assert (len(runs), sum(runs)) == (16, 48) and "on the test part eight rows with each, 48 runs" in PAGE


def test_whole_sentences_alone_are_learnt_early():
    curves = [
        [line["watched_validation_error_percent"] for line in result("sst5-roots", seed)["curve"] if "epoch" in line] for seed in range(3)
    ]
    best = [1 + curve.index(min(curve)) for curve in curves]
    assert [len(curve) for curve in curves] == [30] * 3 and f"on the validation part after {min(best)} to {max(best)} epochs" in PAGE
