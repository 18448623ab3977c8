"""What tests of several parts of `dspy_combee` need."""

from contextlib import AbstractContextManager

import dspy
import pytest


class Streamed:
    """The receiving end of a streaming app, and what it received."""

    def __init__(self) -> None:
        self.chunks: list = []

    async def send(self, chunk: object) -> None:
        self.chunks.append(chunk)

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which such an app runs its programs."""
        return dspy.context(send_stream=self)


@pytest.fixture
def streamed() -> Streamed:
    return Streamed()
