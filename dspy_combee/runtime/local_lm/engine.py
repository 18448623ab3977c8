"""How DSPy reaches the embedded server: an engine that knows which server it wants, not where that server is.

An address would be wrong after a restart, in another process, or in a program that was pickled and loaded again. So
the engine holds the server's options only, and looks the server up (or starts it) at each call. The requests
themselves are carried by DSPy's own native HTTP engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from dspy.clients.engines import AsyncLM15Engine, LM15Engine
from dspy.lm15 import (
    AccessPolicy,
    ContextLengthError,
    EndpointSupport,
    InvalidRequestError,
    OpenAIChatCompat,
    ProviderDefinition,
    Request,
    Response,
    RouterConfig,
    Timeouts,
    TransportError,
)

from dspy_combee.runtime.local_lm.server import LocalServer, ServerOptions, running_server

_PROVIDER = "llama-cpp"
_TOO_LONG = "exceeds the available context size"
_GRACE_SECONDS = 2.0
_TURN_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A DSPy engine on the embedded server: it can be copied, pickled and saved, and is shared by threads."""

    options: ServerOptions

    supports_function_calling: ClassVar[bool] = False  # the packaged models answer a tool request in prose
    supports_response_schema: ClassVar[bool] = True
    supported_params: ClassVar[frozenset[str]] = frozenset(
        {"temperature", "max_tokens", "top_p", "stop", "seed", "stream", "response_format"}
    )

    def complete(self, request: Request) -> Response:
        """Answer one request when a slot of the server is free.

        Raises:
            LocalModelError: the server cannot be started.
            LocalServerEndedError: the server has ended.
        """
        server = running_server(self.options, restart=False)
        with server.slots, _explained(server):
            return _client(server).complete(_routed(request))

    def stream(self, request: Request) -> Iterator[Any]:
        """Answer one request as a stream of events."""
        server = running_server(self.options, restart=False)
        with server.slots, _explained(server):
            yield from _client(server).stream(_routed(request))

    def close(self) -> None:
        """Do nothing: the server serves other LMs, too, and stops at exit."""

    def dump_state(self) -> dict[str, Any]:
        """Return what `load_state` needs; part of a saved program that has its own LM."""
        return asdict(self.options)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> LocalEngine:
        """Return an engine for the same server options."""
        return cls(ServerOptions(**state))


@dataclass(frozen=True, slots=True)
class AsyncLocalEngine:
    """The same engine for `acall` and async programs."""

    options: ServerOptions

    async def complete(self, request: Request) -> Response:
        """Answer one request when a slot of the server is free."""
        async with _aslot(self.options) as server:
            client = _new_async_client(server)
            try:
                with _explained(server):
                    return await client.complete(_routed(request))
            finally:
                await client.aclose()

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Answer one request as a stream of events."""
        async with _aslot(self.options) as server:
            client = _new_async_client(server)
            try:
                with _explained(server):
                    async for event in client.stream(_routed(request)):
                        yield event
            finally:
                await client.aclose()

    async def aclose(self) -> None:
        """Do nothing: the server serves other LMs, too, and stops at exit."""

    def dump_state(self) -> dict[str, Any]:
        """Return what `load_state` needs."""
        return asdict(self.options)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncLocalEngine:
        """Return an engine for the same server options."""
        return cls(ServerOptions(**state))


@contextlib.contextmanager
def _explained(server: LocalServer) -> Iterator[None]:
    """Say that the server has ended, where this is why a request failed."""
    server.check_running()
    try:
        yield
    except TransportError:
        server.check_running(grace_seconds=_GRACE_SECONDS)
        raise
    except InvalidRequestError as error:
        if _TOO_LONG not in str(error):
            raise
        # DSPy shortens a trajectory, and skips a pointless second try, only when it can tell this case.
        raise ContextLengthError(f"{error}: give local_lm(context_tokens=...) more") from error


@contextlib.asynccontextmanager
async def _aslot(options: ServerOptions) -> AsyncIterator[LocalServer]:
    server = await asyncio.to_thread(running_server, options, restart=False)
    # Polled, not awaited in a thread: a cancelled wait must not leave a slot taken for ever.
    while not server.slots.acquire(blocking=False):
        await asyncio.sleep(_TURN_POLL_SECONDS)
    try:
        yield server
    finally:
        server.slots.release()


def _routed(request: Request) -> Request:
    return replace(request, model=f"{_PROVIDER}/{request.model.rpartition('/')[2]}")


def _client(server: LocalServer) -> LM15Engine:
    # The process id is part of the key: a forked child must not write to the sockets of its parent.
    return _client_of(server.address, server.options.request_seconds, os.getpid())


@functools.lru_cache(maxsize=8)
def _client_of(address: str, request_seconds: float, process_id: int) -> LM15Engine:
    return LM15Engine(_config(address, request_seconds))


def _new_async_client(server: LocalServer) -> AsyncLM15Engine:
    # One a call: a pool belongs to one event loop, and a new connection to 127.0.0.1 costs nothing beside a reply.
    return AsyncLM15Engine(_config(server.address, server.options.request_seconds))


def _config(address: str, request_seconds: float) -> RouterConfig:
    provider = ProviderDefinition.chat(
        AccessPolicy(
            provider=_PROVIDER,
            supports=EndpointSupport(complete=True, stream=True, models=True),
            auth_modes=("bearer",),
            base_url=f"{address}/v1",
        ),
        compat=OpenAIChatCompat(
            instruction_role="system",
            max_tokens_field="max_tokens",
            stream_usage="include",
            thinking_format="none",
            tool_result_name="omit",
            strict_tools="omit",
            cache_control="none",
            tool_result_media="reject",
        ),
        placeholder_key="none",
    )
    timeouts = Timeouts(read=request_seconds, write=request_seconds, pool=None)
    return RouterConfig(env={}, providers=(provider,), timeouts=timeouts)
