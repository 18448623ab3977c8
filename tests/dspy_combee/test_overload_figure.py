"""The figure of context overload: every aggregation by name, resumable, a failing model ends one cell only."""

import json
import re

import combee_overload as overload
import pytest

from dspy_combee.testing import asks_for_lessons, lessons_reply, scripted_lm

_RULE = re.compile(r"When [^.]*, the code is [A-Z]-\d\d\.")


def with_ids(found):
    """Yield each rule with the record id that stands above it."""
    record_id = ""
    for head, rule in found:
        record_id = head or record_id
        if rule:
            yield record_id, rule


def attentive(prompt, _):
    """A model that loses nothing."""
    if asks_for_lessons(prompt):
        cited = re.findall(rf"(?:\[(r\d+)\]|({_RULE.pattern}))", prompt)
        return lessons_reply(with_ids(cited))
    rules = " ".join(dict.fromkeys(_RULE.findall(prompt)))
    fields = {"operations": "NONE", "summary": rules, "new_instruction": f"Give the code. {rules}"}
    name = next(field for field in fields if f"`{field}`" in prompt)
    return (
        json.dumps({name: fields[name]})
        if "examples_with_feedback" in prompt
        else f"[[ ## {name} ## ]]\n{fields[name]}"
    )


def run(*argv, reply=attentive):
    lm = scripted_lm(reply)
    return overload.run(overload.parse(argv), lm), lm.engine.calls


@pytest.mark.parametrize("bare", [(), ("--bare",)])
def test_a_model_that_loses_nothing_keeps_every_rule_that_a_variant_shows_it(bare):
    rows, _ = run("--counts", "9", "--seeds", "0", *bare)
    shown = {name: 3 if name.startswith("top_k") else 9 for name in overload.variants()}
    assert {row["variant"]: row["kept"] for row in rows} == shown


def test_a_stopped_run_goes_on_with_the_cells_that_its_file_lacks(tmp_path):
    out = tmp_path / "rows.jsonl"
    asked = ("--counts", "9", "--variants", "single pass, lessons", "--out", str(out))
    first, calls = run(*asked, "--seeds", "0")
    assert calls == 1
    out.write_text(out.read_text("utf-8") + '{"count": 9, "vari', "utf-8")  # the machine went down in mid-line
    both, calls = run(*asked, "--seeds", "0", "1")
    assert (calls, both[0]) == (1, first[0])
    assert overload.read_rows([out]) == both


def test_a_model_that_is_down_gives_an_error_row_and_the_other_cells_run(tmp_path):
    def down_for_large_batches(prompt, number):
        return ValueError("the server is gone") if len(_RULE.findall(prompt)) > 8 else attentive(prompt, number)

    asked = ("--counts", "9", "5", "--seeds", "0", "--variants", "single pass, lessons", "--out", str(tmp_path / "o"))
    (failed, done), _ = run(*asked, reply=down_for_large_batches)
    assert "the server is gone" in failed["error"]
    assert "kept" not in failed
    assert done["kept"] == 5
    assert run(*asked)[1] == 0
    assert [row["kept"] for row in run(*asked, "--retry-errors")[0]] == [9, 5]
    assert [row["kept"] for row in overload.read_rows([tmp_path / "o"])] == [9, 5]


def test_a_reply_that_cannot_be_used_is_a_result_with_nothing_kept():
    asked = ("--counts", "9", "--seeds", "0", "--variants", "single pass, rewrite", "scan, rewrite, p=2")
    rows, _ = run(*asked, reply=lambda *_: "")
    assert [(row["kept"], len(row["call_errors"])) for row in rows] == [(0, 1), (0, 1)]


def test_what_is_cited_but_not_kept_is_counted():
    def vague(prompt, number):
        return re.sub(r"the code is [A-Z]-\d\d", "use the right code", attentive(prompt, number))

    (row,), _ = run("--counts", "9", "--seeds", "0", "--variants", "scan, rewrite, p=2", reply=vague)
    assert (row["kept"], row["cited_but_lost"]) == (0, 9)


def test_the_judge_reads_the_rows_of_a_file_and_its_agreement_with_the_count_is_shown(tmp_path):
    def lenient(prompt, number):
        if "`verdicts`" not in prompt:
            return attentive(prompt, number)
        ids = dict.fromkeys(re.findall(r"^\[(r\d+)\]$", prompt, re.MULTILINE))
        verdicts = [{"record_id": rid, "covered": "fully", "specific": "specific"} for rid in ids]
        return f"[[ ## verdicts ## ]]\n{json.dumps(verdicts)}"

    asked = ("--counts", "9", "--seeds", "0", "--variants", "top_k, lessons", "--out", str(tmp_path / "o"))
    run(*asked)
    (row,), calls = run(*asked, "--judge", reply=lenient)
    assert calls == 2, "nine reflections, five a call, and no call for the aggregation"
    assert (row["kept"], row["judge"]["fully"], row["judge"]["agrees"]) == (3, 9, 3)
    assert run(*asked, "--judge")[1] == 0
    assert overload.table([row]).splitlines()[-1].endswith("| 9 | 100 | 33 |")


def test_the_table_shows_what_each_seed_kept():
    shared = {"count": 9, "variant": "top_k, rewrite", "bare": False, "calls": 1, "input_tokens": 1000}
    shared |= {"output_tokens": 50, "seconds": 2.0, "lines": 1, "cited_but_lost": 0}
    rows = [{**shared, "seed": seed, "kept": kept} for seed, kept in ((1, 3), (0, 2))]
    failed = {**shared, "seed": 2, "error": "ValueError: the server is gone"}
    assert overload.table([*rows, failed]).splitlines()[-1] == (
        "| 9 | paragraph | top_k, rewrite | 2, 3, error of 9 (2.5) | 0 | 1 | 1 | 1,000 | 50 | 2 |"
    )


def test_the_summary_has_an_aggregation_a_line_and_a_size_a_column():
    cells = [(20, "top_k, lessons", 1, 4), (5, "top_k, lessons", 0, 2), (20, "top_k, lessons", 0, 3)]
    names = ("count", "variant", "seed", "kept")
    rows = [{**dict(zip(names, cell, strict=True)), "bare": False} for cell in cells]
    rows.append({"count": 5, "variant": "single pass, lessons", "seed": 0, "bare": True, "error": "gone"})
    assert overload.summary(rows).splitlines() == [
        "Paragraphs with one rule each:",
        "",
        "| aggregation | N = 5 | N = 20 |",
        "| --- | --- | --- |",
        "| top_k, lessons | 2 | 3, 4 |",
        "",
        "Bare rules:",
        "",
        "| aggregation | N = 5 |",
        "| --- | --- |",
        "| single pass, lessons | error |",
    ]
