"""A small stateful world for trials: a resident who must lock the door before leaving, and a lesson that says so."""

import dspy

from dspy_evocue import (
    CallSite,
    InstructionEdit,
    current_world,
)
from dspy_evocue.testing import scripted_agent_lm

LESSON = "Lock the door before you leave."
EXAMPLE = dspy.Example(question="leave the house").with_inputs("question")
RECURRING = InstructionEdit(at=CallSite("recurring", "react"), text=LESSON)
FIRST = InstructionEdit(at=CallSite("START", "react"), text=LESSON)


class House:
    """A small stateful world: the door must be locked before leaving."""

    def __init__(self):
        self.log = []
        self.is_locked = False
        self.has_left = False

    def walk(self, room: str) -> str:
        """Walk to a room."""
        self.log.append(room)
        return f"in {room} after {len(self.log)} steps"

    def lock(self) -> str:
        """Lock the door."""
        self.is_locked = True
        return "locked"

    def leave(self) -> str:
        """Leave the house."""
        self.has_left = True
        return "left, locked" if self.is_locked else "left, open"


def resident_lm(**kwargs):
    """Return an agent that walks three rooms, locks the door where it reads the lesson just then, and leaves."""

    def policy(turn):
        if turn.step < 3:
            return "walk", {"room": f"room {turn.step}"}
        if turn.step == 3 and LESSON in turn.prompt:
            return "lock", {}
        if not any("left" in observation for observation in turn.observations):
            return "leave", {}
        return "finish", {}

    return scripted_agent_lm(policy, **kwargs)


def resident(house):
    return dspy.ReAct("question -> answer", tools=[house.walk, house.lock, house.leave])


def locked(house):
    def metric(example, prediction, trace=None):
        world = current_world(house)
        return float(world.is_locked and world.has_left)

    return metric


class PlainEnvironment:
    """What a user writes: one world, put back by hand."""

    def __init__(self, house):
        self.house = house

    def reset(self, example):
        self.restore(([], False, False))

    def snapshot(self):
        return list(self.house.log), self.house.is_locked, self.house.has_left

    def restore(self, token):
        log, self.house.is_locked, self.house.has_left = token
        self.house.log = list(log)
