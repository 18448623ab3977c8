"""Let GEPA go on from its checkpoint without paying for the seed again, and draw as if it had never stopped.

GEPA evaluates the seed on the whole validation set before it looks for a checkpoint, and starts its generators anew.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspy_combee.runtime.run_log import write_atomically

logger = logging.getLogger(__name__)

DRAWS_FILE = "combee_draws.json"


class _NoExamples(list[Any]):
    """An empty batch that `dspy.Evaluate` accepts: it refuses a list without length, and divides by it."""

    def __len__(self) -> int:
        return 1


class ResumedValset:
    """A GEPA data loader whose batch of no examples can be evaluated."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._examples = list(examples)

    def all_ids(self) -> list[int]:
        """Return the positions of all examples."""
        return list(range(len(self._examples)))

    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Return the examples at these positions."""
        return [self._examples[position] for position in ids] if ids else _NoExamples()

    def __len__(self) -> int:
        return len(self._examples)


class ResumedPolicy:
    """A GEPA validation policy that first looks at nothing: a resumed run knows the seed's scores."""

    def __init__(self, policy: Any) -> None:
        from gepa.strategies.eval_policy import FullEvaluationPolicy

        self._policy = FullEvaluationPolicy() if policy in (None, "full_eval") else policy

    def get_seed_eval_batch(self, loader: Any) -> list[Any]:
        """Return no example."""
        return []

    # Spelled out: from Python 3.12 on, a protocol's `isinstance` does not see what `__getattr__` would answer.
    def get_eval_batch(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the examples that the wrapped policy evaluates a program on."""
        return self._policy.get_eval_batch(*args, **kwargs)

    def get_best_program(self, state: Any) -> Any:
        """Return the program that the wrapped policy prefers."""
        return self._policy.get_best_program(state)

    def get_valset_score(self, program_idx: Any, state: Any) -> float:
        """Return a program's score as the wrapped policy has it."""
        return self._policy.get_valset_score(program_idx, state)


class RememberedDraws:
    """A GEPA sampling strategy that keeps the state of GEPA's own generator and sampler beside the checkpoint.

    It draws nothing itself, so that a run with small batches stays plain `dspy.GEPA`, and goes on as such.
    """

    def __init__(self, own: Any, directory: str, *, resumed_at: int | None) -> None:
        """Wrap a strategy.

        Args:
            own: The user's strategy; None for GEPA's own.
            directory: Where the states are kept.
            resumed_at: `i` of the checkpoint that GEPA goes on from; None for a new run.
        """
        from gepa.strategies.proposal_sampling import SingleMutationSampling

        self._own = own if own is not None else SingleMutationSampling()
        self._path = Path(directory) / DRAWS_FILE
        self._sampler: Any = None
        self._earlier = None if resumed_at is None else _read(self._path, resumed_at)

    def sample_tasks(self, state: Any, candidate_selector: Any, batch_sampler: Any, trainset: Any) -> Any:
        """Return what the wrapped strategy samples; take GEPA's sampler up where the checkpoint left it."""
        from gepa.strategies.batch_sampler import EpochShuffledBatchSampler

        if isinstance(batch_sampler, EpochShuffledBatchSampler):
            self._sampler = batch_sampler
            if self._earlier is not None:
                _restore(batch_sampler, self._earlier)
                self._earlier = None
        return self._own.sample_tasks(state, candidate_selector, batch_sampler, trainset)

    def save(self, iteration: int) -> None:
        """Keep the states for a checkpoint that GEPA is about to write with this `i`."""
        if self._sampler is None and self._earlier is None:
            return
        contents = self._earlier if self._sampler is None else _snapshot(self._sampler)
        write_atomically(self._path, json.dumps({**(contents or {}), "i": iteration}))


def _snapshot(sampler: Any) -> dict[str, Any]:
    version, words, gauss = sampler.rng.getstate()
    return {
        "rng": [version, list(words), gauss],
        "shuffled_ids": sampler.shuffled_ids,
        "epoch": sampler.epoch,
        "id_freqs": list(sampler.id_freqs.items()),
        "last_trainset_size": sampler.last_trainset_size,
    }


def _restore(sampler: Any, contents: dict[str, Any]) -> None:
    version, words, gauss = contents["rng"]
    sampler.rng.setstate((version, tuple(words), gauss))
    sampler.shuffled_ids = list(contents["shuffled_ids"])
    sampler.epoch = contents["epoch"]
    sampler.id_freqs = Counter(dict(contents["id_freqs"]))
    sampler.last_trainset_size = contents["last_trainset_size"]


def _read(path: Path, resumed_at: int) -> dict[str, Any] | None:
    """Return the states that belong to the checkpoint; the file may be one iteration ahead of it."""
    for candidate in (path, path.with_name(path.name + ".previous")):
        contents = _parse(candidate)
        if contents is not None and contents.get("i") == resumed_at:
            return contents
    if resumed_at >= 0:
        logger.warning("%s does not belong to the checkpoint: minibatches are drawn anew.", path)
    return None


def _parse(path: Path) -> dict[str, Any] | None:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return contents if isinstance(contents, dict) else None
