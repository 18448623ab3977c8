"""How a program's edits are written into its saved state, and read back into a program that they fit.

The saved file is DSPy's own state with one key more for each program that carries edits: `evocue`, or `inner.evocue`
for one that is a part of another. What the key holds is readable JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from dspy_evocue.call_sites import ANY
from dspy_evocue.edits import Edit, edit_from_dict
from dspy_evocue.errors import ArtifactError, CallSiteNotFoundError
from dspy_evocue.features import FeatureSet
from dspy_evocue.instrument import editable_predictors
from dspy_evocue.swapping import SWAP_LOCK

STATE_KEY = "evocue"
"""The key of the edits in a saved state."""
FORMAT = 1
"""The version of what the key holds."""


def programs_inside(program: Any) -> dict[str, Any]:
    """Return the program (under the empty name) and the modules inside it, by the names that `named_parameters` gives.

    Compiled sub-modules are left out, as DSPy leaves them out of a saved state. A module that is held under several
    names is listed under the first.
    """
    found: dict[str, Any] = {}
    with SWAP_LOCK:
        _collect_programs(program, "", found)
    return found


def _collect_programs(module: Any, name: str, found: dict[str, Any]) -> None:
    if any(known is module for known in found.values()):
        return
    found[name] = module
    for own_name, value in vars(module).items():
        path = f"{name}.{own_name}" if name else own_name
        for inner_name, inner in _members(path, value):
            if isinstance(inner, dspy.Module) and not getattr(inner, "_compiled", False):
                _collect_programs(inner, inner_name, found)


def _members(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return [(f"{path}['{key}']", item) for key, item in value.items()]
    return [(path, value)]


def saved_edits_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a saved state holds under the keys of edits, by the name of the program that carried them."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if key == STATE_KEY or key.endswith("." + STATE_KEY):
            found[key.removesuffix(STATE_KEY).removesuffix(".")] = value
        elif isinstance(value, Mapping) and isinstance(value.get(STATE_KEY), Mapping):
            found[key] = value[STATE_KEY]  # a predictor that is a part, and carries edits itself
    return found


def check_edits(program: Any, edits: Sequence[Edit], features: FeatureSet) -> None:
    """Check that every edit can act in this program, with no other edits beside these.

    Raises:
        CallSiteNotFoundError: When an edit names a predictor that the program does not have.
        MissingFeatureError: When a rule tests a feature that nothing computes.
        SkillError: When a skill is for the graph of an explicit controller and the checker refuses it there.
    """
    on_edges = [edit for edit in edits if edit.acts_on == "edge"]
    if on_edges:
        from dspy_evocue.control.program import require_edits

        require_edits(program, on_edges)
    names = tuple(editable_predictors(program))
    for edit in edits:
        if edit.acts_on == "edge":
            continue
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


def edits_to_dict(program: Any, edits: Sequence[Edit]) -> dict[str, Any]:
    """Return what a saved state holds under the key of a program's edits."""
    return {
        "format": FORMAT,
        "predictors": interface_of(program),
        "features": sorted({test.feature for edit in edits for test in edit.when.tests}),
        "edits": [{"id": edit.edit_id, **edit.to_dict()} for edit in edits],
    }


def edits_of(content: Any, program: Any) -> tuple[Edit, ...]:
    """Read what `edits_to_dict` wrote.

    Raises:
        ArtifactError: When it cannot be read, or was written for a program with other predictors.
    """
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


def read_state(path: Path, *, allow_pickle: bool) -> Mapping[str, Any]:
    """Return the state that a file holds.

    Raises:
        ArtifactError: When it cannot be read as one.
    """
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
