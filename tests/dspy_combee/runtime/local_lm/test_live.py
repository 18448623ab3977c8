"""The real model: needs the extra `local`, fetches the weights on first use. Run with `-m live`."""

import asyncio
from typing import Literal

import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError
from pydantic import BaseModel

from dspy_combee.runtime.local_lm import local_lm, stop_local_servers

pytestmark = pytest.mark.live


class Order(BaseModel):
    item: str
    count: int


class ReadOrder(dspy.Signature):
    """Read the order."""

    message: str = dspy.InputField()
    order: Order = dspy.OutputField()
    urgent: Literal["yes", "no"] = dspy.OutputField()


@pytest.fixture(scope="module", params=["small", "default"])
def lm(request):
    yield local_lm(request.param, context_tokens=2048, cache=False)
    stop_local_servers()


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_typed_outputs_are_parsed(lm, adapter):
    with dspy.context(lm=lm, adapter=adapter):
        prediction = dspy.Predict(ReadOrder)(message="Please send me 3 lamps as soon as you can!")
    assert prediction.order.count == 3


def test_async_programs_run(lm):
    with dspy.context(lm=lm):
        prediction = asyncio.run(dspy.Predict("question -> answer").acall(question="Name a colour."))
    assert prediction.answer


def test_a_prompt_that_is_too_long_is_told_apart(lm):
    with pytest.raises(ContextWindowExceededError):
        lm("word " * 3000)
