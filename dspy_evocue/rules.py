"""When an edit acts: a conjunction of at most two equality tests on features of the state before it (EvoCUE).

A rule never names a task: features are typed and categorical (phase, draft validity, progress, ...), so that what was
learned on one task carries over to others. This file is pure: it knows neither dspy nor a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_TESTS = 2
"""The most equality tests that one rule may hold."""


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
