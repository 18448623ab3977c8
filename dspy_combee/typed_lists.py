"""One call that returns typed lists as JSON: of all forms that were tried, the one that a small model fills in whole.

`benchmarks/lesson_extraction.py` compares the forms. No decision on what the items mean is made here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import dspy

from dspy_combee.replies import recover_list, refuse_cut_reply


class _ListAdapter(dspy.JSONAdapter):
    """DSPy's own, but the system text, a third of what a call takes, is written once a signature and not a call."""

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        return _system_message(cast(Any, signature))  # a class is hashable, which the metaclass hides


@lru_cache(maxsize=8)
def _system_message(signature: type[dspy.Signature]) -> str:
    return dspy.JSONAdapter().format_system_message(signature)


def ask_for_lists(signature: type[dspy.Signature], **inputs: str) -> dict[str, list[Any]]:
    """Make one call and return the list of each output field of the signature.

    Where some items are of another shape, all of them are returned as the JSON reply has them: the good ones are not
    lost with the bad ones.

    Raises:
        ReflectionError: The reply was cut off, or holds no such lists.
    """
    from dspy.utils.exceptions import AdapterParseError

    predictor = dspy.Predict(signature)  # of its own, so that its history holds this call only
    try:
        with dspy.context(adapter=_ListAdapter()):
            reply: Any = predictor(**inputs)
        found = {name: getattr(reply, name) for name in signature.output_fields}
    except AdapterParseError as error:
        found = {name: recover_list(error.lm_response, name) for name in signature.output_fields}
    refuse_cut_reply(predictor.history[-1] if predictor.history else None)
    return found
