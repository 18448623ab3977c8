"""Where must a lesson be read? Vehicle-control episodes of a public benchmark, judged by its own checker.

`startEngine` wants every door locked and the brake fully pressed, which its description does not say. A scripted agent
plays the golden calls and presses the brake only where it can read the lesson in the prompt of that very call. So the
table shows what the place of a lesson is worth, apart from any model's skill.

    python benchmarks/evocue_vehicle.py

Needs `pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0` (Apache-2.0). Episodes are named by their number, which
is the same in every category of that package.
"""

import argparse
import ast
import copy
import functools
import importlib
import inspect
import json
import uuid
from pathlib import Path

import dspy

from dspy_evocue import (
    CallSite,
    InstructionEdit,
    TrialRequest,
    attach,
    current_world,
    deepcopy_environment,
    paired_trial,
    record_runs,
    reexecuting_environment,
    run_trials,
)
from dspy_evocue.testing import scripted_agent_lm

EPISODES = (
    52, 53, 54, 55, 56, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 73, 74, 76, 79, 80, 81, 82, 83, 84, 85,
    86, 87, 88, 89, 90, 92, 93, 94, 95, 96, 97, 98, 99,
)  # fmt: skip
LESSON = "Before the engine is started, the brake pedal must be pressed fully (pedalPosition 1.0)."
PLACES = {"nowhere": None, "first entry": "START", "recurring entry": "recurring", "everywhere": "*"}
BRAKE = ("pressBrakePedal", {"pedalPosition": 1.0})
CLASSES = ("VehicleControlAPI", "TwitterAPI", "TicketAPI", "MessageAPI", "MathAPI")


@functools.cache
def _rows(folder):
    import bfcl_eval

    path = Path(bfcl_eval.__file__).parent / "data" / folder / "BFCL_v4_multi_turn_base.json"
    rows = (json.loads(line) for line in path.read_text("utf8").splitlines())
    return {row["id"]: row for row in rows}


@functools.cache
def _api_classes():
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    return {name: getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name) for name in CLASSES}


def episode(number):
    """Return one episode as an example: the user's messages in, the number kept for the world and the checker."""
    row = _rows("")[f"multi_turn_base_{number}"]
    question = "\n".join(message["content"] for turn in row["question"] for message in turn)
    return dspy.Example(question=f"Episode {number}\n{question}", number=number).with_inputs("question")


def golden_calls(number):
    """Return the golden calls without the brake: (turn, name, arguments), in order."""
    truth = _rows("possible_answer")[f"multi_turn_base_{number}"]["ground_truth"]
    calls = [(turn, *_parsed(call)) for turn, texts in enumerate(truth) for call in texts]
    return [call for call in calls if call[1] != BRAKE[0]]


def _parsed(text):
    call = ast.parse(text, mode="eval").body
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    if call.args:
        method = next(getattr(cls, call.func.id) for cls in _api_classes().values() if hasattr(cls, call.func.id))
        names = list(inspect.signature(method).parameters)[1:]
        arguments = {**dict(zip(names, map(ast.literal_eval, call.args), strict=False)), **arguments}
    return call.func.id, arguments


class World:
    """The instances of one episode, and every call made on them. Deep-copyable; its methods are the agent's tools."""

    def __init__(self, example=None):
        self.apis, self.calls, self.golden = {}, [], []
        if example is not None:
            self.load(example)

    def load(self, example):
        """Set the scene of an episode."""
        row = _rows("")[f"multi_turn_base_{example.number}"]
        self.calls, self.golden = [], golden_calls(example.number)
        self.apis = {name: _api_classes()[name]() for name in row["involved_classes"]}
        for name, api in self.apis.items():
            if hasattr(api, "_load_scenario"):
                api._load_scenario(json.loads(json.dumps(row["initial_config"].get(name, {}))))

    def invoke(self, name, arguments):
        """Call one function of the episode's classes, and note in which turn."""
        turn = self.golden[0][0] if self.golden else len(self.calls)
        self.calls.append((turn, f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"))
        api = next(api for api in self.apis.values() if hasattr(api, name))
        try:
            result = getattr(api, name)(**arguments)
        except Exception as error:  # noqa: BLE001  the package's own runner turns every error into text
            result = {"error": str(error)}
        if self.golden and self.golden[0][1] == name and not (isinstance(result, dict) and "error" in result):
            self.golden = self.golden[1:]
        return json.dumps(result, default=str)


def _add_tools():
    for cls in _api_classes().values():
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and not hasattr(World, name):
                setattr(World, name, _tool(name, method))


def _tool(name, method):
    def call(self, **arguments):
        return self.invoke(name, arguments)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (method.__doc__ or name).strip().split("\n")[0]
    return call


def make_agent(world):
    """Return the agent with every function of every class as a tool that acts on the world."""
    _add_tools()
    names = [name for name in vars(World) if not name.startswith("_") and name not in ("load", "invoke")]
    return dspy.ReAct("question -> answer", tools=[getattr(world, name) for name in names], max_iters=30)


def driver_lm(**kwargs):
    """Return the scripted agent: golden calls in order, the brake only where the lesson can be read."""

    def policy(turn):
        number = int(turn.prompt.rpartition("Episode ")[2].split("\n")[0])
        calls = golden_calls(number)
        done, pressed = 0, False
        for observation in turn.observations:
            if done < len(calls) and '"error"' not in observation and not observation.startswith('{"brakePedalStatus"'):
                done += 1
            pressed = pressed or observation.startswith('{"brakePedalStatus"')
            if '"error"' in observation and calls[done][1] == "startEngine" and pressed:
                return "finish", {}
        if done == len(calls):
            return "finish", {}
        _, name, arguments = calls[done]
        if name == "startEngine" and not pressed and LESSON in turn.prompt:
            return BRAKE
        failed = turn.observations and '"error"' in turn.observations[-1]
        if failed and (LESSON not in turn.prompt or name != "startEngine"):
            return "finish", {}
        return name, arguments

    return scripted_agent_lm(policy, **kwargs)


def is_valid(world, number):
    """Ask the package's own checker about the calls that were made."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

    row = _rows("")[f"multi_turn_base_{number}"]
    truth = _rows("possible_answer")[row["id"]]["ground_truth"]
    turns = [[[text] for turn, text in world.calls if turn == index] for index in range(len(truth))]
    name = f"arm{uuid.uuid4().hex}"  # instances live in the checker's globals, by this name
    try:
        return multi_turn_checker.multi_turn_checker(turns, truth, row, "multi_turn_base", name)["valid"]
    finally:
        for key in [key for key in vars(multi_turn_utils) if key.startswith(name)]:
            delattr(multi_turn_utils, key)


def make_metric(world):
    """Return the metric: 1 when the official checker accepts what was done to the world of this run."""
    return lambda gold, pred: float(is_valid(current_world(world), gold.number))


class OneWorld:
    """The third way to restore: one world, put back from snapshots."""

    def __init__(self, world):
        self.world = world

    def reset(self, example):
        """Set the scene."""
        self.world.load(example)

    def snapshot(self):
        """Copy what the world holds."""
        return copy.deepcopy(vars(self.world))

    def restore(self, token):
        """Put it back."""
        vars(self.world).update(copy.deepcopy(token))


def ways_to_restore(world):
    """Return the ways to restore by name; None is recorded observations."""
    return {
        "recorded observations": None,
        "re-execution": reexecuting_environment(World),
        "snapshot and restore": deepcopy_environment(world, reset=World.load),
        "snapshots of one world": OneWorld(world),
    }


def lesson_at(source):
    """Return the lesson as an edit on this entry of the loop."""
    return InstructionEdit(at=CallSite(source, "react"), text=LESSON)


def full_runs(examples, *, num_threads=4):
    """Return the number of solved episodes for every place of the lesson."""
    solved = {}
    for place, source in PLACES.items():
        world = World()
        agent = make_agent(world)
        program = agent if source is None else attach(agent, lesson_at(source))
        environment = deepcopy_environment(world, reset=World.load)
        runs = record_runs(program, examples, make_metric(world), environment=environment, num_threads=num_threads)
        solved[place] = sum(run.episode.score or 0.0 for run in runs)
    return solved


def trials(examples, source, way, *, num_threads=4):
    """Return the paired trials of the lesson on one entry, restored in one way."""
    world = World()
    agent = make_agent(world)
    environment = ways_to_restore(world)[way]
    metric = make_metric(world)
    if environment is None:
        return tuple(_in_one_world(agent, world, example, source, metric) for example in examples)
    requests = [TrialRequest(lesson_at(source), example, task_id=str(example.number)) for example in examples]
    return run_trials(agent, requests, metric, environment=environment, num_threads=num_threads, progress=False)


def _in_one_world(agent, world, example, source, metric):
    """Run a trial whose three runs all act on the same world: only its control check can notice."""
    world.load(example)
    return paired_trial(agent, lesson_at(source), example, metric, task_id=str(example.number))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=len(EPISODES), help="how many episodes to run")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    examples = [episode(number) for number in EPISODES[: arguments.episodes]]
    with dspy.context(lm=driver_lm(), disable_history=True):
        print(f"| lesson at | solved of {len(examples)} |\n| --- | --- |")
        for place, count in full_runs(examples, num_threads=arguments.threads).items():
            print(f"| {place} | {count:.0f} |")
        print(
            "\n| restored by | lesson at | better | equal | worse | unresolved | calls of both arms | two full runs |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for way in ways_to_restore(World()):
            for source in ("START", "recurring"):
                records = trials(examples, source, way, num_threads=arguments.threads)
                gains = [record.gain for record in records if record.gain is not None]
                calls = sum(record.parent.lm_calls + record.edited.lm_calls for record in records)
                full = sum(
                    record.parent.lm_calls + record.edited.lm_calls + 2 * record.prefix.lm_calls for record in records
                )
                print(
                    f"| {way} | {source} | {sum(gain > 0 for gain in gains)} | {sum(gain == 0 for gain in gains)} | "
                    f"{sum(gain < 0 for gain in gains)} | {len(records) - len(gains)} | {calls} | {full} |"
                )


if __name__ == "__main__":
    main()
