"""What follows when a hand-out of a task ends without success.

Pure: `decide` is given the policy, the numbers and a random share, and answers with one of three
verdicts. Everything that ends hand-outs (reports, expiry, cancellation) asks here.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure_service.engine import limits
from tenure_service.engine.policy import Backoff, Policy, TimeoutAction, TimeoutKind


class DeadReason(StrEnum):
    """Why a task goes to the dead letters; equal to the enum dead_letter_reason in SQL."""

    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    NON_RETRYABLE = "NON_RETRYABLE"
    LEASE_LOST = "LEASE_LOST"


@dataclass(frozen=True, slots=True)
class Retry:
    """The task is attempted again after `delay_ms`; 0 means at once."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The task is over: a timeout ended it."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The task is over, and goes to the dead letters."""

    reason: DeadReason


def backoff_ms(policy: Policy, attempt: int, share: float) -> int:
    """Computes the delay after a failed attempt, in milliseconds.

    Args:
        policy: Of the task.
        attempt: The attempt that failed, from 1.
        share: Random, 0 to 1; 0.5 means the delay without jitter.

    Returns:
        0 to `max_delay_ms`: the cap holds before jitter and after it, so that jitter never
        lengthens a delay beyond what the policy promises.
    """
    initial = float(policy.initial_delay_ms)
    if policy.backoff is Backoff.FIXED:
        delay = initial
    elif policy.backoff is Backoff.LINEAR:
        delay = initial * attempt
    else:
        delay = initial * _power(policy.multiplier, attempt - 1)
    delay = min(delay, float(policy.max_delay_ms))
    delay *= 1 + policy.jitter * (2 * share - 1)
    return int(min(max(delay, 0.0), float(policy.max_delay_ms)))


def _power(multiplier: float, exponent: int) -> float:
    """Raises without overflow: 1e300 milliseconds are beyond every cap, and times 0 still 0."""
    try:
        return multiplier**exponent
    except OverflowError:
        return 1e300


def after_failure(
    policy: Policy,
    *,
    attempt: int,
    failure_type: str,
    non_retryable: bool,
    retry_after_ms: int | None,
    share: float,
) -> Retry | Dead:
    """Decides after a reported failure; `retry_after_ms` replaces the backoff, not the count."""
    if non_retryable or failure_type in policy.non_retryable_types:
        return Dead(DeadReason.NON_RETRYABLE)
    if attempt >= policy.max_attempts:
        return Dead(DeadReason.ATTEMPTS_EXHAUSTED)
    if retry_after_ms is not None:
        return Retry(retry_after_ms)
    return Retry(backoff_ms(policy, attempt, share))


def after_timeout(
    policy: Policy, kind: TimeoutKind, *, attempt: int, share: float
) -> Retry | Dead | TimedOut:
    """Decides after a timeout whose action is not to alert only; the attempt is spent.

    Nothing can follow on the total timeout. After the others the policy decides, unless the action
    says that the task is over.
    """
    found = policy.timeout(kind)
    over = found is not None and found.action is TimeoutAction.TIME_OUT
    if over or kind is TimeoutKind.TOTAL:
        return TimedOut()
    if attempt >= policy.max_attempts:
        return Dead(DeadReason.ATTEMPTS_EXHAUSTED)
    return Retry(backoff_ms(policy, attempt, share))


def after_loss(lost_count: int) -> Retry | Dead:
    """Decides after a lost hand-out, which spends no attempt.

    `lost_count` includes this loss. The first goes back at once; later ones wait longer and
    longer, so that a task which kills its worker does not empty the fleet.
    """
    if lost_count >= limits.MAX_LOST:
        return Dead(DeadReason.LEASE_LOST)
    return Retry(loss_delay_ms(lost_count))


def loss_delay_ms(lost_count: int) -> int:
    """Computes the delay after a lost hand-out, in milliseconds; `lost_count` includes it."""
    if lost_count <= 1:
        return int(limits.LOST_DELAY_FIRST.total_seconds() * 1000)
    # Larger exponents are beyond the cap, and would overflow.
    delay = limits.LOST_DELAY_NEXT * 2 ** min(lost_count - 2, 30)
    return int(min(delay, limits.LOST_DELAY_MAX).total_seconds() * 1000)
