"""Task policies between the wire and the engine."""

import dataclasses
from datetime import timedelta
from typing import Any, Final

from tenure.v1 import policy_pb2 as policy
from tenure_service.engine import limits
from tenure_service.engine.policy import (
    Backoff,
    PartialPolicy,
    Policy,
    Timeout,
    TimeoutAction,
    TimeoutKind,
)
from tenure_service.rpc.check import Check

_BACKOFFS = {
    policy.BACKOFF_KIND_FIXED: Backoff.FIXED,
    policy.BACKOFF_KIND_LINEAR: Backoff.LINEAR,
    policy.BACKOFF_KIND_EXPONENTIAL: Backoff.EXPONENTIAL,
}
_KINDS = {backoff: kind for kind, backoff in _BACKOFFS.items()}
_ACTIONS: Final = {
    policy.TIMEOUT_ACTION_UNSPECIFIED: TimeoutAction.RETRY,
    policy.TIMEOUT_ACTION_RETRY: TimeoutAction.RETRY,
    policy.TIMEOUT_ACTION_TIME_OUT_WF: TimeoutAction.TIME_OUT,
    policy.TIMEOUT_ACTION_ALERT_ONLY: TimeoutAction.ALERT_ONLY,
}
_ACTION_KINDS: Final = {
    TimeoutAction.RETRY: policy.TIMEOUT_ACTION_RETRY,
    TimeoutAction.TIME_OUT: policy.TIMEOUT_ACTION_TIME_OUT_WF,
    TimeoutAction.ALERT_ONLY: policy.TIMEOUT_ACTION_ALERT_ONLY,
}


def read(check: Check, path: str, message: policy.TaskPolicy) -> PartialPolicy | None:
    """Reads what one source says; None if it says nothing."""
    said_timeouts = _timeouts(check, f"{path}.timeouts", message.timeouts)
    if not message.HasField("retry"):
        return dataclasses.replace(PartialPolicy(), **said_timeouts) if said_timeouts else None
    retry = message.retry
    prefix = f"{path}.retry"
    backoff = None
    if retry.backoff != policy.BACKOFF_KIND_UNSPECIFIED:
        backoff = _BACKOFFS.get(retry.backoff)
        if backoff is None:
            check.wrong(f"{prefix}.backoff", f"is {retry.backoff}, which this server does not know")
    said = PartialPolicy(
        max_attempts=check.number(
            f"{prefix}.max_attempts", retry.max_attempts, 1, limits.MAX_ATTEMPTS_MAX
        )
        if retry.HasField("max_attempts")
        else None,
        backoff=backoff,
        initial_delay_ms=check.duration_ms(
            f"{prefix}.initial_delay", retry.initial_delay, high=limits.RETRY_DELAY_MAX
        )
        if retry.HasField("initial_delay")
        else None,
        multiplier=_share(check, f"{prefix}.multiplier", retry.multiplier, 1, limits.MULTIPLIER_MAX)
        if retry.HasField("multiplier")
        else None,
        max_delay_ms=check.duration_ms(
            f"{prefix}.max_delay", retry.max_delay, high=limits.RETRY_DELAY_MAX
        )
        if retry.HasField("max_delay")
        else None,
        jitter=_share(check, f"{prefix}.jitter", retry.jitter, 0, 1)
        if retry.HasField("jitter")
        else None,
        non_retryable_types=_types(check, prefix, retry),
    )
    first, most = said.initial_delay_ms, said.max_delay_ms
    if first is not None and most is not None and first > most:
        check.wrong(f"{prefix}.max_delay", f"is below initial_delay, {first / 1000:g} s")
    return dataclasses.replace(said, **said_timeouts)


def _timeouts(check: Check, path: str, message: policy.TimeoutPolicy) -> dict[str, Any]:
    """Reads the limits that are said; one of 0 says that there is none."""
    said: dict[str, Any] = {}
    for kind in TimeoutKind:
        if not message.HasField(kind.value):
            continue
        timeout: policy.Timeout = getattr(message, kind)
        field = f"{path}.{kind}"
        after_ms = check.duration_ms(f"{field}.after", timeout.after, high=limits.RETRY_DELAY_MAX)
        action = _ACTIONS.get(timeout.action)
        if action is None:
            check.wrong(f"{field}.action", f"is {timeout.action}, which this server does not know")
        else:
            said[kind] = Timeout(after_ms or None, action)
    return said


def _types(check: Check, prefix: str, retry: policy.RetryPolicy) -> tuple[str, ...] | None:
    if not retry.non_retryable_types:
        return None
    field = f"{prefix}.non_retryable_types"
    check.count(field, retry.non_retryable_types, limits.NON_RETRYABLE_COUNT_MAX)
    return tuple(
        check.text(field, name, limits.FAILURE_TYPE_BYTES_MAX, required=True)
        for name in retry.non_retryable_types
    )


def _share(check: Check, field: str, value: float, low: float, high: float) -> float:
    # The comparison is false for NaN too.
    if not low <= value <= high:
        check.wrong(field, f"is {value:g}, must be {low:g} to {high:g}")
        return low
    return value


def write_partial(partial: PartialPolicy) -> policy.TaskPolicy:
    """Gives what one source says; unset fields stay unset."""
    message = policy.TaskPolicy()
    retry = message.retry
    retry.SetInParent()
    if partial.max_attempts is not None:
        retry.max_attempts = partial.max_attempts
    if partial.backoff is not None:
        retry.backoff = _KINDS[partial.backoff]
    if partial.initial_delay_ms is not None:
        retry.initial_delay.FromTimedelta(timedelta(milliseconds=partial.initial_delay_ms))
    if partial.multiplier is not None:
        retry.multiplier = partial.multiplier
    if partial.max_delay_ms is not None:
        retry.max_delay.FromTimedelta(timedelta(milliseconds=partial.max_delay_ms))
    if partial.jitter is not None:
        retry.jitter = partial.jitter
    retry.non_retryable_types.extend(partial.non_retryable_types or ())
    for kind in TimeoutKind:
        timeout: Timeout | None = getattr(partial, kind)
        if timeout is not None:
            limit: policy.Timeout = getattr(message.timeouts, kind)
            limit.action = _ACTION_KINDS[timeout.action]
            if timeout.after_ms is not None:
                limit.after.FromMilliseconds(timeout.after_ms)
    return message


def write(complete: Policy) -> policy.TaskPolicy:
    """Gives a complete policy."""
    return write_partial(PartialPolicy.from_json(complete.to_json()))
