"""`python -m dspy_combee`: the demo, on the embedded model, on any other one, or scripted."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from dspy_combee.demo.tour import run_tour
    from dspy_combee.errors import CombeeError

    for name in ("dspy.teleprompt.gepa.gepa", "dspy.evaluate.evaluate"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        task_lm, reflection_lm, size = _scripted(options) if options.fast else _real(options)
        result = run_tour(task_lm, reflection_lm, size, print)
    except CombeeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    if options.report:
        result.report(options.report)
        print(f"\nThe report is in {options.report}")
    return 0


def _scripted(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    from dspy_combee.demo.scripted import CAPACITY, scripted_models
    from dspy_combee.demo.tour import TourOptions

    print("This tour is SCRIPTED: no language model runs. The stand-in for the reflection model keeps")
    print(f"{CAPACITY} rules a call, the stand-in for the task model follows the rules that it is given.\n")
    size = TourOptions(train=80, val=32, test=48, metric_calls=400, num_threads=8, log_dir=options.log_dir)
    return *scripted_models(), size


def _real(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    from dspy_combee.demo.tour import TourOptions
    from dspy_combee.runtime.local_lm import resolve_lm

    try:
        task_lm = resolve_lm(options.lm)
        reflection_lm = resolve_lm(options.reflection_lm or options.lm)
    except ValueError as error:
        _parser().error(str(error))
    print(f"Task model: {task_lm.model}, reflection model: {reflection_lm.model}\n")
    size = TourOptions(
        train=24,
        val=8,
        test=20,
        metric_calls=110,
        num_threads=options.threads,
        gepa_rounds=2,
        score_gepa=False,
        candidates=(4, 8, 12),
        duplication=1,
        log_dir=options.log_dir,
    )
    return task_lm, reflection_lm, size


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dspy_combee", description=__doc__)
    parser.add_argument("--lm", help="the task model: any name that dspy.LM takes, local/default or local/small")
    parser.add_argument("--reflection-lm", help="the reflection model; the task model by default")
    parser.add_argument("--fast", action="store_true", help="a tour of seconds with scripted models")
    parser.add_argument("--threads", type=int, default=2, help="calls at once (default: 2)")
    parser.add_argument("--log-dir", help="keep the run's state here, so that it can be resumed")
    parser.add_argument("--report", metavar="FILE.html", help="write the report of the run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
