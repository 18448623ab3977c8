"""Combee over ACE on a real model: how many of the demo's sixteen routing rules end in the playbook, and what they do.

Sixteen messages, one for each rule; the feedback of a wrong answer states the rule inside general advice. The embedded
1.5B model answers, reflects and curates; `--lm` names another one. Kept: an entry has the rule's code and both parts of
its condition.

    python benchmarks/combee_ace_real.py --batch 8
"""

from __future__ import annotations

import argparse
import time

import dspy

from dspy_combee import ACE, Combee, Playbook, resolve_lm
from dspy_combee.demo import ROUTING_RULES, keeps_rule, load_messages, routing_metric, routing_program
from dspy_combee.demo.tour import held_out_score


def main() -> None:
    """Run it and print the playbook and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", help="any name that dspy.LM takes; the embedded model by default")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--train", type=int, default=16)
    parser.add_argument("--held-out", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--aggregation", default="scan")
    arguments = parser.parse_args()
    train, _, test = load_messages()
    train, test = train[: arguments.train], test[: arguments.held_out]
    lm, program = resolve_lm(arguments.lm).copy(cache=False), routing_program()
    optimizer = Combee(
        ACE(routing_metric, reflection_lm=lm, shuffle=False),
        batch_size=arguments.batch,
        aggregation=arguments.aggregation,
        num_threads=arguments.threads,
        progress=False,
    )
    with dspy.context(lm=lm):
        before = held_out_score(program, test, arguments.threads, "before")
        began = time.monotonic()
        taught = optimizer.compile(program, trainset=train)
        seconds = time.monotonic() - began
        after = held_out_score(taught, test, arguments.threads, "after")
    result = optimizer.last_result
    assert result is not None
    book, spend = Playbook.from_program(taught), result.spend
    kept = sum(any(keeps_rule(entry.text, rule) for entry in book.entries) for rule in ROUTING_RULES)
    print(book.render(), "\n")
    print("| batch | aggregation | entries | rules kept | held out before | after | calls | tokens in, out | seconds |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(
        f"| {arguments.batch} | {arguments.aggregation} | {len(book)} | {kept} of {len(ROUTING_RULES)} "
        f"| {before.right} of {before.total} | {after.right} of {after.total} "
        f"| {spend.lm_calls} | {spend.input_tokens:,}, {spend.output_tokens:,} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
