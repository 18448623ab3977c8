"""Run a program once on one example, observed: what it did, what it spent, and what the metric said about it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from dspy_combee.errors import MetricError
from dspy_combee.metrics import MetricCall
from dspy_combee.runtime.budget import Meter, Spend
from dspy_evocue.artifact import states_inside
from dspy_evocue.checkpoints import Recorder, Tape
from dspy_evocue.edits import Edit
from dspy_evocue.environments import ENVIRONMENT_KEY, Environment, ForkingEnvironment
from dspy_evocue.errors import Divergence, EnvironmentDivergence, EnvironmentFault, RecordingError
from dspy_evocue.features import FeatureFunction, FeatureSet
from dspy_evocue.fingerprints import canonical, fingerprint
from dspy_evocue.instrument import (
    editable_predictors,
    frozen_predictors,
    iteration_limits,
    observed,
    state_of,
)
from dspy_evocue.missing_scores import MissingScore
from dspy_evocue.observer import following
from dspy_evocue.running import Execution, Journal
from dspy_evocue.swapping import SWAP_LOCK


@dataclass(frozen=True, slots=True)
class Episode:
    """One run of a program on one example."""

    prediction: Any = None
    """What the program returned; None when it raised."""
    score: float | None = None
    """What the metric said, or `failure_score` when the program raised; None when nothing could be scored."""
    feedback: str = ""
    """The metric's own words."""
    error: str = ""
    """What the program raised."""
    missing: MissingScore | None = None
    """Why nothing could be scored; None when the metric or `failure_score` had the last word."""
    spend: Spend = field(default_factory=Spend)
    """What the program's calls took; the metric's own are not in it."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Recording:
    """A run with its tape, from which trials can be restored."""

    example: Any
    episode: Episode
    tape: Tape
    program_key: str
    """Fingerprint of the program's prompts, demos and edits: a changed program needs a new recording."""
    rollout_id: int | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How the runs of one program are observed; the same for every arm of its trials."""

    program: Any
    metric: MetricCall
    environment: Environment | None = None
    """None to leave the tools as they are."""
    features: FeatureSet = field(default_factory=FeatureSet)
    failure_score: float | None = 0.0
    """The score of a run in which the program raised; None to leave it missing."""
    clock: Callable[[], float] = time.perf_counter
    meters: tuple[Meter, ...] = ()
    """What counts each call of the metric."""

    @property
    def own_edits(self) -> tuple[Edit, ...]:
        """The edits that the program carries already."""
        state = state_of(self.program)
        return () if state is None else state.edits


def plan_runs(
    program: Any,
    metric: Callable[..., Any],
    *,
    environment: Environment | None = None,
    features: tuple[FeatureFunction, ...] = (),
    failure_score: float | None = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    meters: tuple[Meter, ...] = (),
) -> RunPlan:
    """Check what is needed to run a program and score it; nothing is called.

    Raises:
        TypeError: When the program is no DSPy module, the metric cannot be called, or the environment lacks a method.
    """
    if not isinstance(program, dspy.Module):
        raise TypeError(f"program must be a dspy.Module, got {type(program).__name__}")
    if environment is not None and not isinstance(environment, Environment):
        raise TypeError(f"environment must have reset, snapshot and restore, got {environment!r}")
    state = state_of(program)
    own = {function.__name__: function for function in (*(state.features.own if state else ()), *features)}
    call = metric if isinstance(metric, MetricCall) else MetricCall(metric)
    return RunPlan(program, call, environment, FeatureSet(tuple(own.values())), failure_score, clock, meters)


def record_run(plan: RunPlan, example: Any, *, rollout_id: int | None = None) -> Recording:
    """Run the program on one example and keep the tape.

    Args:
        plan: From `plan_runs`.
        example: A `dspy.Example` with its inputs marked.
        rollout_id: Makes the run another sample than those before it in DSPy's cache.
    """
    check_example(example)
    meter = Meter()
    with opened(plan.environment) as environment:
        take = None if environment is None else functools.partial(within_run, "snapshot", environment.snapshot)
        recorder = Recorder(snapshot=take, spent=lambda: meter.spend)
        episode = run_episode(
            plan, example, journal=recorder, environment=environment, meter=meter, rollout_id=rollout_id
        )
    return Recording(example, episode, recorder.tape, program_key(plan.program), rollout_id)


def run_episode(
    plan: RunPlan,
    example: Any,
    *,
    journal: Journal,
    environment: Environment | None,
    meter: Meter,
    edits: tuple[Edit, ...] = (),
    rollout_id: int | None = None,
) -> Episode:
    """Run the program with these edits after its own, and score it.

    A program's exception is an outcome. `KeyboardInterrupt` and an exhausted budget are raised.
    """
    began = plan.clock()
    run = _Run()
    world = environment if isinstance(environment, ForkingEnvironment) else None
    # Never streamed, also when run inside a streaming app: that path of DSPy's knows no retries.
    with dspy.context(**{ENVIRONMENT_KEY: world}, send_stream=None):
        with observed(plan.program) as token, meter.installed(), dspy.context(trace=[]):
            execution = Execution(
                token,
                plan.own_edits,
                plan.features,
                program=plan.program,
                tried=edits,
                journal=journal,
                world=world,
                rollout_id=rollout_id,
                max_calls=functools.partial(iteration_limits, plan.program),
            )
            with following(execution):
                run.call(plan.program, example, environment)
        if execution.outage:
            run.missing = MissingScore("model", f"the language model failed: {execution.outage}")
        score, feedback = run.scored(plan, example)
    return Episode(
        prediction=run.prediction,
        score=score,
        feedback=feedback,
        error=run.error,
        missing=run.missing,
        spend=meter.spend,
        seconds=plan.clock() - began,
    )


@dataclass(slots=True)
class _Run:
    """One call of the program, and why it has no prediction or no score."""

    prediction: Any = None
    error: str = ""
    missing: MissingScore | None = None

    def call(self, program: Any, example: Any, environment: Environment | None) -> None:
        try:
            if environment is not None:
                _reset(environment, example)
            # Not `toDict`, which turns pydantic values (images, histories) into plain dicts.
            self.prediction = _call(program, _own_containers(dict(example.inputs().items())))
        except (EnvironmentDivergence, EnvironmentFault) as fault:
            self.missing = MissingScore("environment", str(fault))
        except Divergence as divergence:
            self.missing = MissingScore("replay", f"the replay diverged: {divergence}")
        except Exception as error:  # noqa: BLE001  the boundary at which a program's failure becomes data
            self.error = f"{type(error).__name__}: {error}"

    def scored(self, plan: RunPlan, example: Any) -> tuple[float | None, str]:
        if self.missing:
            return None, ""
        if self.error:
            return plan.failure_score, ""
        try:
            score = plan.metric(example, self.prediction)
        except MetricError:
            raise
        except Exception as error:  # noqa: BLE001  the metric's failure on one run is missing evidence
            self.missing = MissingScore("metric", f"the metric raised {type(error).__name__}: {error}")
            return None, ""
        finally:
            for meter in plan.meters:
                meter.count_metric_calls()
        return score.value, score.feedback


@contextlib.contextmanager
def opened(environment: Environment | None) -> Iterator[Environment | None]:
    """Yield an environment for one run: a fork where the kind can fork, else the environment itself."""
    yield environment.fork() if isinstance(environment, ForkingEnvironment) else environment


def check_example(example: Any) -> None:
    """Check that an example can be run.

    Raises:
        TypeError: When it is no `dspy.Example`.
        ValueError: When its inputs are not marked.
    """
    if not isinstance(example, dspy.Example):
        raise TypeError(f"an example must be a dspy.Example, got {type(example).__name__}")
    try:
        example.inputs()
    except ValueError as error:
        raise ValueError(
            f"an example must say which fields are inputs (.with_inputs(...)), got {example!r:.200}"
        ) from error


def check_recording(plan: RunPlan, recording: Recording, example: Any) -> None:
    """Check that trials of this program on this example can start from the recording.

    Raises:
        RecordingError: When it is of another program or another example.
    """
    if recording.program_key != program_key(plan.program):
        raise RecordingError("the recording must be of this program; its prompts, demos or edits have changed since")
    if fingerprint(recording.example) != fingerprint(example):
        raise RecordingError(f"the recording must be of this example; it is of {recording.example!r:.200}")


def program_key(program: Any) -> str:
    """Return a fingerprint of all that is learned in a program.

    That is what its predictors are told (instructions, fields, demos), the state of its other parameters (such as the
    graph of a `ControlProgram`), and the edits that it and the programs inside it carry.
    """
    predictors = {**editable_predictors(program), **frozen_predictors(program)}
    told = {name: _told(predictor) for name, predictor in predictors.items()}
    others = {
        name: parameter.dump_state()
        for name, parameter in _parameters(program)
        if not isinstance(parameter, dspy.Predict) and hasattr(parameter, "dump_state")
    }
    edits = {name: [edit.edit_id for edit in state.edits] for name, state in states_inside(program).items()}
    return fingerprint([told, others, edits])


def _parameters(program: Any) -> list[tuple[str, Any]]:
    with SWAP_LOCK:
        return program.named_parameters()


def _told(predictor: Any) -> Mapping[str, Any]:
    signature = predictor.signature
    return {
        "instructions": signature.instructions,
        "fields": {name: str(item.json_schema_extra) for name, item in signature.fields.items()},
        "demos": canonical(predictor.demos),
    }


def within_run(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the environment in the middle of a run, where an ordinary exception could be taken for a tool's error.

    Raises:
        EnvironmentDivergence: When the environment raises: the run cannot be restored then.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise EnvironmentDivergence(what, error) from error


def _reset(environment: Environment, example: Any) -> None:
    try:
        environment.reset(example)
    except Exception as error:
        raise EnvironmentFault(f"the environment's reset raised {type(error).__name__}: {error}") from error


def _own_containers(value: Any) -> Any:
    """Return lists and dicts that a program may change without the next run of the example seeing it."""
    if type(value) is dict:
        return {key: _own_containers(item) for key, item in value.items()}
    return [_own_containers(item) for item in value] if type(value) is list else value


def _call(program: Any, inputs: Mapping[str, Any]) -> Any:
    if hasattr(type(program), "forward") or "forward" in vars(program):
        return program(**inputs)
    # A program with aforward only: a loop of its own in a thread of its own also works inside a running loop.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        context = contextvars.copy_context()
        return pool.submit(context.run, lambda: asyncio.run(program.acall(**inputs))).result()
