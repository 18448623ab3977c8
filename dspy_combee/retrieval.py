"""Show a predictor only the playbook entries that fit its inputs, for playbooks too large to be read at every call.

Optional, and the only part of a learned program that needs this package where the program runs. The stored
instructions stay whole: saving, loading and further learning see the full playbook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from dspy_combee.clusters import Embedder, embed_texts
from dspy_combee.playbook import Playbook, PlaybookEntry
from dspy_combee.playbook.text import join_instructions, split_instructions
from dspy_combee.records import render_value

_CLASS_ERROR = "retrieval works on dspy.Predict, not on its subclasses: predictor {name} is a {kind}"


class RetrievingPredict(dspy.Predict):
    """A `dspy.Predict` that shows the entries nearest to its inputs. Made by `with_retrieval` alone."""

    playbook_top: int
    playbook_embedder: Embedder | None

    def forward(self, **kwargs: Any) -> Any:
        """Call the model with the fitting entries in the instructions."""
        return super().forward(**self._narrowed(kwargs))

    async def aforward(self, **kwargs: Any) -> Any:
        """Call the model with the fitting entries in the instructions."""
        return await super().aforward(**self._narrowed(kwargs))

    def _narrowed(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        signature: Any = kwargs.get("signature", self.signature)
        split = split_instructions(signature.instructions)
        if split.block is None:
            return kwargs
        book = Playbook.parse(split.block)
        query = {name: value for name, value in kwargs.items() if name in signature.input_fields}
        kept = book.keeping(
            fitting_entries(book.entries, query, top=self.playbook_top, embedder=self.playbook_embedder)
        )
        return {**kwargs, "signature": signature.with_instructions(join_instructions(split, kept.render()))}


def with_retrieval(program: Any, *, top: int = 20, embedder: Embedder | None = None) -> Any:
    """Return a copy of the program whose predictors show at most `top` entries of their playbook a call.

    Args:
        program: A program with playbooks; not changed.
        top: Entries a call, at least 1.
        embedder: Texts to vectors; None means a local TF-IDF one.

    Raises:
        ValueError: `top` is below 1.
        TypeError: A predictor with a playbook is of a class of its own.
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top must be an int of at least 1, got {top!r}")
    narrowed = program.deepcopy()
    for name, predictor in narrowed.named_predictors():
        if split_instructions(predictor.signature.instructions).block is None:
            continue
        if type(predictor) not in (dspy.Predict, RetrievingPredict):
            raise TypeError(_CLASS_ERROR.format(name=name, kind=type(predictor).__name__))
        predictor.__class__ = RetrievingPredict
        predictor.playbook_top = top
        predictor.playbook_embedder = embedder
    return narrowed


def fitting_entries(
    entries: Sequence[PlaybookEntry], inputs: Mapping[str, Any], *, top: int, embedder: Embedder | None = None
) -> tuple[PlaybookEntry, ...]:
    """Return the `top` entries nearest to the inputs; of equally near ones those with the better votes.

    Raises:
        ValueError: The embedder did not return one vector of numbers a text.
    """
    if len(entries) <= top:
        return tuple(entries)
    import numpy as np

    texts = [" ".join(render_value(value) for value in inputs.values()), *(entry.text for entry in entries)]
    vectors = embed_texts(texts, embedder)
    lengths = np.linalg.norm(vectors, axis=1)
    nearness = vectors[1:] @ vectors[0] / np.where(lengths[1:] * lengths[0] == 0, 1, lengths[1:] * lengths[0])
    order = sorted(
        range(len(entries)), key=lambda i: (-round(float(nearness[i]), 9), -entries[i].net_votes, entries[i].number)
    )
    return tuple(entries[position] for position in sorted(order[:top]))
