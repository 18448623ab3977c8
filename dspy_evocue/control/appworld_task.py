"""AppWorld as a world, against the public interface of the `appworld` package (0.1.3).

The package and its data are the user's to install (`pip install appworld`, `appworld install`,
`appworld download data`); nothing of it is imported until a task is opened. AppWorld keeps one open world per process
in its own globals, so tasks run one after the other in a process; use processes, not threads, for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspy_evocue.control.errors import WorldError
from dspy_evocue.control.worlds import World

_HOW_TO_ACT = """I am {name} ({email}, {phone}), and you act for me in my apps by writing Python code.
Look up an API before you use it: print(apis.api_docs.show_app_descriptions()),
print(apis.api_docs.show_api_descriptions(app_name='...')), print(apis.api_docs.show_api_doc(app_name='...',
api_name='...')). My account passwords: apis.supervisor.show_account_passwords(). Call an API as
apis.<app>.<api>(<name>=<value>). Results come in pages: ask for all of them. When the task is done, call
apis.supervisor.complete_task(), with answer=<value> if the task asks a question."""


class AppWorldTask:
    """One AppWorld task as a `worlds.World`.

    Args:
        world: An open `appworld.AppWorld`.
        how_to_act: What the agent is told besides the task; {name}, {email} and {phone} are filled in.
    """

    def __init__(self, world: Any, *, how_to_act: str = _HOW_TO_ACT) -> None:
        self._world = world
        self._how_to_act = how_to_act
        self._is_closed = False
        self._saved = 0

    @property
    def instruction(self) -> str:
        """The task's instruction, after who asks and how to act."""
        person = self._world.task.supervisor
        filled = self._how_to_act
        for name, value in (
            ("{name}", f"{person.first_name} {person.last_name}"),
            ("{email}", str(person.email)),
            ("{phone}", str(person.phone_number)),
        ):
            filled = filled.replace(name, value)
        return f"{filled}\n\nTask: {self._world.task.instruction}"

    def execute(self, code: str) -> str:
        """Run a piece of code; AppWorld itself turns what goes wrong into "Execution failed. ..."."""
        return str(self._world.execute(code)).rstrip()

    def is_complete(self) -> bool:
        """Say whether `complete_task` was called."""
        return bool(self._world.task_completed())

    def evaluate(self) -> float | None:
        """Return 1.0 when every one of AppWorld's own tests passes, else 0.0; no test's name or result leaves this."""
        return float(bool(self._world.evaluate().success))

    def save_state(self) -> str:
        """Save AppWorld's databases; the variables of the code are not part of its checkpoints."""
        # AppWorld's own default id is the number of interactions, which comes again after going back.
        self._saved += 1
        return str(self._world.save_state(f"checkpoint-{self._saved}"))

    def load_state(self, token: Any) -> None:
        """Go back to saved databases.

        AppWorld's checkpoints hold the databases and not the interpreter's variables. Where later code needs variables
        of earlier code, restore by re-executing the recorded code in a fresh world instead.
        """
        if not isinstance(token, str):
            raise WorldError(f"a token must come from save_state of an AppWorld task, got {type(token).__name__}")
        self._world.load_state(token)

    def close(self) -> None:
        """Close AppWorld's databases and clock, once."""
        if not self._is_closed:
            self._is_closed = True
            self._world.close()


def open_appworld(experiment_name: str, **options: Any) -> Callable[..., World]:
    """Return what opens an AppWorld task by its id: `ControlProgram.code_agent(open_appworld("my_run"))`.

    Args:
        experiment_name: Under which AppWorld keeps its outputs; give each arm of a comparison its own.
        options: What else `appworld.AppWorld` takes.
    """

    def open_task(task_id: str) -> World:
        try:
            from appworld import AppWorld  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "AppWorld tasks need the package appworld and its data: pip install appworld, then "
                "`appworld install` and `appworld download data`"
            ) from error
        return AppWorldTask(AppWorld(task_id=task_id, experiment_name=experiment_name, **options))

    return open_task
