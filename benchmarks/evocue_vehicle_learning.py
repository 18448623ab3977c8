"""The whole learner on the vehicle-control episodes: it must put the lesson on the recurring entry, and keep it.

    python benchmarks/evocue_vehicle_learning.py

The agent is the scripted one of `evocue_vehicle.py`, the score is the official checker's. The proposer is scripted too:
it proposes the lesson on both entries, and only once an episode shows that the engine did not start. Needs what
`evocue_vehicle.py` needs.
"""

from __future__ import annotations

import argparse

import dspy
from evocue_vehicle import EPISODES, LESSON, World, driver_lm, episode, make_agent, make_metric

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, EvoCUE, Proposals, compare, deepcopy_environment
from dspy_evocue.proposal_checks import ProposedEdit
from dspy_evocue.testing import chat_reply

HELD_OUT = 14


class BrakeProposer:
    """Proposes the lesson on the first and on the recurring entry, if the public episodes give reason to."""

    def propose(self, request) -> Proposals:
        """Look for the engine's refusal in what the agent saw."""
        cited = tuple(
            one.task_id for one in request.episodes if "brake pedal needs to be pressed" in _seen(one).lower()
        )
        if not cited:
            return Proposals((), failure="no episode shows what is wrong")
        edits = [
            ProposedEdit(
                LESSON, (CallSite(source, "react"),), expected_effect="the engine starts", cited_tasks=cited[:6]
            )
            for source in ("START", "recurring")
        ]
        return Proposals(tuple(edit for edit in edits if edit.key not in request.tried))


def _seen(one) -> str:
    return "\n".join(step.text for step in one.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=4)
    threads = parser.parse_args().threads
    examples = [episode(number) for number in EPISODES]
    learning, held_out = examples[:-HELD_OUT], examples[-HELD_OUT:]
    world = World()
    agent = make_agent(world)
    environment = deepcopy_environment(world, reset=World.load)
    metric = make_metric(world)
    judge = scripted_lm(lambda prompt, number: chat_reply(requirements="[]"))
    optimizer = EvoCUE(
        metric,
        reflection_lm=judge,
        proposer=BrakeProposer(),
        max_cards=0,
        environment=environment,
        num_threads=threads,
        progress=False,
    )
    with dspy.context(lm=driver_lm(), disable_history=True):
        program = optimizer.compile(agent, trainset=learning)
        result = optimizer.last_result
        print(result.explain())
        comparison = compare(
            agent,
            program,
            held_out,
            metric,
            environment=environment,
            learned=result.identity.data_roles,
            num_threads=threads,
            progress=False,
        )
    print(f"\n{HELD_OUT} episodes that were never tried: {comparison}")


if __name__ == "__main__":
    main()
