import json
import logging

import dspy

from dspy_combee.testing import scripted_lm
from dspy_evocue.knowledge import KnowledgeCard, check_cards, untested_evidence, write_cards
from dspy_evocue.public_episodes import episode_from
from dspy_evocue.signatures import WrittenCard

EPISODES = [episode_from(f"t{n}", {"q": f"task {n}"}, [("react", f"step of {n}")], float(n)) for n in (1, 2)]


def test_cards_keep_only_sources_that_exist():
    cards = [
        {"requirement": "ask before paying", "source_tasks": ["t1", "t9", "t1"]},
        {"requirement": "nobody saw this", "source_tasks": ["t9"]},
    ]
    lm = scripted_lm(lambda prompt, number: f"[[ ## cards ## ]]\n{json.dumps(cards)}\n\n[[ ## completed ## ]]")
    with dspy.context(lm=lm):
        assert write_cards(EPISODES) == (KnowledgeCard("ask before paying", ("t1",)),)
    assert "step of 2" in lm.engine.prompts[0]
    assert "final score 1" in lm.engine.prompts[0]


def test_repeated_blank_and_overlong_cards_are_dropped():
    written = [
        WrittenCard(requirement=text, source_tasks=["t1"])
        for text in ("Ask first", " ask  first ", " ", "x" * 401, "b")
    ]
    assert [card.requirement for card in check_cards(written, EPISODES, max_cards=8)] == ["Ask first", "b"]
    assert len(check_cards(written, EPISODES, max_cards=1)) == 1


def test_a_card_that_only_repeats_a_task_is_dropped():
    written = [WrittenCard(requirement=text, source_tasks=["t1"]) for text in ("Task  1.", "task 1 is urgent")]
    assert [card.requirement for card in check_cards(written, EPISODES, max_cards=8)] == ["task 1 is urgent"]


def test_no_episodes_cost_no_call():
    with dspy.context(lm=scripted_lm([])):
        assert write_cards([]) == ()


def test_a_reply_that_cannot_be_parsed_gives_no_cards_and_a_warning(caplog):
    with dspy.context(lm=scripted_lm(lambda prompt, number: "?")), caplog.at_level(logging.WARNING):
        assert write_cards(EPISODES) == ()
    assert "no knowledge cards were written" in caplog.text


def test_evidence_says_where_each_line_comes_from():
    text = untested_evidence(ideas="check twice", cards=[KnowledgeCard("ask first", ("t1",))], hypotheses=["h"])
    assert text == "- idea of the user: check twice\n- card: ask first [t1]\n- earlier hypothesis: h"
    assert untested_evidence() == ""
