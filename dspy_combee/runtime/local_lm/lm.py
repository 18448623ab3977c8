"""The two functions that users call: the embedded model, and whichever model a name stands for."""

from __future__ import annotations

import os
from typing import Any

import dspy

from dspy_combee.runtime.local_lm.engine import AsyncLocalEngine, LocalEngine
from dspy_combee.runtime.local_lm.models import PACKAGED_MODELS, chosen_model, model_name
from dspy_combee.runtime.local_lm.server import ServerOptions, running_server

_EMBEDDED_PREFIX = "local"


def local_lm(
    size: str = "default",
    *,
    model_path: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    parallel: int = 1,
    context_tokens: int = 8192,
    port: int | None = None,
    start_seconds: float = 300.0,
    request_seconds: float = 900.0,
    progress: bool = True,
    temperature: float = 0.0,
    max_tokens: int = 1024,
    **lm_kwargs: Any,
) -> dspy.LM:
    """Return a `dspy.LM` on a small language model that runs on this machine: no key, no network once it is fetched.

    The first call fetches the weights (1.1 GB, `"small"` 0.5 GB) into the user's cache folder and starts a server on
    127.0.0.1, which every thread of the process shares and which ends with the process. A call after that server has
    ended starts a new one. The LM can be copied, pickled and saved; in another process it starts its own server.

    Args:
        size: `"default"` for Qwen2.5-Coder-1.5B-Instruct, `"small"` for its 0.5B sibling.
        model_path: A GGUF file of your own to serve instead. None for the one that the environment variable
            DSPY_COMBEE_GGUF names, or else the packaged one.
        num_threads: Processor threads to compute with; None for as many as this process may use.
        parallel: Requests worked on at once; further ones wait for their turn. More than one gains nothing on a few
            processors, and each keeps its own copy of a shared prompt prefix.
        context_tokens: The longest prompt and reply together, for each request.
        port: A fixed port of 127.0.0.1; None for a free one.
        start_seconds: How long the model may take to load.
        request_seconds: How long one request may take once its turn has come.
        progress: Whether to show a progress bar while weights are fetched.
        temperature: As in `dspy.LM`; 0 always takes the likeliest token.
        max_tokens: As in `dspy.LM`.
        **lm_kwargs: Whatever else `dspy.LM` takes, for example `cache` or `callbacks`.

    Raises:
        ValueError: an argument is out of its range.
        LocalModelError: the extra is missing, the weights cannot be fetched, or the server does not start.
    """
    threads = num_threads if num_threads is not None else _usable_processors()
    at_least_one = {"num_threads": threads, "parallel": parallel, "context_tokens": context_tokens}
    for name, count in at_least_one.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")
    options = ServerOptions(
        model=chosen_model(size, model_path),
        num_threads=threads,
        parallel=parallel,
        context_tokens=context_tokens,
        port=port or 0,
        start_seconds=start_seconds,
        request_seconds=request_seconds,
        progress=progress,
    )
    running_server(options, restart=True)
    return dspy.LM(
        f"{_EMBEDDED_PREFIX}/{model_name(options.model)}",
        engine=LocalEngine(options),
        async_engine=AsyncLocalEngine(options),
        temperature=temperature,
        max_tokens=max_tokens,
        **lm_kwargs,
    )


def resolve_lm(name: str | None = None, **lm_kwargs: Any) -> dspy.LM:
    """Return the LM that a name stands for: this one, else the one that DSPY_LM names, else the embedded model.

    Args:
        name: A name that `dspy.LM` takes (`"openai/gpt-4o-mini"`), or `"local"`, `"local/default"` or
            `"local/small"` for the embedded model. None or empty for what DSPY_LM says.
        **lm_kwargs: Passed on to `dspy.LM` or `local_lm`.

    Raises:
        LocalModelError: the embedded model is meant and cannot be had.
    """
    chosen = name or os.environ.get("DSPY_LM") or _EMBEDDED_PREFIX
    provider, _, model = chosen.partition("/")
    if provider != _EMBEDDED_PREFIX:
        return dspy.LM(chosen, **lm_kwargs)
    if (model or "default") not in PACKAGED_MODELS:
        raise ValueError(f"an embedded model is named local/{' or local/'.join(PACKAGED_MODELS)}, got {chosen!r}")
    return local_lm(model or "default", **lm_kwargs)


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
