"""A result with something in every field, and a reader of HTML that refuses what a browser would have to guess."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from dspy_combee.aggregation.base import CallRecord
from dspy_combee.batch_size import BatchSizeController
from dspy_combee.provenance import Provenance, RecordSource, SourcedLine
from dspy_combee.report.result import CombeeResult, Round
from dspy_combee.runtime.budget import Spend

VOID = {"meta"}


class Page(HTMLParser):
    """Reads a page; every element must be closed in order."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.titles: list[str] = []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))
            if (tag, "text") == self.open[-1]:
                self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == ("span", "text"):
            self.texts[-1] += data
        if self.open and self.open[-1][0] == "title":
            self.titles.append(data)


@pytest.fixture
def read_page():
    return Page


@pytest.fixture
def result() -> CombeeResult:
    controller = BatchSizeController(num_threads=64)
    state = controller.start()
    for size in (4, 8, 16, 32, 64):
        state = controller.observe(state, batch_size=size, seconds=size * 5 * size**-0.85)
    calls = (
        CallRecord("level 1", ("r1", "r2"), 0.4),
        CallRecord("level 1", ("r3",), 2.5, "LMRateLimitError: slow down"),
        CallRecord("level 2", ("r1", "r2"), 0.7),
    )
    rounds = (
        Round(1, 4, 7.7, 0.25, 0.5, True, 0.625, ("ask",), calls, 3, ("r3",), 2, metric_calls=48),
        Round(2, 72, 24.0, 0.5, 0.25, notes=("joined in code",), left_out=("a rule without room",), metric_calls=192),
    )
    sources = {
        "r1": RecordSource("r1", 0, 0.0, "K-1 was right: the parcel is broken."),
        "r2": RecordSource("r2", 5, None, "ValueError: no code"),
        "r3": RecordSource("r3", None, 1.0, ""),
    }
    lines = (
        SourcedLine("ask", "A broken parcel goes to K-1.", ("r1", "r2", "r99")),
        SourcedLine("ask", "Be exact.", ()),
    )
    rollouts = Spend(192, 384, 12, 3, 1_234_567, 98_765, 1.2345, 0, 17)
    aggregation = Spend(0, 60, 0, 2, 234_567, 8_765, 0.2345)
    return CombeeResult(
        "budget",
        rounds,
        4_321.5,
        rollouts + aggregation,
        {"": rollouts, "aggregation": aggregation},
        72,
        controller.fit(state),
        Provenance(lines, sources),
        0.25,
        0.625,
        {"fallback": 31},
        config={"base": "dspy.GEPA", "batch_size": "auto", "val_size": 40, "versions": {"dspy": "3.4"}},
        diff="--- ask (before)\n+++ ask (after)\n@@ -1 +1,2 @@\n Answer.\n+- A broken parcel goes to K-1.",
    )
