"""A draft is empty, valid or invalid, and nothing else; the table of operations is complete."""

import pytest

from dspy_evocue.control.draft import Draft, DraftState
from dspy_evocue.control.operations import OPERATIONS, describe_operations


def test_the_state_of_a_draft_follows_from_its_text_and_problem():
    assert Draft().state is DraftState.EMPTY
    assert Draft.pending("x = 1").state is DraftState.PENDING_VALID
    assert Draft.pending("x = 1", "wrong").state is DraftState.PENDING_INVALID


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_blank_action_is_pending_and_invalid(text):
    assert Draft.pending(text).state is DraftState.PENDING_INVALID


def test_an_empty_draft_has_no_text():
    with pytest.raises(ValueError, match="an empty draft must have no text"):
        Draft(text="x")


def test_a_draft_state_reads_as_its_value():
    assert f"{DraftState.PENDING_VALID}" == str(DraftState.PENDING_VALID) == "pending-valid"


def test_what_an_operation_does_to_the_draft_agrees_with_what_it_writes():
    for row in OPERATIONS.values():
        changes = any(effect.becomes not in (None, draft) for draft in row.requires for effect in row.effects)
        assert changes == bool({"draft", "problem"} & set(row.writes)), row.name


def test_reflecting_cannot_change_a_pending_draft_and_revising_can():
    invalid = DraftState.PENDING_INVALID
    assert {draft for _, draft in OPERATIONS["reflect"].ends(invalid)} == {invalid}
    assert DraftState.PENDING_VALID in {draft for _, draft in OPERATIONS["revise"].ends(invalid)}


def test_the_description_for_proposers_names_what_every_operation_reads_writes_and_needs():
    text = describe_operations()
    assert len(text.split("\n")) == len(OPERATIONS)
    for row in OPERATIONS.values():
        (line,) = [line for line in text.split("\n") if line.startswith(f"- {row.name}:")]
        assert all(word in line for word in (*row.reads, *row.writes, *map(str, row.requires), *row.outcomes))
