"""Combee learns from recorded trajectories, over ACE, GEPA or a learner of the user's own, and runs nothing."""

import json
import re
import tracemalloc

import dspy
import pytest

from dspy_combee.ace import ACE
from dspy_combee.combee import Combee
from dspy_combee.learners.base import Entry, Reflection, TextUpdate
from dspy_combee.lessons import split_instruction
from dspy_combee.playbook import Playbook
from dspy_combee.testing import ScriptedEngine, asks_for_lessons, lessons_reply, scripted_lm, shown_reflections
from dspy_combee.traces import TraceMapping, TraceReader

FRUITS = ("apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel")


def rule(number):
    return f"The code of {FRUITS[number]} is K-{number}7."


def rows(count=8):
    return [
        {
            "inputs": {"question": f"code of {FRUITS[number]}?"},
            "steps": [{"name": "search", "inputs": {"query": FRUITS[number]}, "outputs": "nothing found"}],
            "output": {"answer": "unknown"},
            "score": 0.0,
            "feedback": rule(number),
        }
        for number in range(count)
    ]


def pass_rules_on(prompt, _):
    if asks_for_lessons(prompt):
        if "[[ ## reflections ## ]]" in prompt:
            return lessons_reply(shown_reflections(prompt))
        return lessons_reply(re.findall(r"\[(r\d+)\].*?feedback: (The code of \w+ is K-\d+\.)", prompt, re.DOTALL))
    if "[[ ## operations ## ]]" in prompt and "ReviseLessons" not in prompt and "rules" in prompt:
        return "[[ ## operations ## ]]\nNONE\n\n[[ ## completed ## ]]"
    if "Say what one run" in prompt:
        insight = re.search(r"feedback: (The code of \w+ is K-\d+\.)", prompt).group(1)
        parts = {name: "x" for name in ("what_went_wrong", "cause", "correct_approach")}
        parts |= {"key_insight": insight, "votes": "[]"}
        return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in parts.items())
    return "[[ ## merges ## ]]\n[]\n\n[[ ## refuted ## ]]\nnone"


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return float(pred.answer == gold.answer)


@pytest.fixture
def engines():
    return ScriptedEngine(lambda prompt, _: "[[ ## answer ## ]]\nunknown"), ScriptedEngine(pass_rules_on)


@pytest.fixture(params=["ACE", "GEPA"])
def optimizer(request, engines):
    lm = scripted_lm(engines[1])
    gepa = dspy.GEPA(metric, auto="light", reflection_lm=lm)
    base = ACE(metric, reflection_lm=lm) if request.param == "ACE" else gepa
    return Combee(base, batch_size=4, progress=False, num_threads=4)


def lines_of(program):
    text = program.signature.instructions
    return {lesson.text for lesson in split_instruction(text)[1]} or {e.text for e in Playbook.parse(text).entries}


def learn(optimizer, engines, traces, **data):
    with dspy.context(lm=scripted_lm(engines[0])):
        return optimizer.learn(dspy.Predict("question -> answer"), traces, **data)


def test_the_program_learns_and_is_never_run(optimizer, engines):
    taught = learn(optimizer, engines, rows())
    assert lines_of(taught) == {rule(number) for number in range(8)}
    assert engines[0].calls == 0
    result = optimizer.last_result
    assert [one.batch_size for one in result.rounds] == [4, 4]
    assert result.spend.metric_calls == 0
    (source,) = result.provenance.sources_of(rule(6))
    assert (source.record_id, source.example_index, source.score) == ("r7", 6, 0.0)
    assert rule(6) in source.feedback
    assert result.config["learned from"] == "recorded traces"


def test_a_valset_decides_which_program_is_the_best(optimizer, engines):
    val = [dspy.Example(question="code of fig?", answer="K-57").with_inputs("question")]
    learn(optimizer, engines, rows(), valset=val)
    assert engines[0].calls == 2
    assert (optimizer.last_result.seed_score, optimizer.last_result.best_score) == (0.0, 0.0)


def test_a_broken_line_of_a_file_is_reported_and_skipped(optimizer, engines, tmp_path):
    lines = [json.dumps(row) for row in rows(4)]
    lines.insert(2, '{"inputs": {"question": "code of')
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    reader = TraceReader(tmp_path / "runs.jsonl")
    taught = learn(optimizer, engines, reader)
    assert lines_of(taught) == {rule(number) for number in range(4)}
    assert [skipped.row for skipped in reader.skipped] == [2]
    assert optimizer.last_result.config["traces skipped"] == 1
    assert lines_of(learn(optimizer, engines, str(tmp_path / "runs.jsonl"))) == lines_of(taught)


def test_compile_takes_traces_in_place_of_running_the_trainset(optimizer, engines):
    train = [dspy.Example(question="code of kiwi?", answer="K-0").with_inputs("question")]
    with dspy.context(lm=scripted_lm(engines[0])):
        taught = optimizer.compile(dspy.Predict("question -> answer"), trainset=train, traces=rows(2))
    assert lines_of(taught) == {rule(0), rule(1)}
    assert engines[0].calls == 0


def test_a_run_on_traces_goes_on_where_it_was_killed(optimizer, engines, tmp_path):
    optimizer.log_dir = str(tmp_path)

    def first_half():
        yield from rows()[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(optimizer, engines, first_half())
    taught = learn(optimizer, engines, rows())
    assert lines_of(taught) == {rule(number) for number in range(8)}
    assert [one.batch_size for one in optimizer.last_result.rounds] == [4, 4]
    assert optimizer.last_result.provenance.sources_of(rule(0))[0].record_id == "r1"


def test_a_rewriting_gepa_learns_from_traces_too(engines):
    seen = []

    def propose(candidate, reflective_dataset, components_to_update):
        seen.extend(record["Feedback"] for record in reflective_dataset["self"])
        return {"self": f"instruction {len(seen)}"}

    base = dspy.GEPA(metric, auto="light", instruction_proposer=propose, reflection_lm=scripted_lm(engines[1]))
    optimizer = Combee(base, aggregation="single_pass", batch_size=8, progress=False)
    taught = learn(optimizer, engines, rows())
    assert taught.signature.instructions == "instruction 8"
    assert rule(3) in seen[3]


def test_a_step_named_like_a_predictor_teaches_that_predictor(engines):
    class Two(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = dspy.Predict("question -> hint"), dspy.Predict("hint -> answer")

        def forward(self, question):
            return self.second(hint=self.first(question=question).hint)

    base = dspy.GEPA(metric, auto="light", reflection_lm=scripted_lm(engines[1]))
    traces = [{**row, "steps": [{"name": "second", "inputs": {"hint": "h"}, "outputs": "a"}]} for row in rows(4)]
    taught = Combee(base, batch_size=4, progress=False).learn(Two(), traces)
    assert split_instruction(taught.first.signature.instructions)[1] == ()
    assert len(split_instruction(taught.second.signature.instructions)[1]) == 4


def test_a_hugging_face_data_set_is_read_with_a_mapping(optimizer, engines):
    datasets = pytest.importorskip("datasets")
    columns = {"task": [row["inputs"]["question"] for row in rows(4)], "note": [row["feedback"] for row in rows(4)]}
    table = datasets.Dataset.from_dict(columns)
    mapping = TraceMapping(inputs=["task"], steps=None, output=None, score=None, feedback="note")
    for data in (table, table.to_iterable_dataset()):
        assert lines_of(learn(optimizer, engines, TraceReader(data, mapping))) == {rule(n) for n in range(4)}


class Counter:
    """A learner without a model, so that only the stream costs memory."""

    def generate(self, program, example, record_id):
        raise AssertionError("a recorded trace is not run")

    def reflect(self, program, trajectory):
        return [Reflection(trajectory.feedback, (trajectory.record_id,), "self")] if trajectory.score == 0 else ()

    def curate(self, program, reflections):
        return TextUpdate((Entry(reflections[0].text, reflections[0].record_ids),))

    def update(self, program, update):
        return program


def test_a_stream_of_traces_is_never_held_as_a_whole():
    def stream():
        for number in range(3_000):
            yield {
                "inputs": {"question": f"{number} " * 5_000},
                "score": float(number % 1000 > 0),
                "feedback": "f" * 90,
            }

    optimizer = Combee(Counter(), batch_size=100, progress=False, num_threads=1)
    tracemalloc.start()
    optimizer.learn(dspy.Predict("question -> answer"), stream())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(one.batch_size for one in optimizer.last_result.rounds) == 3_000
    assert peak < 12_000_000  # the traces themselves are more than 60 MB, a batch of them 2 MB


@pytest.mark.parametrize(("traces", "error"), [(5, TypeError), ("missing.jsonl", FileNotFoundError)])
def test_what_is_no_source_is_refused_before_anything_is_spent(optimizer, engines, traces, error):
    with pytest.raises(error):
        learn(optimizer, engines, traces)
    assert engines[1].calls == 0


@pytest.mark.parametrize("traces", [[], iter(()), [{"task": "no inputs here"}], ["text"]])
def test_traces_of_which_none_can_be_read_are_an_error_before_anything_is_spent(optimizer, engines, traces):
    valset = [dspy.Example(question="q", answer="a").with_inputs("question")]
    with pytest.raises(ValueError, match="traces must hold at least one that can be read"):
        learn(optimizer, engines, traces, valset=valset)
    assert (engines[0].calls, engines[1].calls) == (0, 0)


def test_neither_data_nor_traces_is_refused(optimizer):
    with pytest.raises(ValueError, match="trainset must be given, or traces"):
        optimizer.compile(dspy.Predict("question -> answer"))
