"""ACE, a third learner as a user would write it, and every aggregation keep their contracts."""

import re

import dspy
import pytest

from dspy_combee.ace import ACE
from dspy_combee.aggregation import make_aggregation
from dspy_combee.aggregation.salvage import Salvage
from dspy_combee.aggregation.scan import Scan
from dspy_combee.combee import Combee
from dspy_combee.contracts import AggregationContract, PromptLearnerContract
from dspy_combee.learners.base import Entry, Reflection, TextUpdate, Trajectory
from dspy_combee.playbook import Playbook, playbook_of
from dspy_combee.report.result import Round
from dspy_combee.testing import asks_for_lessons, lessons_reply, scripted_lm, shown_reflections


class Cheatsheet:
    """A third learner: after each run, whatever worked or failed goes on a sheet that stands in the prompt."""

    def __init__(self, metric, lm):
        self.metric, self.lm = metric, lm

    def generate(self, program, example, record_id):
        try:
            prediction = program(**example.inputs())
        except Exception as error:  # noqa: BLE001
            return Trajectory(record_id, example, error=str(error), feedback=str(error))
        return Trajectory(record_id, example, prediction, self.metric(example, prediction), f"right: {example.answer}")

    def reflect(self, program, trajectory):
        text = f"{trajectory.example.question} {trajectory.feedback}"
        return [Reflection(text, (trajectory.record_id,), "self", trajectory.score)]

    def curate(self, program, reflections):
        ids = tuple(dict.fromkeys(record_id for r in reflections for record_id in r.record_ids))
        if reflections[0].update is not None:
            return TextUpdate(tuple(entry for r in reflections for entry in r.update.entries))
        with dspy.context(lm=self.lm):
            sheet = dspy.Predict("experiences -> cheatsheet")(experiences="\n".join(r.text for r in reflections))
        return TextUpdate((Entry(sheet.cheatsheet, ids),))

    def update(self, program, update):
        changed = program.deepcopy()
        sheet = "\n".join([changed.signature.instructions, "Cheatsheet:", update.render()])
        changed.signature = changed.signature.with_instructions(sheet)
        return changed


def examples():
    return [dspy.Example(question=f"q{i}", answer=f"K-{i}").with_inputs("question") for i in range(5)]


def scripted_program():
    program = dspy.Predict("question -> answer")
    program.lm = scripted_lm(lambda prompt, _: "[[ ## answer ## ]]\nunknown")
    return program


def metric(gold, pred, trace=None):
    return float(pred.answer == gold.answer)


def reflection_reply(prompt, _):
    if "Say what one run" in prompt:
        answer = re.search(r"expected answer: (K-\d)", prompt)
        insight = f"The code is {answer.group(1) if answer else 'missing'}."
        names = ("what_went_wrong", "cause", "correct_approach")
        return "".join(f"[[ ## {name} ## ]]\nx\n\n" for name in names) + (
            f"[[ ## key_insight ## ]]\n{insight}\n\n[[ ## votes ## ]]\n[]"
        )
    if asks_for_lessons(prompt):
        return lessons_reply(shown_reflections(prompt))
    return "[[ ## merges ## ]]\n[]\n\n[[ ## refuted ## ]]\nnone"


class TestACE(PromptLearnerContract):
    def make_learner(self):
        return ACE(metric, reflection_lm=scripted_lm(reflection_reply), progress=False)

    def make_program(self):
        return scripted_program()

    def make_examples(self):
        return examples()


class TestCheatsheet(PromptLearnerContract):
    def make_learner(self):
        return Cheatsheet(metric, scripted_lm(lambda prompt, _: "[[ ## cheatsheet ## ]]\nall of it"))

    def make_program(self):
        return scripted_program()

    def make_examples(self):
        return examples()


@pytest.mark.parametrize("name", ["scan", "single_pass", "top_k"])
class TestAggregations(AggregationContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name

    def make_aggregation(self):
        return make_aggregation(self.name)


@pytest.mark.parametrize("name", ["summarize", "hierarchical"])
class TestSummaries(AggregationContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name
        with dspy.context(lm=scripted_lm(lambda prompt, _: "[[ ## summary ## ]]\nsummary")):
            yield

    def make_aggregation(self):
        return make_aggregation(self.name)


class TestSalvage(AggregationContract):
    def make_aggregation(self):
        return Salvage(Scan())


def test_a_learner_under_contract_really_learns():
    learner, program = TestACE().make_learner(), scripted_program()
    reflections = [
        r for i, e in enumerate(examples()) for r in learner.reflect(program, learner.generate(program, e, f"r{i}"))
    ]
    changed = learner.update(program, learner.curate(program, reflections))
    assert [entry.text for entry in playbook_of(changed).entries] == [f"The code is K-{i}." for i in range(5)]
    assert Playbook.from_program(program) == Playbook()


def test_the_third_learner_runs_under_combee_unchanged():
    sheet = scripted_lm(lambda prompt, _: "[[ ## cheatsheet ## ]]\nall of " + " ".join(re.findall(r"K-\d", prompt)))
    optimizer = Combee(Cheatsheet(metric, sheet), batch_size=5, progress=False, num_threads=4)
    taught = optimizer.compile(scripted_program(), trainset=examples())
    result = optimizer.last_result
    lines = result.provenance.lines
    assert lines
    assert all(line.text in taught.signature.instructions for line in lines)
    sources = [source for line in lines for source in result.provenance.sources_of(line.text)]
    assert {source.example_index for source in sources} == set(range(5))
    assert {rid for line in lines for rid in line.record_ids} == {f"r{i}" for i in range(1, 6)}
    assert (result.stop_reason, [one.batch_size for one in result.rounds]) == ("completed", [5])
    assert isinstance(result.rounds[0], Round)
    assert set(result.spend_by_stage) == {"generate", "aggregation, level 1"}
