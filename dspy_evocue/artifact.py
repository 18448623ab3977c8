"""Programs that carry edits: attach, take away, explain, compare, save and load.

Edits are one more DSPy parameter of the program that carries them, so that `save` and `load` keep them also where that
program is a part of another. `load` refuses a file whose interface does not match the program.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
from dspy.predict.parameter import Parameter

from dspy_evocue.copying import copy_program
from dspy_evocue.edits import Edit
from dspy_evocue.errors import ArtifactError
from dspy_evocue.features import FeatureFunction, FeatureSet
from dspy_evocue.instrument import (
    STATE,
    EditedState,
    forget_name,
    iteration_limits,
    new_token,
    prepare,
    state_of,
)
from dspy_evocue.observer import following
from dspy_evocue.running import Execution, current_executions
from dspy_evocue.saved_edits import (
    STATE_KEY,
    check_edits,
    edits_of,
    edits_to_dict,
    programs_inside,
    read_state,
    saved_edits_in,
)
from dspy_evocue.swapping import SWAP_LOCK, register_layer, settle_class, subclass_like


class Evolved:
    """What a program has learned: `program.evocue`."""

    def __init__(self, program: Any) -> None:
        """Look at a program that carries edits."""
        self._program = program

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits in the order in which they were attached; of several that apply, the latest acts."""
        return _state(self._program).edits

    @property
    def features(self) -> FeatureSet:
        """The features that the rules can test."""
        return _state(self._program).features

    def explain(self) -> str:
        """Say in words what each edit does, where and when: one line an edit, those of programs inside last."""
        lines = [
            f"{edit.edit_id}{f' in {name}' if name else ''}: {edit.describe()}"
            for name, state in states_inside(self._program).items()
            for edit in state.edits
        ]
        return "\n".join(lines) or "no edits"

    def without(self, edit_id: str) -> Any:
        """Return a copy of the program without one edit; without any left it is an ordinary program again.

        Raises:
            ValueError: When no edit has this id.
        """
        known = [edit.edit_id for edit in self.edits]
        if edit_id not in known:
            raise ValueError(f"edit_id must be one of {', '.join(known) or 'none'}, got {edit_id!r}")
        return self._with(tuple(edit for edit in self.edits if edit.edit_id != edit_id))

    def plain(self) -> Any:
        """Return a copy of the program without any edit: an ordinary DSPy program."""
        return self._with(())

    def diff(self, other: Any) -> str:
        """Say how another program's edits differ from these, as a unified diff of their explanations."""
        theirs = Evolved(other).explain() if state_of(other) is not None else "no edits"
        lines = difflib.unified_diff(self.explain().split("\n"), theirs.split("\n"), "this", "other", lineterm="")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return what a saved file holds under its one key."""
        return edits_to_dict(self._program, self.edits)

    def _with(self, edits: tuple[Edit, ...]) -> Any:
        state = _state(self._program)
        copied = copy_program(self._program)
        _make_plain(copied)
        if edits:
            _make_edited(copied, EditedState(state.token, edits, state.features))
        return copied

    def _repr_html_(self) -> str:
        from dspy_evocue.report.html import edits_html

        return edits_html(self.edits)

    def __repr__(self) -> str:
        return f"Evolved({self.explain()})"


def attach(program: Any, *edits: Edit, features: Sequence[FeatureFunction] = ()) -> Any:
    """Return a copy of the program that carries these edits after those that it carries already.

    Everything that is not DSPy's (clients, environments, language models) is shared with the original.

    Args:
        program: Any DSPy module; it is not changed.
        edits: What to attach, the latest last.
        features: Functions for features that the rules test and that are not built in.

    Raises:
        CallSiteNotFoundError: When an edit names a predictor that the program does not have.
        MissingFeatureError: When a rule tests a feature that nothing computes.
    """
    for edit in edits:
        if not isinstance(edit, Edit):
            raise TypeError(f"edits must be edits such as InstructionEdit, got {edit!r}")
    state = state_of(program) or EditedState(new_token())
    known = {function.__name__: function for function in (*state.features.own, *features)}
    combined = FeatureSet(tuple(known.values()))
    every = (*state.edits, *edits)
    check_edits(program, every, combined)
    copied = copy_program(program)
    _make_edited(copied, EditedState(state.token, every, combined))
    return copied


def load(program: Any, path: str | Path, *, features: Sequence[FeatureFunction] = (), **kwargs: Any) -> Any:
    """Load a saved state, edits included, into a copy of the program.

    Args:
        program: A fresh program of the kind that was saved; it is not changed.
        path: The file that `program.save(path)` wrote; the program may also have been an ordinary one with edited ones
            inside.
        features: Functions for the features that the saved rules test and that are not built in.
        kwargs: For DSPy's own `load`: `allow_pickle`, `allow_unsafe_lm_state`.

    Returns:
        The copy. It carries the edits of the file and no other: a file without edits gives an ordinary program.

    Raises:
        ArtifactError: When the file cannot be read as one, or its predictors are not those of the program.
        CallSiteNotFoundError: When a saved edit names a predictor that the program does not have.
        MissingFeatureError: When a saved rule tests a feature that nothing computes.
    """
    saved = saved_edits_in(read_state(Path(path), allow_pickle=bool(kwargs.get("allow_pickle", False))))
    feature_set = FeatureSet(tuple(features))
    copied = copy_program(program)
    programs = programs_inside(copied)
    if unknown := [name for name in saved if name not in programs]:
        known = ", ".join(name for name in programs if name)
        raise ArtifactError(
            f"the file has edits for {', '.join(unknown)} inside the program, which has {known or 'none'}"
        )
    edits = {name: edits_of(content, programs[name]) for name, content in saved.items()}
    for inner in programs.values():
        _make_plain(inner)
    copied.load(str(path), **kwargs)
    for inner in programs.values():
        vars(inner).pop(STATE_KEY, None)  # dspy.Predict takes every key of its state for an attribute
    for name, own in edits.items():
        # Only now, because skills are held against the graph of the file.
        check_edits(programs[name], own, feature_set)
        if own:
            _make_edited(programs[name], EditedState(new_token(), own, feature_set))
    return copied


def _state(program: Any) -> EditedState:
    state = state_of(program)
    assert state is not None, "Evolved looks at programs with edits only"
    return state


@contextlib.contextmanager
def _edited_run(program: Any) -> Iterator[None]:
    """Run an edited program: open an execution, unless this call happens inside one of the same program."""
    state = state_of(program)
    if state is None or any(execution.token == state.token for execution in current_executions()):
        yield
        return
    prepare(program, state.token)
    max_calls = functools.partial(iteration_limits, program)
    with following(Execution(state.token, state.edits, state.features, program=program, max_calls=max_calls)):
        yield


class _EditsParameter(Parameter):
    """The edits of a program as DSPy sees them: one more parameter, made when DSPy asks for the parameters."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def check(self, content: Any) -> EditedState:
        """Return what the program would carry; raises what `load` does when the edits do not fit it."""
        current = _state(self._program)
        edits = edits_of(content, self._program)
        check_edits(self._program, edits, current.features)
        return EditedState(current.token, edits, current.features)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        return Evolved(self._program).to_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        _make_edited(self._program, self.check(state))

    def reset(self) -> None:
        """Keep the edits: they are to a program what its instructions are to a predictor."""


_parameters: weakref.WeakValueDictionary[int, _EditsParameter] = weakref.WeakValueDictionary()


def _parameter_of(program: Any) -> _EditsParameter:
    # The same one for as long as any list of parameters holds it: DSPy tells shared parameters by their identity.
    return _parameters.setdefault(id(program), _EditsParameter(program))


def states_inside(program: Any) -> dict[str, EditedState]:
    """Return what the program (the empty name) and those inside it carry, for each that carries edits."""
    states = {name: state_of(inner) for name, inner in programs_inside(program).items()}
    return {name: state for name, state in states.items() if state is not None}


@functools.lru_cache(maxsize=256)
def _edited_program_class(base: type) -> type:
    def call_program(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _edited_run(self):
            return base.__call__(self, *args, **kwargs)

    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _edited_run(self):
            return await base.acall(self, *args, **kwargs)

    def named_parameters(self: Any) -> list[tuple[str, Any]]:
        return [*base.named_parameters(self), (STATE_KEY, _parameter_of(self))]

    def dump_state(self: Any, json_mode: bool = True) -> dict[str, Any]:
        return {**base.dump_state(self, json_mode=json_mode), STATE_KEY: Evolved(self).to_dict()}

    def load_state(self: Any, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load a state; edits in it replace those that are there, and without any these stay."""
        current = {
            f"{name}.{STATE_KEY}" if name else STATE_KEY: edits_to_dict(programs_inside(self)[name], inner.edits)
            for name, inner in states_inside(self).items()
        }
        state = {**current, **state}
        parameter = _EditsParameter(self)
        parameter.check(state[STATE_KEY])
        if issubclass(base, dspy.Predict):
            loaded = base.load_state(self, {key: value for key, value in state.items() if key != STATE_KEY}, **kwargs)
            parameter.load_state(state[STATE_KEY])
            return loaded
        return base.load_state(self, state, **kwargs)

    members = {
        "__call__": call_program,
        "acall": acall,
        "named_parameters": named_parameters,
        "dump_state": dump_state,
        "load_state": load_state,
        "evocue": property(Evolved),
    }
    return subclass_like(base, _edited_program_class, members)


def _make_edited(program: Any, state: EditedState) -> None:
    """Turn a program, in place, into one that carries edits."""
    with SWAP_LOCK:
        vars(program)[STATE] = state
        settle_class(program)
    prepare(program, state.token)


def _make_plain(program: Any) -> None:
    """Undo `make_edited`, in place."""
    with SWAP_LOCK:
        state = vars(program).pop(STATE, None)
        if state is not None:
            for _, predictor in program.named_predictors():
                forget_name(predictor, state.token)
            settle_class(program)


register_layer(_edited_program_class, attribute=STATE)
