"""`python -m dspy_evocue`: the demo, with a scripted agent, or with a real one (`--live`)."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from typing import Any


def main(arguments: list[str] | None = None, *, resolve: Callable[[str | None], Any] | None = None) -> int:
    """Run the demo; return the exit code.

    Args:
        arguments: Of the command line; None for the process's own.
        resolve: How a model's name, or None, becomes a `dspy.LM`; None for `dspy_combee.runtime.local_lm.resolve_lm`.
    """
    options = _parser().parse_args(arguments)
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from dspy_combee.errors import CombeeError, ResumeMismatchError
    from dspy_evocue.demo.tour import run_tour

    try:
        is_live = options.live or options.lm or options.reflection_lm
        problem, task_lm, reflection_lm, size = _live(options, resolve) if is_live else _scripted(options)
        # A run of minutes is followed through a file or a pipe, too.
        result = run_tour(problem, task_lm, reflection_lm, size, functools.partial(print, flush=True))
    except CombeeError as error:
        kept = "" if isinstance(error, ResumeMismatchError) else _what_is_kept(options)
        print(f"{type(error).__name__}: {str(error).rstrip('.')}.{kept}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nInterrupted.{_what_is_kept(options)}", file=sys.stderr)
        return 130
    if options.report:
        result.report(options.report)
        print(f"\nThe report is in {options.report}")
    return 0


def _scripted(options: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    from dspy_evocue.demo.problem import office_problem
    from dspy_evocue.demo.scripted import adviser_lm, clerk_lm
    from dspy_evocue.demo.tour import TourOptions

    print("This tour is SCRIPTED: no language model runs. The stand-in for the agent forgets what it read some")
    print("steps ago; the stand-in for the reflection model knows only what stands in its prompts.\n")
    size = TourOptions(
        train=40,
        test=16,
        trial_tasks=8,
        confirmation_tasks=8,
        num_threads=options.threads or 4,
        log_dir=options.log_dir,
    )
    return office_problem(), clerk_lm(), adviser_lm(), size


def _live(options: argparse.Namespace, resolve: Callable[[str | None], Any] | None) -> tuple[Any, Any, Any, Any]:
    from dspy_combee.runtime.local_lm import resolve_lm
    from dspy_evocue.demo.problem import claims_problem
    from dspy_evocue.demo.tour import TourOptions

    find = resolve or resolve_lm
    try:
        task_lm = find(options.lm)
        reflection_lm = find(options.reflection_lm or options.lm)
    except ValueError as error:
        _parser().error(str(error))
    print(f"Task model: {task_lm.model}, reflection model: {reflection_lm.model}\n", flush=True)
    # With 24 tasks ten are held back for confirmation, one for each pair that "anytime" may ask for.
    size = TourOptions(
        train=24,
        test=8,
        trial_tasks=4,
        confirmation_tasks=5,
        num_threads=options.threads or 1,
        log_dir=options.log_dir,
        progress=True,
    )
    return claims_problem(), task_lm, reflection_lm, size


def _what_is_kept(options: argparse.Namespace) -> str:
    if options.log_dir is None:
        return " Nothing is kept; a run started with --log-dir can be resumed."
    return f" What was paid for is kept: the same command with --log-dir {options.log_dir} goes on from here."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dspy_evocue", description=__doc__)
    parser.add_argument("--live", action="store_true", help="a real model carries the agent: the embedded one, or --lm")
    parser.add_argument("--lm", help="the task model: any name that dspy.LM takes, local/default or local/small")
    parser.add_argument("--reflection-lm", help="the reflection model; the task model by default")
    parser.add_argument("--threads", type=int, help="runs at once (default: 4, and 1 with a real model)")
    parser.add_argument("--log-dir", help="keep the run's state here, so that it can be resumed")
    parser.add_argument("--report", metavar="FILE.html", help="write the report of the run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
