"""DSPy's own public behaviour is untouched: a broad set of programs runs plain, observed, and with an edit that is off.

Compared are the requests that reach the engine, the outputs, the history, the usage and the trace, or the error.
"""

import asyncio
import contextlib
import io
import warnings

import dspy
import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, FinalOutput
from dspy.utils.callback import BaseCallback

from dspy_combee.metrics import MetricCall
from dspy_combee.testing import ScriptedEngine, scripted_lm
from dspy_evocue import CallSite, InstructionEdit, Rule, attach
from dspy_evocue.episodes import plan_runs, record_run
from dspy_evocue.fingerprints import canonical
from dspy_evocue.testing import chat_reply, scripted_agent_lm


class PythonInterpreter:
    """A code interpreter for tests: runs trusted code of this file in this process."""

    def __init__(self):
        self.tools = {}
        self.output_fields = None
        self._names = {}

    def start(self):
        pass

    def execute(self, code, variables=None):
        printed = io.StringIO()
        scope = {**self._names, **self.tools, **(variables or {}), "SUBMIT": self._submit}
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, scope)
        except _Submitted as submitted:
            return FinalOutput(submitted.output)
        except Exception as error:
            raise CodeExecutionError(str(error)) from error
        self._names = {name: value for name, value in scope.items() if name not in self.tools}
        return printed.getvalue()

    def shutdown(self):
        pass

    def _submit(self, *args, **kwargs):
        raise _Submitted(args[0] if args else kwargs)


class _Submitted(Exception):
    def __init__(self, output):
        self.output = output


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def look(place: str) -> str:
    """Look at a place."""
    if place == "nowhere":
        raise LookupError("there is no such place")
    return f"nothing in {place}"


FIELDS = ("reasoning", "plan", "answer", "draft", "generated_code", "code", "finished")


def fill(**values):
    """Return a script that answers every field that a prompt asks for."""

    def reply(prompt, call_number):
        asked = [name for name in FIELDS if f"[[ ## {name} ## ]]" in prompt.rpartition("Respond with")[2]]
        return chat_reply(**{name: values.get(name, f"{name} of call {call_number}") for name in asked})

    return lambda: scripted_lm(ScriptedEngine(reply), temperature=1.0)


def agent_lm(steps):
    def policy(turn):
        return steps[turn.step] if turn.step < len(steps) else ("finish", {})

    return lambda: scripted_agent_lm(policy)


class Two(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.ChainOfThought("question, plan -> answer")

    def forward(self, question):
        return self.solve(question=question, plan=self.plan(question=question).plan)

    async def aforward(self, question):
        plan = await self.plan.acall(question=question)
        return await self.solve.acall(question=question, plan=plan.plan)


class AsyncOnly(dspy.Module):
    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    async def aforward(self, question):
        return await self.ask.acall(question=question)


class Fan(dspy.Module):
    def __init__(self):
        super().__init__()
        self.part = dspy.Predict("question -> draft")

    def forward(self, question):
        pairs = [(self.part, {"question": f"{question}{index}"}) for index in range(3)]
        parts = dspy.Parallel(num_threads=1, disable_progress_bar=True)(pairs)
        return dspy.Prediction(answer=" ".join(part.draft for part in parts))


class MadeInside(dspy.Module):
    def forward(self, question):
        return dspy.Predict("question -> answer")(question=question)


def with_demos():
    program = dspy.ChainOfThought("question -> answer: str")
    program.predict.demos = [dspy.Example(question="two", reasoning="r", answer="2")]
    return program


def deprecated(make):
    def made():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return make()

    return made


def code_lm():
    def reply(prompt, call_number):
        tail = prompt.rpartition("Respond with")[2]
        values = {
            "reasoning": "r",
            "generated_code": "```python\nprint(double(number=4))\n```",
            "code": "SUBMIT({'answer': str(double(number=4))})",
            "finished": "True",
            "answer": "8",
        }
        return chat_reply(**{name: value for name, value in values.items() if f"[[ ## {name} ## ]]" in tail})

    return scripted_lm(ScriptedEngine(reply))


PROGRAMS = {
    "predict": (lambda: dspy.Predict("question -> answer"), fill()),
    "typed": (lambda: dspy.Predict("question -> answer: int"), fill(answer="7")),
    "chain of thought with demos": (with_demos, fill()),
    "two predictors": (Two, fill()),
    "react": (
        lambda: dspy.ReAct("question -> answer", tools=[look]),
        agent_lm([("look", {"place": "here"}), ("look", {"place": "nowhere"}), ("look", {"place": "here"})]),
    ),
    "react with a wrong tool": (
        lambda: dspy.ReAct("question -> answer", tools=[look]),
        agent_lm([("search", {"place": "here"})]),
    ),
    "best of n": (
        lambda: dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=lambda a, p: 0.0, threshold=1.0),
        fill(),
    ),
    "parallel": (Fan, fill()),
    "made inside forward": (MadeInside, fill()),
    "code act": (
        deprecated(lambda: dspy.CodeAct("question -> answer", tools=[double], interpreter_factory=PythonInterpreter)),
        code_lm,
    ),
    "program of thought": (
        deprecated(lambda: dspy.ProgramOfThought("question -> answer", interpreter_factory=PythonInterpreter)),
        fill(generated_code="```python\nprint(8)\n```", answer="8"),
    ),
    "recursive language model": (
        lambda: dspy.RLM("question -> answer", tools=[double], interpreter_factory=PythonInterpreter),
        code_lm,
    ),
    "unparsable": (lambda: dspy.Predict("question -> answer"), lambda: scripted_lm(lambda p, n: "no fields here")),
    "failing model": (
        lambda: dspy.Predict("question -> answer"),
        lambda: scripted_lm(lambda p, n: ConnectionError("the model is away")),
    ),
}

OFF = InstructionEdit(at=CallSite("*", "*"), text="NEVER READ", when=Rule.of(visit="never"))


def public_behaviour(program, lm, call):
    """Run a program and return everything public that it did."""
    # Any callback changes one line of the traceback that dspy.ReAct shows to the model, so both sides have one.
    with dspy.context(lm=lm, track_usage=True, trace=[], callbacks=[BaseCallback()]):
        try:
            prediction, error = call(program), None
        except Exception as raised:  # noqa: BLE001  compared below
            prediction, error = None, raised
        trace = [
            (type(predictor).__name__, predictor.signature.instructions, canonical(inputs), canonical(outputs))
            for predictor, inputs, outputs in dspy.settings.trace
        ]
    return {
        "requests": lm.engine.prompts,
        "output": canonical(prediction),
        "usage": None if prediction is None else prediction.get_lm_usage(),
        "error": None if error is None else (type(error), str(error)),
        "history": [(entry["messages"], entry["outputs"], entry["usage"], entry["kwargs"]) for entry in lm.history],
        "program history": len(program.history),
        "trace": trace,
    }


def sync(program):
    return program(question="q")


def asynchronous(program):
    return asyncio.run(program.acall(question="q"))


def recorded(program):
    from dspy_evocue.checkpoints import Recorder
    from dspy_evocue.features import FeatureSet
    from dspy_evocue.instrument import observed
    from dspy_evocue.observer import following
    from dspy_evocue.running import Execution

    with observed(program) as token, following(Execution(token, (), FeatureSet(), journal=Recorder())):
        return program(question="q")


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_edit_that_is_off_changes_nothing(name):
    make, make_lm = PROGRAMS[name]
    plain = public_behaviour(make(), make_lm(), sync)
    assert public_behaviour(attach(make(), OFF), make_lm(), sync) == plain


@pytest.mark.parametrize("name", PROGRAMS)
def test_recording_a_run_changes_nothing(name):
    make, make_lm = PROGRAMS[name]
    program = make()
    plain = public_behaviour(make(), make_lm(), sync)
    assert public_behaviour(program, make_lm(), recorded) == plain
    assert all(type(predictor) is dspy.Predict for predictor in program.predictors())


@pytest.mark.parametrize("name", ["predict", "two predictors", "react"])
def test_an_edit_that_is_off_changes_nothing_on_the_asynchronous_path(name):
    make, make_lm = PROGRAMS[name]
    plain = public_behaviour(make(), make_lm(), asynchronous)
    assert public_behaviour(attach(make(), OFF), make_lm(), asynchronous) == plain


def test_a_program_with_aforward_only_can_be_recorded():
    example = dspy.Example(question="q").with_inputs("question")
    with dspy.context(lm=fill()()):
        recording = record_run(plan_runs(AsyncOnly(), MetricCall(lambda gold, pred: 1.0)), example)
    assert recording.episode.score == 1.0
    assert [(event.source, event.node, event.branch) for event in recording.tape.events] == [("START", "ask", "0.1")]


def test_react_v2_with_native_function_calling_changes_nothing():
    from dspy.lm15 import Message, Response, ToolCallPart, Usage

    def make_lm():
        def reply(prompt, call_number):
            name, arguments = ("look", {"place": "here"}) if call_number == 1 else ("submit", {"answer": "a"})
            part = ToolCallPart(id=f"c{call_number}", name=name, input=arguments)
            return Response(
                id=None,
                model="fake",
                message=Message.assistant([part]),
                finish_reason="tool_call",
                usage=Usage(input_tokens=1, output_tokens=1),
            )

        return scripted_lm(ScriptedEngine(reply))

    def make():
        return dspy.ReActV2("question -> answer", tools=[look])

    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        plain = public_behaviour(make(), make_lm(), sync)
        assert plain["error"] is None
        assert public_behaviour(attach(make(), OFF), make_lm(), sync) == plain
        assert public_behaviour(make(), make_lm(), recorded) == plain
        lesson = InstructionEdit(at=CallSite("tool:look", "react"), text="LESSON")
        lm = make_lm()
        with dspy.context(lm=lm):
            attach(make(), lesson)(question="q")
    assert ["LESSON" in prompt for prompt in lm.engine.prompts] == [False, True]
