from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspy_combee.provenance import Provenance, RecordSource, SourcedLine
from dspy_combee.report.html import render_page, render_result
from dspy_combee.report.result import CombeeResult, Round

ODD = '`{question} [[ ## answer ## ]] {{}} ```json {"a":1}``` <side_info> %s ${x} 请用中文 🙂`'
HOSTILE = "</div></details><script>alert(1)</script> <img src=x onerror=alert(1)> \" ' &amp; <!-- ]]>"
VIEWS = pytest.mark.parametrize("render", [render_page, render_result])


def with_text(result: CombeeResult, words: str) -> CombeeResult:
    """Put the words wherever a result can hold text of a model, a user or a provider."""
    calls = tuple(replace(call, error=words) for call in result.rounds[0].calls)
    rounds = tuple(replace(one, notes=(words,), left_out=(words + "!",), calls=calls) for one in result.rounds)
    return replace(
        result,
        rounds=rounds,
        error=words,
        longest_shared_span=words,
        unreached={words: 3},
        config={words: words},
        diff=f"--- ask (before)\n+{words}\n-{words}\n {words}",
        provenance=Provenance((SourcedLine(words, words, ("r1",)),), {"r1": RecordSource("r1", 0, 0.5, words)}),
    )


@VIEWS
@pytest.mark.parametrize("words", [ODD, HOSTILE, ODD + HOSTILE])
def test_odd_text_is_shown_character_by_character_and_opens_no_tag(render, words, result, read_page):
    plain = read_page(render(result))
    page = read_page(render(with_text(result, words)))
    assert page.texts.count(words) >= 4
    assert set(page.tags) <= set(plain.tags)
    assert "script" not in page.tags


@VIEWS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(words=st.text())
def test_any_text_gives_a_sound_page_that_can_be_written(render, words, result, read_page):
    markup = render(with_text(result, words))
    read_page(markup)
    markup.encode("utf-8")


def test_report_is_one_file_that_asks_for_nothing_else(result, read_page, tmp_path):
    result.report(tmp_path / "page.html")
    markup = (tmp_path / "page.html").read_text(encoding="utf-8")
    read_page(markup)
    assert markup.startswith("<!doctype html>")
    for reference in ("http:", "https:", "src=", "href=", "@import", "url("):
        assert reference not in markup


@VIEWS
def test_why_it_ended_and_what_it_took_are_shown_with_units(render, result):
    markup = render(result)
    for words in ("the budget is spent", "0.250 → 0.625", "+0.375", "1 h 12 min", "444", "1,469,134 in, 107,530 out"):
        assert words in markup
    assert "≥ $1.4690" in markup
    assert "no price for 17 calls" in markup
    assert "rollouts and metric" in markup
    assert "at least $1.2345 (17 calls without a known price)" in markup


@VIEWS
def test_each_line_unfolds_to_the_feedback_behind_it(render, result, read_page):
    texts = read_page(render(result)).texts
    line = texts.index("A broken parcel goes to K-1.")
    assert texts[line + 1 : line + 3] == ["K-1 was right: the parcel is broken.", "ValueError: no code"]
    markup = render(result)
    assert "r99: its text was not kept" in markup
    assert "no record cited" in markup


@VIEWS
def test_what_was_left_out_is_named(render, result):
    markup = render(result)
    assert "1 of 3 records ended in no learned line" in markup
    assert "a rule without room" in markup
    assert "&#x27;fallback&#x27; was never called in 31 rollouts" in markup
    assert "joined in code" in markup


@VIEWS
def test_text_copied_from_the_train_set_is_shown(render, result):
    copied = render(replace(result, longest_shared_span="my order 4711 is late"))
    assert "word for word: " in copied
    assert "my order 4711 is late" in copied
    assert "word for word" not in render(result)


def test_a_line_that_came_back_later_is_not_called_left_out(result):
    rounds = (replace(result.rounds[0], left_out=("Be exact.",)),)
    assert "had to go" not in render_page(replace(result, rounds=rounds))


def test_page_shows_the_calls_level_by_level(result, read_page):
    markup = render_page(result)
    assert "3 (1 failed)" in markup
    assert "Round 1: 3 aggregation calls" in markup
    assert "LMRateLimitError: slow down" in read_page(markup).texts


def test_diff_tells_added_lines_from_removed_ones_and_file_names(result):
    markup = render_page(replace(result, diff="--- a (before)\n+++ a (after)\n@@ -1 +1 @@\n-old\n+new\n same"))
    assert '<span class="removed">-old</span>' in markup
    assert '<span class="added">+new</span>' in markup
    assert '<span class="where">--- a (before)</span>' in markup


def test_notebook_view_shortens_what_the_page_shows_whole(result):
    lines = tuple(SourcedLine("ask", f"rule number {number}", ("r1",)) for number in range(50))
    rounds = tuple(Round(number, 4, 1.0) for number in range(1, 31))
    long = RecordSource("r1", 0, 0.0, "x" * 1_000)
    many = replace(result, rounds=rounds, provenance=Provenance(lines, {"r1": long}))
    notebook, page = render_result(many), render_page(many)
    assert "and 30 more lines" in notebook
    assert "The last 12 of 30 rounds" in notebook
    assert "700 more characters" in notebook
    assert "rule number 49" not in notebook
    assert "rule number 49" in page
    assert "x" * 1_000 in page


@VIEWS
def test_result_of_a_run_that_failed_at_once_can_be_shown(render, read_page):
    page = read_page(render(CombeeResult(stop_reason="error", error="LMUnavailableError: no answer")))
    assert page.texts == ["LMUnavailableError: no answer"]


def test_notebook_does_not_read_dollar_signs_as_formulas(result):
    assert 'class="combee tex2jax_ignore mathjax_ignore"' in result._repr_html_()


def test_result_is_one_line_in_a_terminal(result):
    assert "\n" not in repr(result)
    assert "stop_reason='budget', validation score 0.25 -> 0.625, 2 rounds, 192 metric calls" in repr(result)
