"""A scripted model for the code world, which plays each task right and follows the house rule only where it sees it.

It stands in for a language model in tests, figures and the notebook: its replies depend on nothing but the prompt of
that one call, so what an edit changes is what its text, at its place, made visible. Pure: knows neither dspy nor a
model.
"""

from __future__ import annotations

import re
from typing import Any

from dspy_combee.runtime.python_syntax import literal

_RULE_SIGN = "reference='<invoice number>/<vendor>'"
_FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\[\[ ## |\Z)", re.DOTALL)


def clerk_reply(prompt: str, call_number: int = 1) -> str:
    """Return the reply to one prompt of DSPy's chat format.

    Written code has one closing bracket too few in the first attempt at a payment whose invoice number ends in 3: the
    draft is invalid, and the next attempt, which is shown the problem, is right.
    """
    fields = _last_fields(prompt)
    told = _RULE_SIGN in prompt
    if "observed" in _asked(prompt):
        done = "completed" in fields.get("history", "")
        return _reply(observed=["the task is completed"] if done else [], missing=[] if done else ["complete the task"])
    if "note" in _asked(prompt):
        return _reply(note=f"{len(fields.get('history', '').split('[')) - 1} actions so far")
    if "problem" in _asked(prompt):
        return _reply(problem="the payment has no reference" if told and _lacks_reference(fields["draft"]) else "")
    if "draft" in fields:
        return _reply(code=_revised(fields, told))
    return _reply(code=_written(fields["task"], fields["history"], told))


def hasty_clerk_reply(prompt: str, call_number: int = 1) -> str:
    """Return the reply of a clerk that must not be asked to revise too early.

    Told the house rule before anything was executed, it gives a draft that pays nothing up for lost, and closes the
    task. From then on it is the same clerk. So a revision on its drafts helps in one phase only.
    """
    fields = _last_fields(prompt)
    is_revision = "draft" in fields and "code" in _asked(prompt)
    is_early = fields.get("history") == "(nothing yet)" and "payments.pay" not in fields.get("draft", "")
    if is_revision and is_early and _RULE_SIGN in prompt:
        return _reply(code="print(apis.supervisor.complete_task(answer=0))")
    return clerk_reply(prompt, call_number)


def _last_fields(prompt: str) -> dict[str, str]:
    """Return the input fields of the request itself, which comes after the format and the demonstrations."""
    request = prompt[prompt.rindex("[[ ## task ## ]]") :]
    return {name: text.strip() for name, text in _FIELD.findall(request.split("\n\nRespond with")[0])}


def _asked(prompt: str) -> str:
    """Return the line in which DSPy names the output fields."""
    return prompt[prompt.rindex("Respond with the corresponding output fields") :]


def _reply(**outputs: Any) -> str:
    blocks = [f"[[ ## {name} ## ]]\n{value}" for name, value in outputs.items()]
    return "\n\n".join([*blocks, "[[ ## completed ## ]]"])


def _written(task: str, history: str, told: bool) -> str:
    if direct := re.search(r"Pay invoice (i\d+) of (\w+), (\d+) in all", task):
        number, vendor, amount = direct.groups()
        if f"for {number}" not in history:
            return _payment(number, vendor, history, told)
        return f"print(apis.supervisor.complete_task(answer={amount}))"
    vendor = re.search(r"invoices? of (\w+)", task).group(1)  # type: ignore[union-attr]
    listed = re.search(r"observation:\n(\[\{.*\}\])", history)
    if listed is None:
        return f"found = apis.invoices.search(vendor='{vendor}')\nprint(found)"
    open_ones = [one for one in literal(listed.group(1)) if one["status"] == "open"]
    unpaid = [one for one in open_ones if f"for {one['number']}" not in history]
    if "Pay every" in task and unpaid:
        return _payment(unpaid[0]["number"], vendor, history, told)
    return f"print(apis.supervisor.complete_task(answer={sum(one['amount'] for one in open_ones)}))"


def _payment(number: str, vendor: str, history: str, told: bool) -> str:
    reference = f", reference='{number}/{vendor}'" if told else ""
    is_slip = number.endswith("3") and "[not executed]" not in history
    return f"print(apis.payments.pay(number='{number}'{reference})" + ("" if is_slip else ")")


def _lacks_reference(draft: str) -> bool:
    return "payments.pay" in draft and "reference" not in draft


def _revised(fields: dict[str, str], told: bool) -> str:
    draft = fields["draft"]
    if not (told and _lacks_reference(draft)):
        return draft
    number = re.search(r"number='(i\d+)'", draft).group(1)  # type: ignore[union-attr]
    vendor = re.search(r"(?:invoices? (?:i\d+ )?)of (\w+)", fields["task"]).group(1)  # type: ignore[union-attr]
    return draft.replace(f"number='{number}'", f"number='{number}', reference='{number}/{vendor}'")
