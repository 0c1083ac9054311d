"""Rules that end a stage: what they look at, when they end it."""

from dataclasses import replace

import pytest
from smoke import smoke

from torchcaps.data import fingerprint
from torchcaps.papers import RECIPES
from torchcaps.train.checkpoint import tensors_sha256
from torchcaps.train.recipe import Stop
from torchcaps.train.splits import part
from torchcaps.train.tasks import Task


def stopping(accuracy: float, part: str = "validation", **changes):
    run = replace(RECIPES["smoke/capsnet"].make(), **({"hold_out": 64} | changes))
    return replace(run, stages=(replace(run.stages[0], steps=40, stop=Stop(accuracy=accuracy, part=part, every=3)),))


def test_a_stopping_rule_judges_the_held_out_images_alone(tmp_path, monkeypatch):
    evaluate, judged = Task.evaluate, []

    def noted(task, model, data, *rest):
        judged.append(data)
        return evaluate(task, model, data, *rest)

    monkeypatch.setattr(Task, "evaluate", noted)
    run = stopping(1)
    assert smoke(tmp_path, run=run).steps == 3
    held = fingerprint(part(run, "validation", None, 0))
    assert {fingerprint(data) for data in judged} == {held}


@pytest.mark.slow
def test_a_stopping_rule_ends_a_run_at_the_first_step_that_meets_it(tmp_path):
    looked = smoke(tmp_path / "never", run=stopping(101)).curve
    seen = {
        line["step"]: 100 - line["validation_error_percent"] for line in looked if "validation_error_percent" in line
    }
    assert set(range(3, 40, 3)) < set(seen) and smoke(tmp_path / "never", run=stopping(101)).steps == 40
    wanted = sorted(seen.values())[len(seen) // 2]
    first = min(step for step, accuracy in seen.items() if accuracy >= wanted and step % 3 == 0)
    stopped = smoke(tmp_path / "stopped", run=stopping(wanted))
    assert stopped.steps == first < 40 and not stopped.stopped_early
    assert 100 - stopped.evaluations["validation"].metrics["error_percent"] == pytest.approx(
        seen[first]
    )  # the weights of that step
    again = smoke(tmp_path / "stopped", run=stopping(wanted))  # finished: nothing is trained any further
    assert again.steps == first
    assert again.evaluations["validation"].metrics == stopped.evaluations["validation"].metrics


def test_a_stopped_run_resumes_to_the_same_bits_also_into_a_second_stage(tmp_path):
    """Cut before, right after an answer that was not good enough, and where the rule was met: within an epoch."""
    run = stopping(25)
    run = replace(run, stages=(*run.stages, replace(run.stages[0], steps=6, stop=None)))
    whole = smoke(tmp_path / "whole", run=run)
    first = whole.steps - 6
    assert 3 < first < 40 and first % (448 // 16)  # the rule was met in the middle of an epoch
    for cut in (2, 3, first, first + 2):
        assert smoke(tmp_path / str(cut), run=run, max_steps=cut).stopped_early
        again = smoke(tmp_path / str(cut), run=run)
        assert again.steps == whole.steps
        assert tensors_sha256(again.model.state_dict()) == tensors_sha256(whole.model.state_dict()), cut


def test_a_rule_that_is_never_met_is_told(tmp_path):
    assert smoke(tmp_path / "0", run=stopping(101)).met is False
    assert smoke(tmp_path / "1", run=stopping(1)).met is True
    assert smoke(tmp_path / "none", max_steps=1).met is None
