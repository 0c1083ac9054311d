"""Training loop. It handles stages, tasks and files, and knows no paper."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.data.batches.images import Batches
from torchcaps.data.batches.pairs import batches_for
from torchcaps.layers.calibration import CalibratedNetwork
from torchcaps.layers.memory_format import to_device
from torchcaps.layers.norm import share_statistics
from torchcaps.runtime.clock import PhaseClock
from torchcaps.runtime.distributed import Team, joined
from torchcaps.runtime.environment import (
    algorithms,
    device_in_words,
    device_name,
    made_by,
    make_folder,
    noted_signals,
    own_randomness,
    pick_device,
)
from torchcaps.runtime.files import locked, remove_parts
from torchcaps.runtime.metrics_log import MetricsLog, Speed, progress_bar
from torchcaps.train import batchnorm, splits
from torchcaps.train.checkpoint import (
    Checkpoint,
    check_finite,
    check_makers,
    load_into,
    load_run,
    save_checkpoint,
    tensors_sha256,
)
from torchcaps.train.evaluate import finish, n_steps_of, probe, reached, validate, warn_of_dead_layers, watch
from torchcaps.train.plain import differences, to_plain, unlike
from torchcaps.train.state import Diverged, Interrupted, Options, State, Trained, checkpoint_path
from torchcaps.train.step import TrainingStep
from torchcaps.train.threads import threads_as_begun

if TYPE_CHECKING:
    from torchcaps.train.recipe import Run, Stage


def train(run: Run, *, name: str, seed: int, options: Options) -> Trained:
    """Train a run to its end and evaluate it, resuming from `out`/checkpoint.safetensors if it exists.

    Under torchrun all processes call this function and return equal results; the first one writes the files.
    """
    device = pick_device(options.device)
    with (
        algorithms(options.deterministic, device),
        own_randomness(seed, device),
        joined(device) as team,
        _own_folder(options.out, team),
        threads_as_begun(checkpoint_path(options.out), device, options.progress) if team.size == 1 else nullcontext(),
        noted_signals() as caught,
    ):
        state, found = _begin(run, name, seed, options, device, team)
        ema: dict[str, Tensor] = {}
        for number in range(state.stage, len(run.stages)):
            state.stage = number
            step = _stage(state, run.stages[number], found, caught, device)
            state.done += int(step.counter)
            if not state.ended:
                return finish(state, device, step.ema if options.as_is else {}, stopped_early=True)
            ema, found, state.ended = step.ema, None, False
        trained = finish(state, device, ema)
        if caught:
            raise Interrupted(
                f"the training is finished and saved in {state.path}; the same command evaluates it", caught[0]
            )
        return trained


@contextmanager
def _own_folder(out: Path, team: Team) -> Iterator[None]:
    """Hold the output folder, and clear it of what a killed run left; the first of several processes does."""
    if not team.leads:
        yield
        return
    make_folder(out)
    with locked(out):
        remove_parts(out)
        yield


def _begin(
    run: Run, name: str, seed: int, options: Options, device: torch.device, team: Team
) -> tuple[State, Checkpoint | None]:
    """Create data, model and random generator, or restore them from the checkpoint."""
    if device.type == "cuda":
        gc.collect()  # a compiled step refers to itself: this frees the memory of an earlier run in this process
        torch.cuda.reset_peak_memory_stats(device)
    splits.check(run)
    _check_parts(run, team)
    # further test sets are large and are loaded only at the end
    with team.first_of_each_machine():
        data = {
            name: splits.part(run, name, options.root, seed)
            for name in ("train", *splits.names(run))
            if name not in run.tests
        }
    model = run.build() if team.size == 1 else share_statistics(run.build())
    batchnorm.check(run, model)
    model = to_device(model, device)
    rng = torch.Generator().manual_seed(seed)
    state = State(run, name, seed, model, rng, data, options, PhaseClock(device), team)
    found = load_run(state.path) if state.path.exists() else None
    if not team.same(found.about["step"] if found else -1):
        seen = f"step {found.about['step']}" if found else "none"
        raise ValueError(
            f"processes find different checkpoints at {state.path}, this one {seen}; "
            "give a folder that all machines share"
        )
    if found:
        with _resumable(state.path):
            _resume(state, found, device)
    state.metrics_log = MetricsLog(options.out, found.about["step"] if found else 0, writes=team.leads)
    return state, found


def _check_parts(run: Run, team: Team) -> None:
    """Refuse batch sizes that the number of processes does not divide."""
    for batch in {stage.batch for stage in run.stages if stage.batch % team.size}:
        raise ValueError(
            f"{team.size} processes cannot share batches of {batch} evenly; start a number of them that divides {batch}"
        )


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Name the file if its content does not fit the run."""
    try:
        yield
    except (LookupError, TypeError, RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} cannot be resumed ({reason}); remove that file, or give `train` another --out"
        ) from error


def _resume(state: State, found: Checkpoint, device: torch.device) -> None:
    about = found.about
    if "made_by" not in about:
        raise ValueError(
            f"{state.path} was written by an older torchcaps, which this one cannot resume; "
            "finish it there, or remove it"
        )
    other = unlike(about["run"], state.run) + differences({"seed": about["seed"]}, {"seed": state.seed})
    if other:
        raise ValueError(
            f"{state.path} belongs to another run ({'; '.join(other[:3])}); "
            "remove that file, or give `train` another --out"
        )
    if about.get("stage", -1) not in range(len(state.run.stages)):
        raise ValueError(f"{state.path} cannot be resumed: its stage is not one of this run; remove it")
    load_into(state.model, found.part("model"), state.path)
    state.stage, state.done, state.seconds = about["stage"], about["done"], about["seconds"]
    # an older checkpoint counts everything as training; the sum raises where the file holds no numbers
    spent = about.get("phases", {"training": about["seconds"]})
    state.clock.seconds |= {phase: 0.0 + seconds for phase, seconds in spent.items()}
    state.made_by = check_makers(about["made_by"], state.path)
    state.ended, state.met = about.get("ended", False), about.get("met", False)
    state.rng.set_state(found.tensors["rng/epoch"])
    torch.set_rng_state(found.tensors["rng/cpu"])
    if "rng/cuda" in found.tensors and device.type == "cuda":
        torch.cuda.set_rng_state(found.tensors["rng/cuda"], device)


def _resume_step(state: State, step: TrainingStep, found: Checkpoint) -> None:
    tensors = found.part("step")
    # an average that is NaN would show only when the whole run is trained and evaluated
    parts = "ema/", "optimizer/", "totals/loss"
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(parts)}
    check_finite(kept, state.path)
    step.load_state(tensors)
    if state.done + int(step.counter) != found.about["step"]:
        raise ValueError(
            f"{state.path} cannot be resumed: it says step {found.about['step']} and counts "
            f"{state.done + int(step.counter)}; remove that file, or give `train` another --out"
        )


def _stage(
    state: State, stage: Stage, found: Checkpoint | None, caught: list[int], device: torch.device
) -> TrainingStep:
    """Train one stage to its end, or until a signal interrupts it."""
    n_steps = n_steps_of(stage, state.data["train"])
    orders = stage.balanced, stage.records, stage.hard
    batches = batches_for(state.data["train"], stage.batch, state.run.augment, device, *orders)
    if not found:
        first = batches.at(torch.zeros((), dtype=torch.long, device=device))
        if state.stage == 0 and isinstance(state.model, CalibratedNetwork) and state.model.needs_calibration:
            state.model.calibrate(first.images)
        stage.task.init(state.model, first)
        state.team.agree(state.model)
    batches.divide(state.team.rank, state.team.size)
    step = TrainingStep(stage, state.model, batches, n_steps, device, state.team)
    if found:
        with _resumable(state.path):
            _resume_step(state, step, found)
    at, epoch, speed = int(step.counter), batches.n_steps, Speed(int(step.counter))
    stop = n_steps if state.options.max_steps is None else min(n_steps, state.options.max_steps - state.done)
    state.ended |= at >= n_steps
    stop = at if state.ended else stop
    if at % epoch and at < stop:
        _new_epoch(state, batches)
    if at < stop and (maker := made_by(device) | state.team.about()) not in state.made_by[-1:]:
        state.made_by.append(maker)
    state.model.train()
    title = f"{state.name} seed {state.seed}" + (f" stage {state.stage + 1}" if len(state.run.stages) > 1 else "")
    title += f" on {device_in_words(device_name(device))}, routing: {step.routing}"
    state.routing = step.routing
    shown = state.options.progress and state.team.leads
    with progress_bar(title, n_steps, at, shown) as show, state.clock.phase("training"):
        while at < stop:
            if at % epoch == 0:
                batches.look()
                _new_epoch(state, batches)
            batches.before(at % epoch)
            if step.unprepared:
                with state.clock.phase("compiling"):
                    step.prepare()
            step()
            state.routing = step.routing  # the first step may find that it cannot be compiled
            at += 1
            if at % state.options.log_every == 0 or at == stop:
                _log(state, step, at, speed, show)
            if stage.probe_every and at % stage.probe_every == 0:
                probe(state, stage, at, device)
            if at % epoch == 0 or at == stop:
                warn_of_dead_layers(state, device)
            if at % epoch == 0 and at < n_steps:
                validate(state, stage, at, n_steps, epoch, device)
            watch(state, stage, at, epoch, device)
            state.ended = at == n_steps or reached(state, stage, at, device)
            if state.ended and at < stop:
                stop = at
                if step.unread:
                    _log(state, step, at, speed, show)
            # a signal may reach one process or all, at different times, and clocks differ: agree on both
            signum, due = state.team.largest(caught[0] if caught else 0, state.team.leads and _save_due(state, at))
            if signum or at == stop or due:
                # after the end of a stage, the next one continues with the current generator
                with state.clock.phase("saving"):
                    _save(state, step, at, whole_epoch=at % epoch == 0 or state.ended)
            if signum and at < stop:
                state.metrics_log.close()
                raise Interrupted(
                    f"stopped at step {state.done + at} and saved {state.path}; the same command goes on from there",
                    signum,
                )
    return step


def _new_epoch(state: State, batches: Batches) -> None:
    state.epoch_rng = state.rng.get_state()
    batches.new_epoch(state.rng)


def _log(state: State, step: TrainingStep, at: int, speed: Speed, show: Callable[..., None]) -> None:
    """Log the mean losses since the last log point; raise Diverged if a loss was not finite."""
    _refuse_bad(state, step)
    means = step.read_means()
    state.metrics_log.write(state.done + at, stage=state.stage, seconds=round(state.spent(), 3), **means)
    accuracy = f"accuracy {100 - means['error_percent']:.2f}% " if "error_percent" in means else ""
    show(at, f"loss {means['loss']:.4f} {accuracy}{speed(at) * step.batches.batch:,.0f} images/s")


def _refuse_bad(state: State, step: TrainingStep) -> None:
    bad = int(step.first_bad)
    if bad >= 0:
        state.metrics_log.close()
        raise Diverged(f"the loss was not finite at step {state.done + bad + 1}; {_kept(state)}")


def _kept(state: State) -> str:
    kept = f"the last good checkpoint is {state.path}" if state.path.exists() else "no checkpoint was written yet"
    return f"{kept}; try a lower learning rate, or look at the data"


def _save_due(state: State, at: int) -> bool:
    if state.options.save_every:
        return at % state.options.save_every == 0
    return time.perf_counter() - state.saved_at > 60


def _save(state: State, step: TrainingStep, at: int, whole_epoch: bool) -> None:
    _refuse_bad(state, step)
    tensors = {f"model/{name}": tensor for name, tensor in state.model.state_dict().items()}
    # a finite loss can have a gradient that is not finite
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise Diverged(f"the weights are not finite after step {state.done + at}; {_kept(state)}")
    tensors |= {f"step/{name}": tensor for name, tensor in step.state().items()}
    # within an epoch, store the generator's state at the epoch's start, since a resumed run repeats its draws
    tensors |= {
        "rng/epoch": state.rng.get_state() if whole_epoch else state.epoch_rng,
        "rng/cpu": torch.get_rng_state(),
    }
    if step.device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(step.device)
    if state.team.size > 1 and not state.team.same(int(tensors_sha256(tensors)[:15], 16)):
        raise Diverged(
            f"the processes hold different numbers after step {state.done + at}, which is not saved; "
            "train on machines of one kind with one PyTorch; "
            "a layer of your own must share its statistics (docs/several-machines.md)"
        )
    state.saved_at = time.perf_counter()
    if not state.team.leads:
        return
    about = {"name": state.name, "seed": state.seed, "run": to_plain(state.run), "stage": state.stage}
    about |= {"done": state.done, "step": state.done + at, "ended": state.ended, "met": state.met}
    about |= {"seconds": state.spent(), "phases": state.clock.seconds, "made_by": state.made_by}
    save_checkpoint(state.path, tensors, about)
    state.saved_at = time.perf_counter()
