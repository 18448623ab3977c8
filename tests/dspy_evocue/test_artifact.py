"""Edits are attached to copies, come off again, and survive saving; a file that does not fit is refused."""

import json
import subprocess
import sys
import textwrap

import dspy
import pytest

from dspy_combee.testing import scripted_lm
from dspy_evocue import CallSite, InstructionEdit, Rule, attach, load
from dspy_evocue.errors import ArtifactError, CallSiteNotFoundError, MissingFeatureError
from dspy_evocue.testing import chat_reply

ODD = 'Rule {question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂 "quoted"\nline two'
LESSON = InstructionEdit(at=CallSite("START", "plan"), text=ODD)


class Pair(dspy.Module):
    def __init__(self, signature="question, plan -> answer"):
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.solve = dspy.Predict(signature)

    def forward(self, question):
        return self.solve(question=question, plan=self.plan(question=question).plan)


class Bound(dspy.Module):
    """An agent whose tools are its own methods, and that holds things that cannot be copied."""

    def __init__(self, client):
        super().__init__()
        self.client = client
        self.prefix = "own"
        self.agent = dspy.ReAct("question -> answer", tools=[self.look])

    def look(self, place: str) -> str:
        """Look."""
        return f"{self.prefix} {place}"

    def forward(self, question):
        return self.agent(question=question)


def weather(state):
    return "sunny"


def pair_lm():
    return scripted_lm(lambda prompt, number: chat_reply(plan="p", answer="a"))


def prompts_of(program):
    lm = pair_lm()
    with dspy.context(lm=lm):
        program(question="q")
    return lm.engine.prompts


def test_odd_text_arrives_in_the_prompt_byte_for_byte_and_survives_two_rounds(tmp_path):
    program = attach(Pair(), LESSON)
    for name in ("one.json", "two.json"):
        program.save(tmp_path / name)
        program = load(Pair(), tmp_path / name)
    assert program.evocue.edits == (LESSON,)
    assert ODD.split("\n")[0] in prompts_of(program)[0]
    assert "Rule" in program.evocue.explain()


def test_the_saved_file_is_dspys_own_state_with_one_readable_key_more(tmp_path):
    attach(Pair(), LESSON).save(tmp_path / "evolved.json")
    Pair().save(tmp_path / "plain.json")
    evolved = json.loads((tmp_path / "evolved.json").read_text("utf8"))
    content = evolved.pop("evocue")
    assert evolved == json.loads((tmp_path / "plain.json").read_text("utf8"))
    assert content["edits"][0]["text"] == ODD
    assert content["edits"][0]["at"] == [{"source": "START", "target": "plan"}]


def test_a_plain_program_still_loads_an_evolved_file(tmp_path):
    attach(Pair(), LESSON).save(tmp_path / "evolved.json")
    program = Pair()
    program.load(tmp_path / "evolved.json")
    assert not any("Rule" in prompt for prompt in prompts_of(program))


def test_a_file_without_edits_loads_as_an_ordinary_program(tmp_path):
    Pair().save(tmp_path / "plain.json")
    assert type(load(Pair(), tmp_path / "plain.json")) is Pair


def test_the_whole_program_can_be_saved(tmp_path):
    attach(dspy.ChainOfThought("question -> answer"), InstructionEdit(at=CallSite("*", "predict"), text=ODD)).save(
        tmp_path / "whole", save_program=True
    )
    program = dspy.load(str(tmp_path / "whole"), allow_pickle=True)
    lm = scripted_lm([chat_reply(reasoning="r", answer="a")])
    with dspy.context(lm=lm):
        program(question="q")
    assert ODD.split("\n")[0] in lm.engine.prompts[0]


def test_an_evolved_file_loads_in_a_process_that_has_only_dspy(tmp_path):
    attach(dspy.ChainOfThought("question -> answer"), InstructionEdit(at=CallSite("*", "predict"), text="x")).save(
        tmp_path / "evolved.json"
    )
    script = f"""
        import sys, dspy
        program = dspy.ChainOfThought("question -> answer")
        program.load({str(tmp_path / "evolved.json")!r})
        assert "dspy_evocue" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Pair("question -> answer"), r"solve takes \['question'\] -> \['answer'\] in the program"),
        (
            dspy.Predict("question -> answer"),
            "only in the file: solve; only in the program: self",
        ),
    ],
)
def test_a_file_of_another_interface_is_refused_with_the_names_that_differ(tmp_path, program, message):
    attach(Pair(), LESSON).save(tmp_path / "evolved.json")
    with pytest.raises(ArtifactError, match=message):
        load(program, tmp_path / "evolved.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "cannot be read"),
        ("[]", "must hold an object"),
        ('{"evocue": {"format": 99}}', "must hold format 1"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content, message):
    (tmp_path / "broken.json").write_text(content, "utf8")
    with pytest.raises(ArtifactError, match=message):
        load(Pair(), tmp_path / "broken.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read"):
        load(Pair(), tmp_path / "nothing.json")


def test_a_rule_on_a_feature_that_nothing_computes_is_refused_and_not_silently_off(tmp_path):
    edit = InstructionEdit(at=CallSite("START", "plan"), text="Take a hat.", when=Rule.of(weather="sunny"))
    with pytest.raises(MissingFeatureError, match="weather"):
        attach(Pair(), edit)
    program = attach(Pair(), edit, features=[weather])
    program.save(tmp_path / "evolved.json")
    with pytest.raises(MissingFeatureError, match="weather"):
        load(Pair(), tmp_path / "evolved.json")
    assert "Take a hat." in prompts_of(load(Pair(), tmp_path / "evolved.json", features=[weather]))[0]


def test_an_edit_for_a_predictor_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(CallSiteNotFoundError, match="no predictor 'planer' in this program; it has plan, solve"):
        attach(Pair(), InstructionEdit(at=CallSite("*", "planer"), text="x"))


def test_one_edit_comes_off_and_the_others_stay():
    second = InstructionEdit(at=CallSite("plan", "solve"), text="Second.")
    program = attach(Pair(), LESSON, second)
    assert program.evocue.without(LESSON.edit_id).evocue.edits == (second,)
    assert program.evocue.edits == (LESSON, second)
    with pytest.raises(ValueError, match="edit_id must be one of"):
        program.evocue.without("e0")


def test_without_its_last_edit_the_program_is_an_ordinary_one_again():
    program = attach(Pair(), LESSON).evocue.without(LESSON.edit_id)
    assert type(program) is Pair
    assert prompts_of(program) == prompts_of(Pair())
    assert {type(predictor) for predictor in program.predictors()} == {dspy.Predict}
    assert not [name for predictor in program.predictors() for name in vars(predictor) if "evocue" in name]


def test_the_difference_between_two_programs_is_said_in_words():
    program = attach(Pair(), InstructionEdit(at=CallSite("START", "plan"), text="Be brief."))
    difference = program.evocue.diff(program.evocue.plain())
    assert any(line.startswith("-") and "Be brief." in line for line in difference.split("\n"))
    assert "+no edits" in difference


def test_a_copy_shares_the_users_objects_and_rebinds_the_programs_own_tools():
    client = object()
    original = Bound(client)
    edited = attach(original, InstructionEdit(at=CallSite("*", "agent.react"), text="x"))
    edited.prefix = "copied"
    assert edited.client is client
    assert edited.agent.tools["look"](place="here") == "copied here"
    assert original.agent.tools["look"](place="here") == "own here"


def test_a_tool_that_cannot_be_rebound_is_named(caplog):
    class Closed(dspy.Module):
        def __init__(self):
            super().__init__()

            def peek(place: str) -> str:
                """Peek."""
                return f"{self.callbacks} {place}"

            self.agent = dspy.ReAct("question -> answer", tools=[peek])

    attach(Closed(), InstructionEdit(at=CallSite("*", "agent.react"), text="x"))
    assert "peek" in caplog.text
    assert "cannot be rebound" in caplog.text


def test_the_edits_are_shown_in_a_notebook_with_their_text_escaped():
    html = attach(Pair(), InstructionEdit(at=CallSite("START", "plan"), text="<b>&")).evocue._repr_html_()
    assert "&lt;b&gt;&amp;" in html
