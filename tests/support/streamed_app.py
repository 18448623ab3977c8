"""The receiving end of a streaming app."""

from contextlib import AbstractContextManager

import dspy


class Streamed:
    """What a streaming app has received."""

    def __init__(self) -> None:
        self.chunks: list = []

    async def send(self, chunk: object) -> None:
        self.chunks.append(chunk)

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which such an app runs its programs."""
        return dspy.context(send_stream=self)
