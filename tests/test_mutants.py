"""Lines that a claim rests on: with any of them changed, a test must fail.

Every mutant replaces one text in a copy of the package and runs the few tests that should notice it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HOME = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A change of one line, and the tests that must notice it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = {
    "max-min has no least span": Mutant(
        "ops/couplings.py",
        "LEAST_SPAN, ROUNDINGS = 1e-12, 16",
        "LEAST_SPAN, ROUNDINGS = 0.0, 0",
        "tests/ops/test_couplings.py",
    ),
    "held-out images are trained on": Mutant(
        "train/splits.py",
        "return hold_out(data, run.hold_out, seed)[0] if run.hold_out else data",
        "return data",
        "tests/train/test_splits.py",
    ),
    "the test set is evaluated while choosing": Mutant(
        "train/splits.py",
        "(HELD, *run.tests)",
        '(HELD, "test", *run.tests)',
        "tests/train/test_splits.py tests/cli/test_held_out.py",
    ),
    "every seed holds out the same images": Mutant(
        "data/subsets.py",
        "digits.stratified_indices(data.labels, n, seed)",
        "digits.stratified_indices(data.labels, n, 0)",
        "tests/data/test_subsets.py",
    ),
    "tune keeps a row's further test sets": Mutant(
        "cli/tune.py", "views=shown, tests=(), ", "views=shown, ", "tests/cli/test_held_out.py"
    ),
    "train --hold-out keeps a row's further test sets": Mutant(
        "cli/training.py", "hold_out=hold_out, tests=(), ", "hold_out=hold_out, ", "tests/cli/test_held_out.py"
    ),
    "the stopping rule looks at training images": Mutant(
        "train/evaluate.py",
        "state.data[rule.part], device",
        'state.data["train"], device',
        "tests/train/test_stopping.py",
    ),
    "a run resumes under another seed": Mutant(
        "train/loop.py",
        ' + differences({"seed": about["seed"]}, {"seed": state.seed})',
        "",
        "tests/train/test_loop.py -k another_seed",
    ),
    "a run resumes with another order of images": Mutant(
        "train/loop.py",
        '    state.rng.set_state(found.tensors["rng/epoch"])\n',
        "",
        "tests/train/test_resume.py -k across_their_ends",
    ),
    "a run resumes with a fresh optimiser": Mutant(
        "train/step.py",
        "                held[kind].copy_(tensor)\n",
        "",
        "tests/train/test_resume.py -k stopping_anywhere",
    ),
    "the error counts right answers": Mutant(
        "analysis/metrics.py",
        "predictions != labels if labels.ndim == 1",
        "predictions == labels if labels.ndim == 1",
        "tests/analysis/test_metrics.py -k by_hand",
    ),
    "half of a pair is enough": Mutant(
        "analysis/metrics.py",
        "!= labels.sort(-1).values).any(-1)",
        "!= labels.sort(-1).values).all(-1)",
        "tests/analysis/test_metrics.py -k by_hand",
    ),
    "squash is one percent too short": Mutant(
        "ops/squash.py", "(square / (1 + square))", "(square / (1.01 + square))", "tests/ops/test_squash.py"
    ),
    "leaky couplings leave too much": Mutant(
        "ops/couplings.py",
        "torch.cat([logits, orphan], dim)",
        "torch.cat([logits, orphan + 0.01], dim)",
        "tests/ops/test_couplings.py",
    ),
    "max-min counts parents that are not there": Mutant(
        "ops/couplings.py",
        "low = logits.masked_fill(~there, torch.inf)",
        "low = logits.masked_fill(~there, 0.0)",
        "tests/ops/test_couplings.py",
    ),
    "a stale result stays in its table": Mutant(
        "results/statistics.py",
        'if not unlike(result["run"], run)]',
        "]",
        "tests/results/test_rows.py -k leaves_stale",
    ),
    "a copy is a further seed": Mutant(
        "results/verify.py",
        'return Check("place", path == first, text)',
        'return Check("place", True, text)',
        "tests/results/test_rows.py -k copy",
    ),
    "inverted routing shares outputs among inputs": Mutant(
        "ops/inverted.py",
        "couplings = logits.softmax(-1)",
        "couplings = logits.softmax(-2)",
        "tests/ops/test_inverted.py",
    ),
    "every place of matrix capsules claims a child alone": Mutant(
        "ops/matrix_em/reference.py",
        'return rearrange(totals, "b n p k 1 -> (n k) (b p)")',
        'return rearrange(claims, "b n (p k) 1 -> (n k) (b p)", p=self.n_places)',
        "tests/ops/test_matrix_em.py",
    ),
    "an optimiser takes a step's numbers a second time": Mutant(
        "train/step.py",
        "*self._numbers_at(self.counter + 1)]",
        "*self._numbers_at(self.counter)]",
        "tests/train/test_step.py",
    ),
    "a resumed run takes the first step's numbers": Mutant(
        "train/step.py",
        """        self.counter.copy_(tensors["counter"])
        self.look_up()
""",
        """        self.counter.copy_(tensors["counter"])
""",
        "tests/train/test_step.py",
    ),
    "a captured run takes the warm-up's numbers": Mutant(
        "train/capture.py",
        "        self.step.look_up()\n",
        "        pass\n",
        "tests/train/test_step.py",
    ),
    "a failed try leaves its traces": Mutant(
        "train/capture.py",
        "            before.put_back()\n            retry",
        "            retry",
        "tests/train/test_step.py -k try_again",
    ),
    "a child's gradient lacks its last parent": Mutant(
        "ops/conv_routing.py",
        "users[pairs[taken[0]]] = reach[child]",
        "users[pairs[taken[0]], :-1] = reach[child, :-1]",
        "tests/ops/test_conv_routing.py",
    ),
    "verify takes other data": Mutant(
        "results/verify.py",
        'if (found := data.sha256) != result["data"].get(part):',
        'if not (found := data.sha256) and result["data"].get(part):',
        "tests/results/test_verify.py -k other_data",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The package and its tests, to be changed."""
    home = tmp_path_factory.mktemp("mutants")
    for part in ("torchcaps", "tests"):
        shutil.copytree(HOME / part, home / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HOME / "pyproject.toml", home)
    return home


def passes(home: Path, tests: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split(" -k ")[0].split()]
    command += ["-k", tests.split(" -k ")[1]] if " -k " in tests else []
    environment = os.environ | {"PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 5: no test was found
    return done.returncode == 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_one_line_of_today(name):
    """Fast, since a line that was rewritten takes its mutant out of service without a word until the slow tests run."""
    mutant = MUTANTS[name]
    assert (HOME / "torchcaps" / mutant.file).read_text().count(mutant.old) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_line_is_noticed(copy, name):
    mutant = MUTANTS[name]
    path = copy / "torchcaps" / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has another text today; change the mutant with it"
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        assert not passes(copy, mutant.tests)
    finally:
        path.write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("tests", sorted({mutant.tests for mutant in MUTANTS.values()}))
def test_the_tests_pass_where_nothing_is_changed(copy, tests):
    assert passes(copy, tests)
