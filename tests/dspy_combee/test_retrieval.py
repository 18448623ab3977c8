import copy

import cloudpickle
import dspy
import pytest

from dspy_combee.playbook import AddEntry, Playbook, Vote, set_playbook
from dspy_combee.retrieval import fitting_entries, with_retrieval
from dspy_combee.testing import scripted_lm

FRUITS = ("apple", "banana", "cherry", "damson")


@pytest.fixture
def program():
    predict = dspy.Predict(dspy.Signature("question -> answer", "My own text."))
    set_playbook(
        predict, Playbook().apply([AddEntry(f"The code of {fruit} is {fruit.upper()}-1.") for fruit in FRUITS])
    )
    return predict


def ask(program, question):
    lm = scripted_lm(["[[ ## answer ## ]]\nx"])
    with dspy.context(lm=lm):
        program(question=question)
    return lm.engine.prompts[0]


def test_a_call_shows_the_entries_that_fit_and_the_users_own_text(program):
    prompt = ask(with_retrieval(program, top=1), "code of cherry?")
    assert "CHERRY-1" in prompt
    assert "My own text." in prompt
    assert not any(f"{fruit.upper()}-1" in prompt for fruit in ("apple", "banana", "damson"))


def test_the_stored_program_stays_whole(program):
    narrowed = with_retrieval(program, top=1)
    ask(narrowed, "code of cherry?")
    assert narrowed.dump_state() == program.dump_state()
    assert type(program) is dspy.Predict
    assert len(Playbook.from_program(narrowed)) == 4


def test_it_survives_copies_pickles_and_nesting(program):
    chain = dspy.ChainOfThought("question -> answer")
    set_playbook(chain.predict, Playbook.from_program(program))
    for copied in (copy.deepcopy, lambda p: cloudpickle.loads(cloudpickle.dumps(p)), lambda p: p.reset_copy()):
        narrowed = copied(with_retrieval(program, top=1))
        assert "APPLE-1" not in ask(narrowed, "code of cherry?")
    lm = scripted_lm(["[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\nx"])
    with dspy.context(lm=lm):
        with_retrieval(chain, top=1)(question="code of fig or banana?")
    assert "BANANA-1" in lm.engine.prompts[0]
    assert "APPLE-1" not in lm.engine.prompts[0]


async def answer(program):
    return await program.acall(question="code of cherry?")


def test_asynchronous_calls_are_narrowed_too(program):
    import asyncio

    lm = scripted_lm(["[[ ## answer ## ]]\nx"])
    with dspy.context(lm=lm):
        asyncio.run(answer(with_retrieval(program, top=1)))
    assert "APPLE-1" not in lm.engine.prompts[0]


def test_of_equally_near_entries_the_better_voted_ones_are_shown():
    book = Playbook().apply([AddEntry("a"), AddEntry("b"), AddEntry("c")]).apply([Vote("e2", "r1", "helpful")])
    assert [e.id for e in fitting_entries(book.entries, {"question": "zzz"}, top=1)] == ["e2"]


def test_the_users_embedder_decides(program):
    book = Playbook.from_program(program)
    kept = fitting_entries(book.entries, {"q": "x"}, top=1, embedder=lambda texts: [[1, 0]] + [[0, 1]] * 3 + [[1, 0]])
    assert [entry.id for entry in kept] == ["e4"]


def test_wrong_arguments_are_named(program):
    class Own(dspy.Predict):
        pass

    own = Own("question -> answer")
    set_playbook(own, Playbook().apply([AddEntry("x")]))
    with pytest.raises(TypeError, match="predictor self is a Own"):
        with_retrieval(own)
    with pytest.raises(ValueError, match="top must be an int of at least 1"):
        with_retrieval(program, top=0)
