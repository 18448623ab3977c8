"""Knowledge that nobody has tested here: cards written from past episodes, and ideas that the user brings along.

A card states one requirement and cites the episodes that show it (EvoCUE, knowledge cards); citations that do not
exist are dropped, and a card without any left is dropped with them. Cards and ideas reach proposals as untested
evidence and are never put into a program unproven.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from dspy_evocue.public_episodes import MAX_EPISODE_CHARS, PublicEpisode, is_only_a_task
from dspy_evocue.signatures import WriteKnowledgeCards, WrittenCard

logger = logging.getLogger(__name__)

MAX_CARD_CHARS = 400
"""A longer card is no card: it is dropped, not cut."""


@dataclass(frozen=True, slots=True)
class KnowledgeCard:
    """One requirement, and where it was seen."""

    requirement: str
    source_tasks: tuple[str, ...]
    """Ids of the episodes that show it, never empty."""

    def __str__(self) -> str:
        return f"{self.requirement} [{', '.join(self.source_tasks)}]"


def write_cards(
    episodes: Sequence[PublicEpisode],
    *,
    signature: Any = WriteKnowledgeCards,
    max_cards: int = 8,
    max_chars: int = 4 * MAX_EPISODE_CHARS,
) -> tuple[KnowledgeCard, ...]:
    """Ask the model in the DSPy context for cards on these episodes: one call, none without episodes.

    A reply that cannot be parsed gives no cards and a warning; an outage raises.

    Args:
        episodes: Public information only.
        signature: Has the fields of `WriteKnowledgeCards`.
        max_cards: The most cards to keep.
        max_chars: How much text the model is shown, shared evenly by the episodes.
    """
    if not episodes:
        return ()
    share = max(200, max_chars // len(episodes))
    try:
        reply = dspy.Predict(signature)(
            episodes="\n\n".join(_shown(episode, share) for episode in episodes), max_cards=max_cards
        )
    except AdapterParseError as error:
        logger.warning("no knowledge cards were written: the reply could not be parsed")
        logger.debug("%s", error)
        return ()
    return check_cards(reply.cards or [], episodes, max_cards=max_cards)


def check_cards(
    written: Sequence[WrittenCard], episodes: Sequence[PublicEpisode], *, max_cards: int
) -> tuple[KnowledgeCard, ...]:
    """Keep the cards that cite one of the episodes, are short, and say something new that is more than a task."""
    known_tasks = {episode.task_id for episode in episodes}
    given = [value for episode in episodes for value in episode.inputs.values()]
    cards: dict[str, KnowledgeCard] = {}
    for card in written:
        requirement = " ".join(card.requirement.split())
        sources = tuple(dict.fromkeys(task for task in card.source_tasks if task in known_tasks))
        if requirement and sources and len(requirement) <= MAX_CARD_CHARS and not is_only_a_task(requirement, given):
            cards.setdefault(requirement.casefold(), KnowledgeCard(requirement, sources))
    return tuple(cards.values())[:max_cards]


def untested_evidence(
    *, ideas: str | Sequence[str] = (), cards: Sequence[KnowledgeCard] = (), hypotheses: Sequence[str] = ()
) -> str:
    """Return ideas, cards and earlier hypotheses as a proposer reads them; empty when there are none.

    Args:
        ideas: The user's own: one text, or several.
        cards: Written from past episodes.
        hypotheses: What earlier proposals expected and no trial has settled.
    """
    ideas = [ideas] if isinstance(ideas, str) else list(ideas)
    lines = [f"- idea of the user: {idea.strip()}" for idea in ideas if idea.strip()]
    lines += [f"- card: {card}" for card in cards]
    lines += [f"- earlier hypothesis: {hypothesis.strip()}" for hypothesis in hypotheses if hypothesis.strip()]
    return "\n".join(lines)


def _shown(episode: PublicEpisode, max_chars: int) -> str:
    task = episode.task_text(max_chars=max(100, max_chars // 3))
    history = episode.history(max_chars=max(100, max_chars - len(task)))
    return f"### {episode.task_id} (final score {episode.score_text()})\n{task}\n{history}"
