from dspy_combee.playbook import AddEntry, Playbook, Vote


def book_of(*texts: str) -> Playbook:
    adds = [AddEntry(text, "S", (f"r{i}",)) for i, text in enumerate(texts)]
    return Playbook().apply(adds)


def test_counters_and_provenance_are_folded():
    book = book_of("Round money to cents.", "round  money to CENTS.")
    book = book.apply([Vote("e1", "v1", "helpful"), Vote("e2", "v2", "helpful"), Vote("e2", "v3", "harmful")])
    (entry,) = book.deduplicated().entries
    assert (entry.id, entry.helpful, entry.harmful, entry.record_ids) == ("e1", 2, 1, ("r0", "r1"))


def test_nearly_the_same_words_are_one_lesson():
    assert (
        len(
            book_of(
                "Round the money amounts to whole cents", "Round money amounts to whole cents always"
            ).deduplicated()
        )
        == 1
    )


def test_another_code_or_number_is_another_lesson():
    assert len(book_of("Use code A12 for refunds of goods", "Use code A13 for refunds of goods").deduplicated()) == 2


def test_the_opposite_is_another_lesson():
    assert (
        len(book_of("Round the money amounts to cents", "Never round the money amounts to cents").deduplicated()) == 2
    )


def test_an_embedder_finds_what_words_do_not():
    texts = ["answer briefly", "keep replies short", "cite sources"]
    vectors = {"answer briefly": (1.0, 0.0), "keep replies short": (0.99, 0.05), "cite sources": (0.0, 1.0)}
    book = book_of(*texts)
    assert len(book.deduplicated()) == 3
    assert [e.text for e in book.deduplicated(embed=lambda batch: [vectors[t] for t in batch]).entries] == [
        "answer briefly",
        "cite sources",
    ]
