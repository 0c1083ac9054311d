"""The loop, readable from top to bottom. It knows stages, tasks and files, and nothing of any paper."""

import gc
import time
from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps import parts
from torchcaps.checkpoint import Checkpoint, load_checkpoint, load_into, save_checkpoint
from torchcaps.data.batches import Batches
from torchcaps.data.pair_batches import batches_for
from torchcaps.journal import Journal, Speed, progress_bar
from torchcaps.judging import finish, n_steps_of, probe, reached, validate, watch
from torchcaps.machine import algorithms, device_name, made_by, make_folder, noted_signals, own_randomness, pick_device
from torchcaps.recipe import Run, Stage, differences, to_plain, unlike
from torchcaps.state import Diverged, Interrupted, Options, State, Trained
from torchcaps.step import TrainingStep

__all__ = ["Diverged", "Interrupted", "Options", "Trained", "train"]


def train(run: Run, *, name: str, seed: int, options: Options) -> Trained:
    """Train a run to its end, going on from `out`/checkpoint.safetensors where there is one."""
    device = pick_device(options.device)
    with algorithms(options.deterministic, device), own_randomness(seed, device), noted_signals() as caught:
        state, found = _begin(run, name, seed, options, device)
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
            raise Interrupted(f"the training is finished and saved in {state.path}; the same command evaluates it", caught[0])
        return trained


def _begin(run: Run, name: str, seed: int, options: Options, device: torch.device) -> tuple[State, Checkpoint | None]:
    """Data, model and generator, fresh or from the checkpoint."""
    make_folder(options.out)
    if device.type == "cuda":
        gc.collect()  # a compiled step refers to itself: what an earlier run of this process held goes only now
        torch.cuda.reset_peak_memory_stats(device)
    parts.check(run)
    # further test sets are large, and not wanted before the end
    data = {name: parts.part(run, name, options.root, seed) for name in ("train", *parts.names(run)) if name not in run.tests}
    model = run.build()
    model = model.to(device, memory_format=torch.channels_last) if device.type == "cuda" else model.to(device)
    state = State(run, name, seed, model, torch.Generator().manual_seed(seed), data, options)
    found = load_checkpoint(state.path) if state.path.exists() else None
    if found:
        _resume(state, found, device)
    state.journal = Journal(options.out, found.about["step"] if found else 0)
    return state, found


def _resume(state: State, found: Checkpoint, device: torch.device) -> None:
    about = found.about
    if "made_by" not in about:
        raise ValueError(f"{state.path} was written by an older torchcaps, which this one cannot resume; finish it there, or remove it")
    other = unlike(about["run"], state.run) + differences({"seed": about["seed"]}, {"seed": state.seed})
    if other:
        raise ValueError(f"{state.path} belongs to another run ({'; '.join(other[:3])}); give another folder, or remove that file")
    load_into(state.model, found.part("model"), state.path)
    state.stage, state.done, state.seconds, state.made_by = about["stage"], about["done"], about["seconds"], about["made_by"]
    state.ended, state.met = about.get("ended", False), about.get("met", False)
    state.rng.set_state(found.tensors["rng/epoch"])
    torch.set_rng_state(found.tensors["rng/cpu"])
    if "rng/cuda" in found.tensors and device.type == "cuda":
        torch.cuda.set_rng_state(found.tensors["rng/cuda"], device)


def _stage(state: State, stage: Stage, found: Checkpoint | None, caught: list[int], device: torch.device) -> TrainingStep:
    """Train one stage to its end, or as far as a signal lets it."""
    n_steps = n_steps_of(stage, state.data["train"])
    batches = batches_for(state.data["train"], stage.batch, state.run.augment, device, stage.balanced)
    if not found:
        stage.task.init(state.model, batches.at(torch.zeros((), dtype=torch.long, device=device)))
    step = TrainingStep(stage, state.model, batches, n_steps, device)
    if found:
        step.load_state(found.part("step"))
    at, epoch, speed = int(step.counter), batches.n_steps, Speed(int(step.counter))
    stop = n_steps if state.options.max_steps is None else min(n_steps, state.options.max_steps - state.done)
    state.ended |= at >= n_steps
    stop = at if state.ended else stop
    if at % epoch and at < stop:
        _new_epoch(state, batches)
    if at < stop and (maker := made_by(device)) not in state.made_by[-1:]:
        state.made_by.append(maker)
    state.model.train()
    title = f"{state.name} seed {state.seed}" + (f" stage {state.stage + 1}" if len(state.run.stages) > 1 else "")
    title += f" on {device_name(device)}, routing: {step.routing}"
    state.routing = step.routing
    with progress_bar(title, n_steps, at, state.options.progress) as show:
        while at < stop:
            if at % epoch == 0:
                _new_epoch(state, batches)
            batches.before(at % epoch)
            step()
            at += 1
            if at % state.options.log_every == 0 or at == stop:
                _log(state, step, at, speed, show)
            if stage.probe_every and at % stage.probe_every == 0:
                probe(state, stage, at, device)
            if at % epoch == 0 and at < n_steps:
                validate(state, stage, at, n_steps, epoch, device)
            watch(state, stage, at, epoch, device)
            state.ended = at == n_steps or reached(state, stage, at, device)
            if state.ended and at < stop:
                stop = at
                if step.unread:
                    _log(state, step, at, speed, show)
            if caught or at == stop or _save_due(state, at):
                # where a stage has ended, the next one draws on from here
                _save(state, step, at, whole_epoch=at % epoch == 0 or state.ended)
            if caught and at < stop:
                state.journal.close()
                raise Interrupted(
                    f"stopped at step {state.done + at} and saved {state.path}; the same command goes on from there", caught[0]
                )
    return step


def _new_epoch(state: State, batches: Batches) -> None:
    state.epoch_rng = state.rng.get_state()
    batches.new_epoch(state.rng)


def _log(state: State, step: TrainingStep, at: int, speed: Speed, show: Callable[..., None]) -> None:
    """Read what the device summed up since the last log point, and stop if the loss was ever not finite."""
    _refuse_bad(state, step)
    means = step.read_means()
    state.journal.write(state.done + at, stage=state.stage, seconds=round(state.spent(), 3), **means)
    accuracy = f"accuracy {100 - means['error_percent']:.2f}% " if "error_percent" in means else ""
    show(at, f"loss {means['loss']:.4f} {accuracy}{speed(at) * step.batches.batch:,.0f} images/s")


def _refuse_bad(state: State, step: TrainingStep) -> None:
    bad = int(step.first_bad)
    if bad >= 0:
        state.journal.close()
        raise Diverged(f"the loss was not finite at step {state.done + bad + 1}; {_kept(state)}")


def _kept(state: State) -> str:
    kept = f"the last good checkpoint is {state.path}" if state.path.exists() else "no checkpoint was written yet"
    return f"{kept}; try a lower rate, or look at the data"


def _save_due(state: State, at: int) -> bool:
    if state.options.save_every:
        return at % state.options.save_every == 0
    return time.perf_counter() - state.saved_at > 60


def _save(state: State, step: TrainingStep, at: int, whole_epoch: bool) -> None:
    _refuse_bad(state, step)
    tensors = {f"model/{name}": tensor for name, tensor in state.model.state_dict().items()}
    if not all(tensor.isfinite().all() for tensor in tensors.values()):  # a finite loss may have a gradient that is not
        raise Diverged(f"the weights are not finite after step {state.done + at}; {_kept(state)}")
    tensors |= {f"step/{name}": tensor for name, tensor in step.state().items()}
    # within an epoch the generator's state at its start, since its draws are made again on resume; at its end, the present one
    tensors |= {"rng/epoch": state.rng.get_state() if whole_epoch else state.epoch_rng, "rng/cpu": torch.get_rng_state()}
    if step.device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(step.device)
    about = {"name": state.name, "seed": state.seed, "run": to_plain(state.run), "stage": state.stage, "done": state.done}
    about |= {"step": state.done + at, "ended": state.ended, "met": state.met, "seconds": state.spent(), "made_by": state.made_by}
    save_checkpoint(state.path, tensors, about)
    state.saved_at = time.perf_counter()
