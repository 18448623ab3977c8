"""`python -m dspy_evocue`: the demo, with a scripted agent, or with a real one (`--live`)."""

from __future__ import annotations

import argparse
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from dspy_combee.errors import CombeeError
    from dspy_evocue.demo.problem import claims_problem, office_problem
    from dspy_evocue.demo.tour import TourOptions, run_tour

    try:
        if options.live or options.lm:
            task_lm, reflection_lm = _real_models(options)
            problem = claims_problem()
            size = TourOptions(
                train=20,
                test=8,
                trial_tasks=4,
                confirmation_tasks=5,
                num_threads=options.threads or 1,
                log_dir=options.log_dir,
                progress=True,
            )
        else:
            from dspy_evocue.demo.scripted import adviser_lm, clerk_lm

            print("This tour is SCRIPTED: no language model runs. The stand-in for the agent forgets what it read some")
            print("steps ago; the stand-in for the reflection model knows only what stands in its prompts.\n")
            task_lm, reflection_lm, problem = clerk_lm(), adviser_lm(), office_problem()
            size = TourOptions(
                train=40,
                test=16,
                trial_tasks=8,
                confirmation_tasks=8,
                num_threads=options.threads or 4,
                log_dir=options.log_dir,
            )
        result = run_tour(problem, task_lm, reflection_lm, size, print)
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


def _real_models(options: argparse.Namespace):  # noqa: ANN202 - two dspy.LM, which is not imported here
    from dspy_combee.runtime.local_lm import resolve_lm

    task_lm = resolve_lm(options.lm)
    reflection_lm = resolve_lm(options.reflection_lm or options.lm)
    print(f"Task model: {task_lm.model}, reflection model: {reflection_lm.model}\n")
    return task_lm, reflection_lm


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dspy_evocue", description=__doc__)
    parser.add_argument("--live", action="store_true", help="a real model carries the agent: the embedded one, or --lm")
    parser.add_argument("--lm", help="the task model: any name that dspy.LM takes, local/default or local/small")
    parser.add_argument("--reflection-lm", help="the reflection model; the task model by default")
    parser.add_argument("--threads", type=int, help="runs at once (default: 4, and 1 with --live)")
    parser.add_argument("--log-dir", help="keep the run's state here, so that it can be resumed")
    parser.add_argument("--report", metavar="FILE.html", help="write the report of the run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
