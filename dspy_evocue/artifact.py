"""Programs that carry edits: attach, take away, explain, compare, save and load.

The saved file is DSPy's own state with one key more, so that every DSPy tool still reads it; what the key holds is
readable JSON. `load` refuses a file whose interface does not match the program.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspy_evocue.call_sites import ANY
from dspy_evocue.copying import copy_program
from dspy_evocue.edits import Edit, edit_from_dict
from dspy_evocue.errors import ArtifactError, CallSiteNotFoundError
from dspy_evocue.features import FeatureFunction, FeatureSet
from dspy_evocue.instrument import (
    STATE,
    EditedState,
    editable_predictors,
    forget_name,
    iteration_limits,
    new_token,
    prepare,
    state_of,
)
from dspy_evocue.observer import following
from dspy_evocue.running import Execution, current_executions
from dspy_evocue.swapping import SWAP_LOCK, register_layer, settle_class, subclass_like

STATE_KEY = "evocue"
"""The key of the edits in a saved state."""
FORMAT = 1
"""The version of what the key holds."""


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
        """Say in words what each edit does, where and when: one line an edit."""
        return "\n".join(f"{edit.edit_id}: {edit.describe()}" for edit in self.edits) or "no edits"

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
        tested = {test.feature for edit in self.edits for test in edit.when.tests}
        return {
            "format": FORMAT,
            "predictors": interface_of(self._program),
            "features": sorted(tested),
            "edits": [{"id": edit.edit_id, **edit.to_dict()} for edit in self.edits],
        }

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
    check_edits(program, edits, combined)
    copied = copy_program(program)
    _make_edited(copied, EditedState(state.token, (*state.edits, *edits), combined))
    return copied


def check_edits(program: Any, edits: Sequence[Edit], features: FeatureSet) -> None:
    """Check that every edit can act in this program.

    Raises:
        CallSiteNotFoundError: When an edit names a predictor that the program does not have.
        MissingFeatureError: When a rule tests a feature that nothing computes.
    """
    names = tuple(editable_predictors(program))
    for edit in edits:
        for site in edit.sites:
            if site.target != ANY and site.target not in names:
                raise CallSiteNotFoundError(site.target, names)
        features.require([test.feature for test in edit.when.tests], wanted_by=f"edit {edit.edit_id}")


def interface_of(program: Any) -> dict[str, dict[str, list[str]]]:
    """Return the names of the predictors and of their fields: what a file and a program must agree on."""
    return {
        name: {
            "inputs": list(predictor.signature.input_fields),
            "outputs": list(predictor.signature.output_fields),
        }
        for name, predictor in editable_predictors(program).items()
    }


def load(program: Any, path: str | Path, *, features: Sequence[FeatureFunction] = (), **kwargs: Any) -> Any:
    """Load a saved state, edits included, into a copy of the program.

    Args:
        program: A fresh program of the kind that was saved; it is not changed.
        path: The file that `program.save(path)` wrote.
        features: Functions for the features that the saved rules test and that are not built in.
        kwargs: For DSPy's own `load`: `allow_pickle`, `allow_unsafe_lm_state`.

    Returns:
        The copy. A file without edits gives an ordinary program.

    Raises:
        ArtifactError: When the file cannot be read as one, or its predictors are not those of the program.
        MissingFeatureError: When a saved rule tests a feature that nothing computes.
    """
    state = _read(Path(path), allow_pickle=bool(kwargs.get("allow_pickle", False)))
    content = state.get(STATE_KEY)
    edits = () if content is None else _edits_of(content, program)
    feature_set = FeatureSet(tuple(features))
    check_edits(program, edits, feature_set)
    copied = copy_program(program)
    _make_plain(copied)
    copied.load(str(path), **kwargs)
    if edits:
        _make_edited(copied, EditedState(new_token(), edits, feature_set))
    return copied


def _edits_of(content: Mapping[str, Any], program: Any) -> tuple[Edit, ...]:
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise ArtifactError(f"the key {STATE_KEY!r} must hold format {FORMAT}, got {content!r:.200}")
    _check_interface(content.get("predictors", {}), interface_of(program))
    try:
        return tuple(edit_from_dict(values) for values in content["edits"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"the saved edits cannot be read: {error}") from error


def _check_interface(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    differences = [f"only in the file: {name}" for name in saved if name not in own]
    differences += [f"only in the program: {name}" for name in own if name not in saved]
    differences += [
        f"{name} takes {own[name]['inputs']} -> {own[name]['outputs']} in the program, "
        f"{saved[name]['inputs']} -> {saved[name]['outputs']} in the file"
        for name in saved
        if name in own and saved[name] != own[name]
    ]
    if differences:
        raise ArtifactError("the file's predictors must be those of the program: " + "; ".join(differences))


def _read(path: Path, *, allow_pickle: bool) -> Mapping[str, Any]:
    import orjson

    try:
        if path.suffix == ".pkl" and allow_pickle:
            import cloudpickle

            state = cloudpickle.loads(path.read_bytes())
        elif path.suffix == ".json":
            state = orjson.loads(path.read_bytes())
        else:
            raise ArtifactError(f"the path must end with .json, or with .pkl and allow_pickle=True, got {path}")
    except (OSError, orjson.JSONDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read as a saved state: {error}") from error
    if not isinstance(state, Mapping):
        raise ArtifactError(f"{path} must hold an object, got {type(state).__name__}")
    return state


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
    with following(Execution(state.token, state.edits, state.features, max_calls=max_calls)):
        yield


@functools.lru_cache(maxsize=256)
def _edited_program_class(base: type) -> type:
    def call_program(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _edited_run(self):
            return base.__call__(self, *args, **kwargs)

    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _edited_run(self):
            return await base.acall(self, *args, **kwargs)

    def dump_state(self: Any, json_mode: bool = True) -> dict[str, Any]:
        return {**base.dump_state(self, json_mode=json_mode), STATE_KEY: Evolved(self).to_dict()}

    def load_state(self: Any, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load a state; one that has edits of its own replaces those that are there."""
        content = state.get(STATE_KEY)
        current = _state(self)
        edits = current.edits if content is None else _edits_of(content, self)
        check_edits(self, edits, current.features)
        loaded = base.load_state(self, {key: value for key, value in state.items() if key != STATE_KEY}, **kwargs)
        _make_edited(self, EditedState(current.token, edits, current.features))
        return loaded

    members = {
        "__call__": call_program,
        "acall": acall,
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
