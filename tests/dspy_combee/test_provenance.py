import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspy_combee.provenance import Provenance, RecordSource, SourcedLine, longest_shared_span


def make():
    sources = {f"r{n}": RecordSource(f"r{n}", n, 0.0, f"should be {n}") for n in range(4)}
    lines = (SourcedLine("a", "refunds: K-17", ("r0", "r2")), SourcedLine("a", "invoices: K-18", ()))
    return Provenance(lines, sources)


def test_a_line_names_the_records_behind_it():
    assert [source.record_id for source in make().sources_of("refunds: K-17")] == ["r0", "r2"]
    assert make().sources_of("- refunds: K-17") == make().sources_of("refunds")


def test_records_that_ended_nowhere_are_named():
    assert [source.record_id for source in make().unused()] == ["r1", "r3"]


def test_lines_without_a_citation_are_named():
    assert [line.text for line in make().uncited_lines()] == ["invoices: K-18"]


@pytest.mark.parametrize(("text", "count"), [("K-99", 0), ("K-1", 2)])
def test_a_text_of_no_or_several_lines_is_refused(text, count):
    with pytest.raises(KeyError, match=f"{count} of 2 have it"):
        make().sources_of(text)


def brute_force(text, training_texts, minimum):
    words, best = text.split(), ""
    padded = [f" {' '.join(one.split())} " for one in training_texts]
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            run = " ".join(words[start:end])
            if any(f" {run} " in one for one in padded) and len(run) > len(best):
                best = run
    return best if len(best) >= minimum else ""


texts = st.lists(st.sampled_from(["a", "bb", "the", "code", "K-17"]), max_size=12).map(" ".join)


@given(texts, st.lists(texts, max_size=3), st.integers(1, 12))
def test_the_longest_shared_span_is_found(text, training_texts, minimum):
    found = longest_shared_span(text, training_texts, minimum=minimum)
    assert len(found) == len(brute_force(text, training_texts, minimum))
    assert not found or found in " ".join(text.split())


def test_long_texts_are_compared_in_reasonable_work():
    text = " ".join(f"word{n % 500} the" for n in range(5000))
    rows = [" ".join(f"word{(n * 7) % 900} of" for n in range(50)) for _ in range(200)]
    assert longest_shared_span(text, rows) == ""
