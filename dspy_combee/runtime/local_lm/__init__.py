"""The embedded model: a small language model on this machine, as a ready `dspy.LM`.

`local_lm()` fetches the weights once, starts a server on first use, and hands out the LM; `resolve_lm` lets the user's
own choice win. `errors` says what can go wrong, `weights` and `models` know where the file comes from, `server` and
`server_process` run it, `engine` is how DSPy reaches it.
"""

from dspy_combee.errors import LocalModelError
from dspy_combee.runtime.local_lm.errors import LocalServerEndedError, LocalServerError, LocalWeightsError
from dspy_combee.runtime.local_lm.lm import local_lm, resolve_lm
from dspy_combee.runtime.local_lm.server import stop_local_servers

__all__ = [
    "LocalModelError",
    "LocalServerEndedError",
    "LocalServerError",
    "LocalWeightsError",
    "local_lm",
    "resolve_lm",
    "stop_local_servers",
]
