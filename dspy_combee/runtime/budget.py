"""What a run may spend, what it has spent, and the meter that stops it in time.

How DSPy's calls are observed is decided in `lm_watch`; this file only counts and compares.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dspy_combee.errors import BudgetExhausted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, for models that the price map does not know. Zero is a price: the calls are free."""

    input_usd_per_million_tokens: float
    output_usd_per_million_tokens: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.input_usd_per_million_tokens, self.output_usd_per_million_tokens) < 0:
            raise ValueError(f"a price must not be negative, got {self}")

    def cost_usd(self, *, input_tokens: int, output_tokens: int) -> float:
        """Return the price of one call."""
        return (
            input_tokens * self.input_usd_per_million_tokens + output_tokens * self.output_usd_per_million_tokens
        ) / 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a run may spend; None is no limit. All calls of a run count, whichever model they go to."""

    max_metric_calls: int | None = None
    """Examples scored."""
    max_lm_calls: int | None = None
    """Calls that reach a model. Answers from DSPy's cache are free; failed calls are not."""
    max_tokens: int | None = None
    """Input and output tokens together. Known only after a call, so calls in flight may pass the limit."""
    max_cost_usd: float | None = None
    """Dollars by the price map. Known only after a call; calls without a known price are not in it."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by model name, as given to `dspy.LM`; they win over the price map."""

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("max_metric_calls", "max_lm_calls", "max_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{name} must be an int or None, got {value!r}")
        cost = self.max_cost_usd
        if cost is not None and (isinstance(cost, bool) or not isinstance(cost, (int, float))):
            raise TypeError(f"max_cost_usd must be a number or None, got {cost!r}")
        for name in ("max_metric_calls", "max_lm_calls", "max_tokens", "max_cost_usd"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive or None, got {value!r}")

    def within(self, other: Budget | None) -> Budget:
        """Return a budget that keeps both: the smaller of each limit, and the prices of both (own ones win)."""
        if other is None:
            return self
        smallest: dict[str, Any] = {}
        for name in ("max_metric_calls", "max_lm_calls", "max_tokens", "max_cost_usd"):
            limits = (getattr(self, name), getattr(other, name))
            smallest[name] = min((limit for limit in limits if limit is not None), default=None)
        return Budget(**smallest, prices={**other.prices, **self.prices})


@dataclass(frozen=True, slots=True)
class Spend:
    """What was spent. Records can be added and subtracted."""

    metric_calls: int = 0
    lm_calls: int = 0
    """Calls that reached a model, the failed ones included."""
    cached_calls: int = 0
    """Calls that DSPy's cache answered; they are in no other number."""
    failed_calls: int = 0
    """How many of `lm_calls` raised."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Of the calls whose price is known."""
    calls_without_usage: int = 0
    """Successful calls for which the provider reported no tokens."""
    calls_without_price: int = 0
    """Successful calls whose price is not known. Unless this is 0, `cost_usd` is a lower bound."""
    seconds: float = field(default=0.0, compare=False)
    """Time of all calls that reached a model, added up; with calls at once more than the time on the wall."""

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spend) -> Spend:
        """Return both together."""
        return Spend(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Spend)))

    def __sub__(self, other: Spend) -> Spend:
        """Return what was spent since `other`."""
        return Spend(*(getattr(self, item.name) - getattr(other, item.name) for item in fields(Spend)))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `total_tokens`, ready for JSON."""
        return {**{item.name: getattr(self, item.name) for item in fields(Spend)}, "total_tokens": self.total_tokens}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spend:
        """Return the record that `to_dict` wrote; names that it does not know are left out."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What one finished call of a model took."""

    model: str
    stage: str
    was_cached: bool = False
    has_failed: bool = False
    seconds: float = 0.0
    """Wall time of this call."""
    input_tokens: int | None = None
    """None when the provider did not say."""
    output_tokens: int | None = None
    cost_usd: float | None = None
    """By the price map; None when it does not know."""


class Meter:
    """Counts what is spent inside `with meter.installed()` and refuses the call that the budget does not allow.

    Safe to use from several threads. Meters nest: a call counts for every meter around it. Calls are seen wherever
    DSPy's settings reach: settings.lm, a predictor's own lm, a reflection model, `dspy.Parallel`, `dspy.Evaluate`,
    `ThreadExecutor`, async. They are not seen in a bare thread without the caller's context, nor where a program
    replaces `callbacks` in a `dspy.context` of its own.
    """

    def __init__(self, budget: Budget | None = None, *, already_spent: Spend | None = None) -> None:
        """Start counting.

        Args:
            budget: The limits; None for none.
            already_spent: What earlier parts of the same run spent; it counts, under the stage "earlier".
        """
        self.budget = budget if budget is not None else Budget()
        self.stage_outside = ""
        """The stage of what is spent outside of any `stage` block. May be changed while the run goes on."""
        self._lock = threading.Lock()
        self._in_flight = 0
        earlier = already_spent or Spend()
        self._by_stage: dict[str, Spend] = {} if earlier == Spend() else {"earlier": earlier}
        self._unpriced_models: set[str] = set()

    @property
    def spend(self) -> Spend:
        """What was spent so far; calls in flight are not in it."""
        with self._lock:
            return self._total()

    @property
    def spend_by_stage(self) -> dict[str, Spend]:
        """What was spent in each stage; calls outside of any are under `stage_outside` as it was then."""
        with self._lock:
            return dict(self._by_stage)

    @property
    def remaining_metric_calls(self) -> int | None:
        """How many examples may still be scored; None when there is no limit."""
        if self.budget.max_metric_calls is None:
            return None
        return max(0, self.budget.max_metric_calls - self.spend.metric_calls)

    @contextmanager
    def installed(self) -> Iterator[Meter]:
        """Count every call made inside the block, in whichever thread, and refuse those beyond the budget."""
        import dspy

        from dspy_combee.runtime.lm_watch import with_watch

        with dspy.context(callbacks=with_watch(dspy.settings.callbacks, self)):
            yield self

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Attribute what is spent inside the block, in whichever thread, to a stage; the innermost one counts."""
        from dspy_combee.runtime.lm_watch import stage_context

        with stage_context(name):
            yield

    def count_metric_calls(self, count: int = 1) -> None:
        """Count examples that were scored. Call it after scoring: a judge's calls inside must not be refused."""
        from dspy_combee.runtime.lm_watch import current_stage

        with self._lock:
            self._add(current_stage(), Spend(metric_calls=count))

    def check(self) -> None:
        """Refuse to go on when a limit is reached.

        Raises:
            BudgetExhausted: When no further call of a model may start.
        """
        with self._lock:
            self._check()

    def reserve(self) -> None:
        """Take note that a call is about to start, or refuse it. Every reservation is followed by one `settle`.

        Raises:
            BudgetExhausted: When the budget does not allow the call; nothing is reserved then.
        """
        with self._lock:
            self._check()
            self._in_flight += 1

    def affords_extra_call(self, times: float = 1.0) -> bool:
        """Whether no limit would be passed if one more call were made and all in flight ended.

        Each of them is taken to need so many times the tokens and dollars that a call of the dearest stage so far
        needed on average.
        """
        with self._lock:
            total, calls = self._total(), self._in_flight + 1
            stages = [spend for spend in self._by_stage.values() if spend.lm_calls]
            tokens = max((spend.total_tokens / spend.lm_calls for spend in stages), default=0.0)
            cost_usd = max((spend.cost_usd / spend.lm_calls for spend in stages), default=0.0)
        return all(
            limit is None or amount <= limit
            for limit, amount in (
                (self.budget.max_lm_calls, total.lm_calls + calls),
                (self.budget.max_tokens, total.total_tokens + calls * times * tokens),
                (self.budget.max_cost_usd, total.cost_usd + calls * times * cost_usd),
            )
        )

    def settle(self, record: CallRecord | None) -> None:
        """Count a reserved call that has ended; None when it never started."""
        with self._lock:
            self._in_flight -= 1
            if record is None:
                return
            spend, is_unpriced = self._spend_of(record)
            self._add(record.stage, spend)
            is_news = is_unpriced and record.model not in self._unpriced_models
            self._unpriced_models.update({record.model} if is_news else ())
        if is_news and self.budget.max_cost_usd is not None:
            logger.warning(
                "No price is known for %s: its calls are not counted against max_cost_usd=%g. Give one in "
                "Budget(prices={...}), or set max_lm_calls or max_tokens.",
                record.model,
                self.budget.max_cost_usd,
            )

    def _check(self) -> None:
        total = self._total()
        # A call in flight may turn out to be cached; it counts until that is known, so the limit is never passed.
        spent = replace(total, lm_calls=total.lm_calls + self._in_flight)
        for name, limit, amount in (
            ("max_lm_calls", self.budget.max_lm_calls, spent.lm_calls),
            ("max_tokens", self.budget.max_tokens, spent.total_tokens),
            ("max_cost_usd", self.budget.max_cost_usd, spent.cost_usd),
            ("max_metric_calls", self.budget.max_metric_calls, spent.metric_calls),
        ):
            if limit is not None and amount >= limit:
                raise BudgetExhausted(name, limit=limit, spent=amount)

    def _total(self) -> Spend:
        return sum(self._by_stage.values(), Spend())

    def _add(self, stage: str, spend: Spend) -> None:
        name = stage or self.stage_outside
        self._by_stage[name] = self._by_stage.get(name, Spend()) + spend

    def _spend_of(self, record: CallRecord) -> tuple[Spend, bool]:
        """Return what a call took, and whether it should have a price but has none."""
        if record.was_cached:
            return Spend(cached_calls=1), False
        has_usage = record.input_tokens is not None or record.output_tokens is not None
        inputs, outputs = record.input_tokens or 0, record.output_tokens or 0
        price = self.budget.prices.get(record.model)
        cost = record.cost_usd
        if price is not None and has_usage:
            cost = price.cost_usd(input_tokens=inputs, output_tokens=outputs)
        # A failed call is rarely billed, so it lacks neither usage nor price.
        is_unpriced = cost is None and (has_usage or not record.has_failed)
        spend = Spend(
            lm_calls=1,
            failed_calls=int(record.has_failed),
            input_tokens=inputs,
            output_tokens=outputs,
            cost_usd=cost or 0.0,
            calls_without_usage=int(not has_usage and not record.has_failed),
            calls_without_price=int(is_unpriced),
            seconds=record.seconds,
        )
        return spend, is_unpriced
