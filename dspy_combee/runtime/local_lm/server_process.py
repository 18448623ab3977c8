"""The child process that serves a model file: started by path, knows nothing of the package around it.

It takes its options as one JSON argument, says one JSON line on its standard output when the model is loaded (or why
it is not), writes the server's own log to standard error, and ends with its parent, however the parent ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

_PARENT_POLL_SECONDS = 1.0


def main() -> None:
    """Serve the model until standard input closes or the parent is gone."""
    options = json.loads(sys.argv[1])
    # The native code prints to the standard streams as it likes: its output goes to the log, the report line does not.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _end_with_parent()
    try:
        server = _serve(options)
    except ImportError as error:
        _say(report, {"missing": str(error)})
        sys.exit(3)
    except (RuntimeError, OSError, ValueError) as error:
        _say(report, {"failure": f"{type(error).__name__}: {error}"})
        sys.exit(4)
    _say(report, {"address": server.listening_address})
    threading.Event().wait()


def _serve(options: dict[str, Any]) -> Any:
    # Found by name: it is an extra, compiled, and says nothing to a type checker.
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options["model_file"]
    params.model_alias = {options["model_name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.n_parallel = options["parallel"]
    params.n_ctx = options["context_tokens"] * options["parallel"]
    params.cpuparams.n_threads = options["num_threads"]
    params.cpuparams_batch.n_threads = options["num_threads"]
    params.cont_batching = True
    params.use_jinja = True
    params.ui = False
    params.cache_ram_mib = options["prompt_cache_mib"]
    return xllamacpp.Server(params)


def _say(report: Any, message: dict[str, str]) -> None:
    report.write(json.dumps(message) + "\n")
    report.flush()


def _end_with_parent() -> None:
    parent = os.getppid()

    def wait_for_end_of_input() -> None:
        os.read(0, 1)
        os._exit(0)

    def watch_parent() -> None:
        # A process that the parent forked holds the other end of the pipe open, so the pipe alone is not enough.
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        os._exit(0)

    for watch in (wait_for_end_of_input, watch_parent):
        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    # Run by path: the folder of this file must not shadow anyone's modules.
    sys.path.pop(0)
    main()
