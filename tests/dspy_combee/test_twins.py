import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dspy_combee.lessons import Lesson, merge_in_code
from dspy_combee.twins import TwinIndex, is_twin

WORDS = [
    "parcel",
    "refund",
    "broken",
    "late",
    "customer",
    "K-1",
    "K-2",
    "GREEN",
    "not",
    "above",
    "100",
    "the",
    "a",
    '"go"',
]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)
LESSONS = st.tuples(TEXTS, st.lists(st.sampled_from(["r1", "r2", "r3", "r4"]), max_size=2, unique=True))


@settings(max_examples=300)
@given(st.lists(LESSONS, max_size=25), LESSONS)
def test_index_finds_exactly_the_twin_that_comparing_with_all_finds(kept, wanted):
    index = TwinIndex()
    for number, (text, record_ids) in enumerate(kept):
        index.put(number, text, record_ids)
    twins = [number for number, lesson in enumerate(kept) if is_twin(lesson, wanted)]
    same = [number for number in twins if kept[number][0] == wanted[0]]
    assert index.find(*wanted) == next(iter([*same, *twins]), None)


@settings(max_examples=100)
@given(LESSONS, LESSONS, LESSONS)
def test_a_lesson_that_changed_is_found_as_what_it_says_now(before, after, wanted):
    index = TwinIndex()
    index.put(0, *before)
    index.put(0, *after)
    assert (index.find(*wanted) == 0) == is_twin(after, wanted)


def test_near_equal_texts_of_different_records_are_found_among_many():
    rng = random.Random(0)
    index = TwinIndex()
    for number in range(300):
        words = [f"w{rng.randrange(400)}" for _ in range(12)]
        index.put(number, f"Check {' '.join(words)} carefully", ["r1"])
    text = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth item"
    index.put(300, text, ["r1"])
    nearly = text.replace("third", "thirdly")
    assert index.find(nearly, ["r2"]) == 300
    assert index.find(nearly.replace("item", "thing"), ["r2"]) is None
    assert index.find(" ".join(reversed(nearly.split())), ["r2"]) is None


def test_a_token_that_every_lesson_has_does_not_make_them_one():
    lessons = [
        Lesson(f"Order {number} goes to K-{number} under the GT-7 terms.", (f"r{number}",)) for number in range(50)
    ]
    assert merge_in_code([*lessons, *lessons]) == tuple(lessons)
