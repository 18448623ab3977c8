"""How the numbers of a result are spelled for a reader: with their units, and honest where one is not known. Pure."""

from __future__ import annotations

import math

from dspy_combee.runtime.budget import Spend

NOT_KNOWN = "–"


def seconds_text(seconds: float | None) -> str:
    """Return a duration: milliseconds below a second, minutes from two minutes on."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_KNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def score_text(score: float | None) -> str:
    """Return a score with three decimals."""
    return NOT_KNOWN if score is None or not math.isfinite(score) else f"{score:.3f}"


def gain_text(gain: float | None) -> str:
    """Return a difference of scores with its sign."""
    return NOT_KNOWN if gain is None or not math.isfinite(gain) else f"{gain:+.3f}"


def count_text(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun, "1 round" or "12,000 rounds"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def cost_text(spend: Spend) -> str:
    """Return the dollars; where a price is not known it says so instead of counting it as nothing."""
    unpriced = spend.calls_without_price
    if not unpriced:
        return f"${spend.cost_usd:,.4f}"
    if spend.cost_usd == 0:
        return f"price not known ({count_text(unpriced, 'call')})"
    return f"at least ${spend.cost_usd:,.4f} ({count_text(unpriced, 'call')} without a known price)"


def tokens_text(spend: Spend) -> str:
    """Return the tokens; where a provider did not report them it says so."""
    text = f"{spend.input_tokens:,} in, {spend.output_tokens:,} out"
    missing = spend.calls_without_usage
    return f"{text} (not reported by {count_text(missing, 'call')})" if missing else text


def calls_text(spend: Spend) -> str:
    """Return the model calls, with the failed and the cached ones where there are any."""
    parts = [count_text(spend.lm_calls, "call")]
    if spend.failed_calls:
        parts.append(f"{spend.failed_calls:,} failed")
    if spend.cached_calls:
        parts.append(f"{spend.cached_calls:,} more from the cache")
    return ", ".join(parts)
