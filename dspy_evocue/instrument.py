"""Make a program's predictors and tools report their entries and take edits, without changing what they do.

The class of an instance is swapped for a subclass of its own class, in place: aliases, copies, pickles and DSPy's own
`isinstance` tests keep working, the stored signature is never touched, and swapping back undoes it. Edits are applied
to one call by passing a longer signature to the parent class's `forward`.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback_context import ACTIVE_CALL_ID
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.entries import Entry, NodeKind, Replayed
from dspy_evocue.features import FeatureSet
from dspy_evocue.injection import call_arguments, finish_prediction, replay_prediction
from dspy_evocue.observer import OBSERVER, PREPARED, unobserved
from dspy_evocue.running import Execution, current_executions
from dspy_evocue.swapping import SWAP_LOCK, register_layer, settle_class, subclass_like, swap

NAMES = "_evocue_names"
"""The attribute that holds a predictor's name for each program that knows it, by the program's token."""
STATE = "_evocue_state"
"""The attribute that holds what an edited program carries."""
_observations: dict[int, _Observation] = {}


@dataclass(frozen=True, slots=True)
class EditedState:
    """What an edited program carries: under which token its predictors know their names, and the edits."""

    token: str
    edits: tuple[Any, ...] = ()
    features: FeatureSet = field(default_factory=FeatureSet)


@dataclass(slots=True)
class _Observation:
    program: Any
    token: str
    users: int
    undo: list[Callable[[], None]]


@dataclass(slots=True)
class _HeldTool:
    """A tool that observed programs need prepared; the reference keeps its `id` from being given to another one."""

    tool: Any
    plain: type
    users: int = 0


_held_tools: dict[int, _HeldTool] = {}


def new_token() -> str:
    """Return a token that no other program has."""
    return uuid.uuid4().hex[:12]


def state_of(program: Any) -> EditedState | None:
    """Return what an edited program carries; None for an ordinary one."""
    return vars(program).get(STATE)


def editable_predictors(program: Any) -> dict[str, Any]:
    """Return the predictors to which an edit can be attached, by the names that `named_predictors()` gives."""
    with SWAP_LOCK:
        return dict(program.named_predictors())


def frozen_predictors(program: Any) -> dict[str, Any]:
    """Return the other predictors that the program holds (in compiled sub-modules, or deeper in containers)."""
    with SWAP_LOCK:
        editable = {id(predictor) for predictor in editable_predictors(program).values()}
        return {
            name.removeprefix("self."): predictor
            for name, predictor in program.named_sub_modules(dspy.Predict)
            if id(predictor) not in editable
        }


def prepare(program: Any, token: str) -> None:
    """Make every editable predictor report its entries under its name. Cheap when all of them do already."""
    for name, predictor in editable_predictors(program).items():
        if vars(predictor).get(NAMES, {}).get(token) != (name, "predictor"):
            with SWAP_LOCK:
                _name(predictor, token, name, "predictor")


@contextlib.contextmanager
def observed(program: Any) -> Iterator[str]:
    """Make predictors and tools of a program observable and replayable while the block runs, then undo it.

    Several blocks may observe one program at once; the last one out undoes it.

    Yields:
        The token of the program's names.
    """
    with SWAP_LOCK:
        observation = _observations.get(id(program))
        if observation is None:
            observation = _observations[id(program)] = _observe(program)
        observation.users += 1
    try:
        yield observation.token
    finally:
        with SWAP_LOCK:
            observation.users -= 1
            if observation.users == 0:
                del _observations[id(program)]
                for undo in reversed(observation.undo):
                    undo()


def _observe(program: Any) -> _Observation:
    state = state_of(program)
    observation = _Observation(program, new_token() if state is None else state.token, 0, [])
    found: list[tuple[str, Any, NodeKind]] = [
        *((name, predictor, "predictor") for name, predictor in editable_predictors(program).items()),
        *((f"frozen:{name}", predictor, "frozen") for name, predictor in frozen_predictors(program).items()),
    ]
    for name, predictor, kind in found:
        if observation.token not in vars(predictor).get(NAMES, {}):
            _name(predictor, observation.token, name, kind)
            observation.undo.append(functools.partial(forget_name, predictor, observation.token))
    for _, tool in program.named_sub_modules(dspy.Tool):
        _hold_tool(tool)
        observation.undo.append(functools.partial(_release_tool, tool))
    return observation


def _hold_tool(tool: Any) -> None:
    """Make a tool observable, or count one more program that needs it so: a program and its copies share tools."""
    held = _held_tools.get(id(tool))
    if held is None:
        held = _held_tools[id(tool)] = _HeldTool(tool, type(tool))
        swap(tool, _prepared_tool_class(held.plain))
    held.users += 1


def _release_tool(tool: Any) -> None:
    held = _held_tools[id(tool)]
    held.users -= 1
    if held.users == 0:
        del _held_tools[id(tool)]
        swap(tool, held.plain)


def _name(predictor: Any, token: str, name: str, kind: NodeKind) -> None:
    # A new dictionary, never a changed one: copies of a predictor may share it.
    vars(predictor)[NAMES] = {**vars(predictor).get(NAMES, {}), token: (name, kind)}
    settle_class(predictor)


def forget_name(predictor: Any, token: str) -> None:
    """Undo the naming of a predictor for one program."""
    names = {key: value for key, value in vars(predictor).get(NAMES, {}).items() if key != token}
    # In one step: another program that knows the predictor may be calling it in another thread.
    if names:
        vars(predictor)[NAMES] = names
    else:
        vars(predictor).pop(NAMES, None)
    settle_class(predictor)


def iteration_limits(program: Any) -> dict[str, int]:
    """Return the most entries of each predictor of a module that has `max_iters`, by the predictor's name."""
    limits: dict[str, int] = {}
    with SWAP_LOCK:
        modules = list(program.named_sub_modules(dspy.Module))
    for path, module in modules:
        limit = vars(module).get("max_iters")
        if isinstance(limit, int):
            prefix = path.removeprefix("self").removeprefix(".")
            for name, value in list(vars(module).items()):
                if isinstance(value, dspy.Predict):
                    limits[f"{prefix}.{name}" if prefix else name] = limit
    return limits


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a prepared predictor or tool, for every current execution that knows it."""

    entries: tuple[tuple[Execution, Entry, Replayed | None], ...]

    @property
    def replayed(self) -> Replayed | None:
        """The recorded outcome, where one of the executions replays."""
        return next((replayed for _, _, replayed in self.entries if replayed is not None), None)

    def leave(self, output: Any, error: BaseException | None) -> None:
        """Tell every execution how it ended."""
        for execution, entry, replayed in self.entries:
            execution.leave(entry, output, error, was_replayed=replayed is not None)


@contextlib.contextmanager
def _left(call: _Call) -> Iterator[list[Any]]:
    """Report the end of a call: the value that the block appended, or the error that it raised."""
    outcome: list[Any] = []
    try:
        yield outcome
    except BaseException as error:
        call.leave(None, error)
        raise
    call.leave(outcome[0], None)


def _enter_predictor(predictor: Any, kwargs: Mapping[str, Any]) -> _Call:
    names: Mapping[str, tuple[str, NodeKind]] = vars(predictor).get(NAMES, {})
    inputs = {key: value for key, value in kwargs.items() if key not in ("signature", "demos", "config", "lm")}
    entries = []
    for execution in current_executions():
        node, kind = names.get(execution.token, ("", "frozen"))
        if node:
            entries.append((execution, *execution.enter(kind, node, inputs, ACTIVE_CALL_ID.get())))
    return _Call(tuple(entries))


@contextlib.contextmanager
def _original_signature(predictor: Any) -> Iterator[None]:
    """Let a parse error name the predictor's own signature: optimizers look the predictor up by it."""
    try:
        yield
    except AdapterParseError as error:
        error.signature = predictor.signature
        raise


@functools.lru_cache(maxsize=256)
def _prepared_predictor_class(base: type) -> type:
    """Return the subclass of a predictor's class whose calls are reported and edited."""
    # A class of the user's own may call modules and tools from its forward, and those are nodes.
    is_dspys_own = base.forward is dspy.Predict.forward and base.aforward is dspy.Predict.aforward
    calls_alone = unobserved if is_dspys_own else contextlib.nullcontext

    def forward(self: Any, **kwargs: Any) -> Any:
        call = _enter_predictor(self, kwargs)
        with _left(call) as outcome:
            if call.replayed is not None:
                outcome.append(replay_prediction(self, kwargs, call.replayed))
            else:
                with _original_signature(self), calls_alone():
                    prediction = base.forward(self, **call_arguments(self, kwargs, call.entries))
                outcome.append(finish_prediction(self, call.entries, prediction))
        return outcome[0]

    async def aforward(self: Any, **kwargs: Any) -> Any:
        call = _enter_predictor(self, kwargs)
        with _left(call) as outcome:
            if call.replayed is not None:
                outcome.append(replay_prediction(self, kwargs, call.replayed))
            else:
                with _original_signature(self), calls_alone():
                    prediction = await base.aforward(self, **call_arguments(self, kwargs, call.entries))
                for _, entry, _ in call.entries:
                    if entry.edit is not None:
                        prediction = await entry.edit.arevise(entry, prediction)
                outcome.append(prediction)
        return outcome[0]

    return subclass_like(base, _prepared_predictor_class, {"forward": forward, "aforward": aforward, PREPARED: True})


@functools.lru_cache(maxsize=256)
def _prepared_tool_class(base: type) -> type:
    prepared = subclass_like(base, _prepared_tool_class, {})
    # The one thing that a call of a tool looks up on it: here it is what the tool does in the current execution. A
    # wrapper around the call would show in the traceback that dspy.ReAct gives to the model when a tool raises.
    prepared.func = property(_function_of)  # pyright: ignore[reportAttributeAccessIssue]
    return prepared


def _function_of(tool: Any) -> Callable[..., Any]:
    """Return a tool's function: as it acts on the current world, or what answers from the recording."""
    function = vars(tool)["func"]
    for execution, _, replayed in OBSERVER.call_in_flight(ACTIVE_CALL_ID.get()):
        if replayed is not None:
            return functools.partial(_outcome_of, replayed)
        if execution.world is not None:
            return execution.world.bind(function)
    return function


def _outcome_of(replayed: Replayed, **arguments: Any) -> Any:
    if replayed.error is not None:
        raise replayed.error
    return replayed.output


register_layer(_prepared_predictor_class, attribute=NAMES)
register_layer(_prepared_tool_class)
