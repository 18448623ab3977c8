"""What an edit does to one predictor call: a longer signature going in, perhaps a revised prediction coming out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from dspy.dsp.utils.settings import settings
from dspy.signatures.signature import ensure_signature

from dspy_evocue.entries import Entry, Replayed
from dspy_evocue.running import Execution

Entries = Iterable[tuple[Execution, Entry, Replayed | None]]


def call_arguments(predictor: Any, kwargs: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """Return the keyword arguments with which the predictor's own `forward` is to be called."""
    arguments = dict(kwargs)
    for execution, entry, _ in entries:
        text = entry.edit.instruction() if entry.edit is not None else ""
        if text:
            signature = ensure_signature(arguments.get("signature", predictor.signature))
            arguments["signature"] = _appended(signature, text)
        if execution.rollout_id is not None:
            config = {**(arguments.get("config") or {})}
            config.update(_rollout(predictor, arguments, config, execution.rollout_id))
            if config:
                arguments["config"] = config
    return arguments


def finish_prediction(predictor: Any, entries: Entries, prediction: Any) -> Any:
    """Return the prediction as the program gets to see it."""
    for _, entry, _ in entries:
        if entry.edit is not None:
            prediction = entry.edit.revise(entry, prediction)
    return prediction


def replay_prediction(predictor: Any, kwargs: Mapping[str, Any], replayed: Replayed) -> Any:
    """Return a recorded prediction, or raise the recorded error, leaving the same trace as the call did."""
    if replayed.error is not None:
        raise replayed.error
    if settings.trace is not None and settings.max_trace_size > 0:
        if len(settings.trace) >= settings.max_trace_size:
            settings.trace.pop(0)
        inputs = {key: value for key, value in kwargs.items() if key not in ("signature", "demos", "config", "lm")}
        settings.trace.append((predictor, inputs, replayed.output))
    return replayed.output


def _rollout(
    predictor: Any, arguments: Mapping[str, Any], config: Mapping[str, Any], rollout_id: int
) -> dict[str, int]:
    """Return the rollout id for one call; none at temperature 0, where DSPy warns that it has no effect."""
    lm = arguments.get("lm") or predictor.lm or settings.lm
    defaults = {**getattr(lm, "kwargs", {}), **predictor.config, **config}
    if defaults.get("temperature") == 0:
        return {}
    own = defaults.get("rollout_id")
    # A program that samples several times (dspy.BestOfN) gives each sample an id: those must stay distinct.
    return {"rollout_id": rollout_id if own is None else (int(own) + 1) * 1_000_003 + rollout_id}


def _appended(signature: Any, text: str) -> Any:
    adapter = settings.adapter
    if adapter is None or type(adapter).__qualname__ != "Refine.forward.<locals>.WrapperAdapter":
        return _longer(_Same(signature), text)
    # dspy.Refine looks its hint up by signature: there, and only there, the longer one must be found as the original.
    return _found_as(signature.append_instructions(text), signature)


class _Same:
    """A signature as a key: by identity, since two that compare equal may still differ."""

    __slots__ = ("signature",)

    def __init__(self, signature: Any) -> None:
        self.signature = signature

    def __hash__(self) -> int:
        return id(self.signature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.signature is self.signature


@functools.lru_cache(maxsize=256)
def _longer(key: _Same, text: str) -> Any:
    """Return the signature with the text after its instructions; making one takes longer than the rest of an edit."""
    return key.signature.append_instructions(text)


def _found_as(appended: type, original: type) -> type:
    """Give a signature the hash and equality of another, for one dictionary lookup."""
    members = {"__hash__": lambda cls: hash(original), "__eq__": lambda cls, other: other is original or other is cls}
    metaclass: Any = type(appended)
    appended.__class__ = type(metaclass.__name__, (metaclass,), members)
    return appended
