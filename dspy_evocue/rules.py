"""When an edit acts: a conjunction of at most two equality tests on features of the state before it (EvoCUE).

A rule never names a task: features are typed and categorical (phase, draft validity, progress, ...), so that what was
learned on one task carries over to others. `fit_rule` looks at every such rule and takes the one with the largest
objective `J = coverage x mean gain - penalty x tests`. This file is pure: it knows neither dspy nor a model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

MAX_TESTS = 2
"""The most equality tests that one rule may hold."""

TrialStatus = Literal["unreached", "skipped", "failed_attempt", "applied", "unresolved"]
"""What became of the edit in a trial: its place was never entered, its rule was false there, it was tried and failed,
it acted, or the trial says nothing (the checkpoint was lost, the provider was down)."""

TrialKind = Literal["matched_prefix", "task_start"]
"""Whether both arms began at the same checkpoint, or at the start of the task."""

MINIMUM_TASKS = 3
"""A rule that covers fewer tasks is not considered, unless asked for otherwise."""


@dataclass(frozen=True, slots=True, order=True)
class FeatureTest:
    """One equality test: the feature has exactly this value."""

    feature: str
    """The name of the feature, never empty."""
    value: str
    """The value it must have."""

    def __post_init__(self) -> None:
        if not isinstance(self.feature, str) or not self.feature:
            raise ValueError(f"a feature's name must be a non-empty string, got {self.feature!r}")
        if not isinstance(self.value, str):
            raise TypeError(f"the value of feature {self.feature!r} must be a string, got {self.value!r}")

    def holds(self, features: Mapping[str, str]) -> bool:
        """Say whether the state has this value; a missing feature makes the test false."""
        return features.get(self.feature) == self.value

    def __str__(self) -> str:
        return f"{self.feature} is {self.value}"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A conjunction of at most two tests on distinct features; `Rule()` has none and always holds.

    The tests are kept in the order of their features' names, so that equal rules are equal however they were written.

    Example:
        ```python
        Rule.of(phase="late", draft="invalid").holds({"phase": "late", "draft": "invalid"})  # True
        ```
    """

    tests: tuple[FeatureTest, ...] = ()

    def __post_init__(self) -> None:
        tests = tuple(sorted(self.tests))
        if len(tests) > MAX_TESTS:
            raise ValueError(f"a rule must have at most {MAX_TESTS} tests, got {len(tests)}")
        if len({test.feature for test in tests}) < len(tests):
            raise ValueError(f"a rule must test each feature once, got {tests[0].feature!r} twice")
        object.__setattr__(self, "tests", tests)

    @classmethod
    def of(cls, **values: str) -> Rule:
        """Return the rule that asks for each of these feature values: `Rule.of(phase="late")`."""
        return cls(tuple(FeatureTest(feature, value) for feature, value in values.items()))

    def holds(self, features: Mapping[str, str]) -> bool:
        """Say whether every test holds in a state with these features."""
        return all(test.holds(features) for test in self.tests)

    def __len__(self) -> int:
        """Return the number of tests."""
        return len(self.tests)

    def __bool__(self) -> bool:
        """Return True: the empty rule is a rule like any other, and "no rule" is `None`."""
        return True

    def __str__(self) -> str:
        return " and ".join(str(test) for test in self.tests) or "always"

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain JSON values; `from_dict` reads it back."""
        return {"tests": [{"feature": test.feature, "value": test.value} for test in self.tests]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rule:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: When a part is missing, or the tests are not those of a rule.
        """
        try:
            return cls(tuple(FeatureTest(test["feature"], test["value"]) for test in values["tests"]))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f'a rule must read {{"tests": [{{"feature": ..., "value": ...}}]}}, got {values!r}'
            ) from error


@dataclass(frozen=True, slots=True)
class RuleEvidence:
    """What one paired trial says to the rule: two scores, and the state before the edit acted."""

    task_id: str
    """Which task was run; several trials of one task count as one task."""
    before: float | None
    """The score of the parent program; None when it could not be had. Missing is not zero."""
    after: float | None
    """The score of the edited program; None when it could not be had."""
    features: Mapping[str, str] = field(default_factory=dict[str, str])
    """Feature values before the edit acted. Ignored for a trial that began at the task's start."""
    status: TrialStatus = "applied"
    kind: TrialKind = "matched_prefix"
    behaviour_changed: bool = True
    """Whether any later call of the edited arm differs from the parent's."""

    def __post_init__(self) -> None:
        for name, score in (("before", self.before), ("after", self.after)):
            if score is not None and not math.isfinite(score):
                raise ValueError(f"{name} of task {self.task_id!r} must be a finite score or None, got {score!r}")

    @property
    def gain(self) -> float | None:
        """The paired difference, after - before; None when either score is missing."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_usable(self) -> bool:
        """Whether a rule may rest on it: both scores, and an edit that changed behaviour or a scored failed attempt."""
        acted = self.status == "failed_attempt" or (self.status == "applied" and self.behaviour_changed)
        return acted and self.gain is not None


@dataclass(frozen=True, slots=True)
class EnteredState:
    """A state in which an edit acted, and whether anything came of it there."""

    features: Mapping[str, str]
    changed: bool
    """Whether the program was left with anything else than without it: False where it only cost its calls."""


@dataclass(frozen=True, slots=True)
class FittedRule:
    """The best rule for an edit, and the evidence that it rests on."""

    rule: Rule
    objective: float
    """J: the sum over covered tasks of the task's mean gain, divided by all tasks, minus the penalty for the tests."""
    required: float
    """What the objective must exceed: the penalty for the edit's own length."""
    tasks: int
    """Tasks with usable rows, covered or not."""
    covered_tasks: int
    """Tasks with a usable row where the rule holds."""
    rows: int
    """Usable rows."""
    covered_rows: int
    """Usable rows where the rule holds."""
    mean_gain: float
    """Mean over the covered tasks of the task's mean gain."""
    better: int
    """Covered tasks whose mean gain is positive."""
    worse: int
    """Covered tasks whose mean gain is negative."""

    @property
    def passes(self) -> bool:
        """Whether the edit with this rule is worth compiling; confirmation on other tasks still decides."""
        return self.objective > self.required

    @property
    def coverage(self) -> float:
        """The share of tasks that the rule covers."""
        return self.covered_tasks / self.tasks

    @property
    def equal(self) -> int:
        """Covered tasks whose mean gain is zero."""
        return self.covered_tasks - self.better - self.worse

    def __str__(self) -> str:
        counts = f"{self.better} better, {self.worse} worse, {self.equal} equal of {self.covered_tasks} tasks"
        return f"when {self.rule}: mean gain {self.mean_gain:+.3f} ({counts}; J = {self.objective:.4f})"


def fit_rule(
    records: Iterable[RuleEvidence],
    *,
    features: Sequence[str],
    penalty: float = 1e-3,
    minimum_tasks: int = MINIMUM_TASKS,
    edit_length: int = 1,
    given: Rule | None = None,
) -> FittedRule | None:
    """Return the rule with the largest objective among all rules of at most two tests on `features`.

    Equal objectives go to the rule with fewer tests, then more tasks, then the first in the order of names and values.

    Args:
        records: Trials of one edit. Those that are not usable are left out, on both sides of every ratio.
        features: The names that a rule may test. Task ids are no features.
        penalty: Lambda, paid once a test and once a unit of `edit_length`.
        minimum_tasks: A rule that covers fewer tasks is not considered: on noise, some rule covering one lucky task
            nearly always looks good.
        edit_length: The number of the edit's operations: 1 for an instruction, 1 to 6 for a skill.
        given: The rule under which the edit was tried; every rule that is looked at has its tests too. None for the
            empty one.

    Returns:
        The best rule, whether it passes or not (ask `passes`), or None when no rule covers enough tasks.

    Raises:
        ValueError: When `penalty` or `edit_length` is negative, `minimum_tasks` is below 1, or a feature comes twice.
    """
    _check_settings(features, penalty, minimum_tasks, edit_length)
    usable = [record for record in records if record.is_usable]
    tasks = len({record.task_id for record in usable})
    best: FittedRule | None = None
    for rule, covered in _rules_with_their_rows(usable, sorted(features), given or Rule()):
        gains = _gain_by_task(covered)
        if len(gains) < minimum_tasks:
            continue
        total = math.fsum(gains.values())
        candidate = FittedRule(
            rule=rule,
            objective=total / tasks - penalty * len(rule),
            required=penalty * edit_length,
            tasks=tasks,
            covered_tasks=len(gains),
            rows=len(usable),
            covered_rows=len(covered),
            mean_gain=total / len(gains),
            better=sum(gain > 0 for gain in gains.values()),
            worse=sum(gain < 0 for gain in gains.values()),
        )
        if best is None or _preference(candidate) < _preference(best):
            best = candidate
    return best


def narrow_rule(rule: Rule, states: Sequence[EnteredState]) -> Rule:
    """Return the rule with further tests that spare an edit the states in which it did nothing.

    Scores cannot tell such states from others: acting there costs calls and changes nothing. Every state in which
    something came of the edit stays covered. Of the rules that leave the fewest idle states the one with the fewest
    tests is taken, then the first in the order of names.

    Args:
        rule: Under which the edit is worth having.
        states: Those in which it acted.
    """
    covered = [state for state in states if rule.holds(state.features)]
    idle = [state.features for state in covered if not state.changed]
    effective = [state.features for state in covered if state.changed]
    if not effective:
        return rule
    tested = {test.feature for test in rule.tests}
    common = [
        FeatureTest(name, value)
        for name, value in sorted(effective[0].items())
        if name not in tested and all(state.get(name) == value for state in effective)
    ]
    candidates = [
        Rule((*rule.tests, *more)) for size in range(MAX_TESTS + 1 - len(rule)) for more in combinations(common, size)
    ]
    return min(candidates, key=lambda one: sum(one.holds(state) for state in idle))


def _check_settings(features: Sequence[str], penalty: float, minimum_tasks: int, edit_length: int) -> None:
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ValueError(f"penalty must be a number of at least 0, got {penalty!r}")
    if minimum_tasks < 1:
        raise ValueError(f"minimum_tasks must be at least 1, got {minimum_tasks!r}")
    if edit_length < 0:
        raise ValueError(f"edit_length must be at least 0, got {edit_length!r}")
    if isinstance(features, str) or len(set(features)) < len(features):
        raise ValueError(f"features must be distinct names, got {features!r}")


def _rules_with_their_rows(
    usable: Sequence[RuleEvidence], features: Sequence[str], given: Rule
) -> Iterator[tuple[Rule, Sequence[RuleEvidence]]]:
    """Yield every rule that covers a row, with its rows; a rule that covers none could never pass."""
    yield given, usable
    # A trial from the task's start has no state before the edit: it can justify no further test.
    matched = [record for record in usable if record.kind == "matched_prefix"]
    free = [name for name in features if name not in {test.feature for test in given.tests}]
    for size in range(1, MAX_TESTS + 1 - len(given)):
        for names in combinations(free, size):
            by_values: dict[tuple[str, ...], list[RuleEvidence]] = defaultdict(list)
            for record in matched:
                if all(name in record.features for name in names):
                    by_values[tuple(record.features[name] for name in names)].append(record)
            for values, rows in by_values.items():
                yield Rule((*given.tests, *map(FeatureTest, names, values))), rows


def _gain_by_task(rows: Sequence[RuleEvidence]) -> dict[str, float]:
    """Return each task's mean paired difference over its rows."""
    gains: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.gain is not None:
            gains[row.task_id].append(row.gain)
    return {task_id: math.fsum(values) / len(values) for task_id, values in gains.items()}


def _preference(fitted: FittedRule) -> tuple[float, int, int, Rule]:
    """Return the key by which the best rule comes first."""
    # Rounded, so that sums that differ in their last bit only are decided by the simpler rule, not by chance.
    return (-round(fitted.objective, 12), len(fitted.rule), -fitted.covered_tasks, fitted.rule)
