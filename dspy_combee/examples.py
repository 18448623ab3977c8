"""Check a user's examples and program before anything is spent on them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dspy

logger = logging.getLogger(__name__)


def check_program(program: Any) -> None:
    """Refuse what cannot be compiled.

    Raises:
        TypeError: it is not a `dspy.Module`, or it only runs asynchronously.
        ValueError: it has no predictor to teach.
    """
    if not isinstance(program, dspy.Module):
        raise TypeError(f"the program must be a dspy.Module, got {type(program).__name__}")
    if not callable(getattr(type(program), "forward", None)):
        raise TypeError(
            f"the program must have a forward method, {type(program).__name__} has none; "
            "wrap one that only has aforward with dspy.syncify(program)"
        )
    if not program.named_predictors():
        raise ValueError(f"the program must have at least one predictor, {type(program).__name__} has none")


def check_examples(examples: Any, name: str) -> list[dspy.Example]:
    """Return the examples as a list, or say which one cannot be used and why.

    Args:
        examples: A sequence of `dspy.Example`s with their inputs marked.
        name: The argument's name, for the message.

    Raises:
        TypeError: it is no sequence, or an item is not a `dspy.Example`.
        ValueError: it is empty, an example has no inputs marked, or lacks a field that nearly all others have.
    """
    if isinstance(examples, str | bytes) or not isinstance(examples, Sequence):
        raise TypeError(f"{name} must be a list of dspy.Example, got {type(examples).__name__}")
    if not examples:
        raise ValueError(f"{name} must hold at least one example, got none")
    for index, example in enumerate(examples):
        if not isinstance(example, dspy.Example):
            raise TypeError(
                f"{name} must hold dspy.Example objects, got {type(example).__name__} at index {index}; "
                "build them with dspy.Example(**row).with_inputs('question')"
            )
        _check_inputs(example, name, index)
    _check_fields(examples, name)
    return list(examples)


def check_split(trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example] | None) -> None:
    """Warn when the validation score would be measured on what was trained on."""
    if valset is None:
        logger.warning("No valset: the train set scores the candidates, so the result may be overfit to it.")
    elif valset is trainset:
        logger.warning("valset is the trainset: the result may be overfit to it. Hold some examples out.")
    else:
        seen = {example_key(example) for example in trainset}
        shared = sum(example_key(example) in seen for example in valset)
        if shared:
            logger.warning(
                "%d of %d validation examples are in the trainset too: the scores of candidates may be overfit.",
                shared,
                len(valset),
            )


def example_key(example: dspy.Example) -> str:
    """Return a text that is equal for examples with equal fields, in this and in other processes."""
    return json.dumps(dict(example), sort_keys=True, default=_stable_text)


def _stable_text(value: Any) -> str:
    dump = getattr(value, "model_dump_json", None)
    text = str(dump() if callable(dump) else value)
    return text if " at 0x" not in text else type(value).__name__


def _check_inputs(example: dspy.Example, name: str, index: int) -> None:
    try:
        inputs = example.inputs()
    except ValueError:
        inputs = None
    if inputs is None or not inputs.keys():
        raise ValueError(
            f"every example must have its inputs marked, {name}[{index}] has none; "
            f"call .with_inputs(...) with some of {sorted(example.keys())}"
        )


def _check_fields(examples: Sequence[dspy.Example], name: str) -> None:
    counts = Counter(key for example in examples for key in example.keys())  # noqa: SIM118 - Example is no mapping
    usual = {key for key, count in counts.items() if count >= 0.9 * len(examples) or count == len(examples) - 1 > 0}
    for index, example in enumerate(examples):
        missing = usual - set(example.keys())
        if missing:
            raise ValueError(f"{name}[{index}] must have the fields of the other examples, it lacks {sorted(missing)}")
