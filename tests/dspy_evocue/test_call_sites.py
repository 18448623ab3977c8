"""Which edges a call site names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_evocue.call_sites import CallSite

SOURCES = st.sampled_from(["START", "JOIN", "react", "tool:search", "tool:finish"])


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("START", {"START"}),
        ("recurring", {"JOIN", "plan", "tool:search"}),
        ("tool:*", {"tool:search"}),
        ("tool:search", {"tool:search"}),
        ("JOIN", {"JOIN"}),
        ("*", {"START", "JOIN", "plan", "tool:search"}),
    ],
)
def test_a_source_pattern_names_exactly_its_edges(pattern, matching):
    site = CallSite(pattern, "react")
    assert {source for source in ("START", "JOIN", "plan", "tool:search") if site.matches(source, "react")} == matching


def test_the_target_is_exact_unless_it_is_a_star():
    assert not CallSite("*", "react").matches("START", "extract.predict")
    assert CallSite("*", "*").matches("START", "extract.predict")


@given(SOURCES)
def test_every_source_is_either_the_start_or_recurring(source):
    assert CallSite("START", "x").matches(source, "x") != CallSite("recurring", "x").matches(source, "x")


@given(SOURCES, st.text(min_size=1).filter(lambda text: text.strip() and text not in ("START", "JOIN", "recurring")))
def test_a_site_survives_json(source, target):
    assert CallSite.from_dict(CallSite(source, target).to_dict()) == CallSite(source, target)


@pytest.mark.parametrize(("source", "target"), [("", "react"), ("START", " "), ("START", "recurring"), (None, "react")])
def test_a_site_without_names_is_refused(source, target):
    with pytest.raises(ValueError, match="call site must be"):
        CallSite(source, target)
