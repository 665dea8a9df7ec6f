"""Task policies between the wire and the engine."""

from datetime import timedelta
from typing import Final

from tenure.v1 import policy_pb2 as policy
from tenure_service.engine import limits
from tenure_service.engine.policy import Backoff, PartialPolicy, Policy
from tenure_service.rpc.check import Check

_BACKOFFS = {
    policy.BACKOFF_KIND_FIXED: Backoff.FIXED,
    policy.BACKOFF_KIND_LINEAR: Backoff.LINEAR,
    policy.BACKOFF_KIND_EXPONENTIAL: Backoff.EXPONENTIAL,
}
_KINDS = {backoff: kind for kind, backoff in _BACKOFFS.items()}
_TIMEOUTS: Final = ("schedule_to_start", "start_to_close", "heartbeat", "total")


def read(check: Check, path: str, message: policy.TaskPolicy) -> PartialPolicy | None:
    """Reads what one source says; None if it says nothing."""
    for name in _TIMEOUTS:
        if message.timeouts.HasField(name):
            after = getattr(message.timeouts, name).after
            if after.seconds or after.nanos:
                check.wrong(
                    f"{path}.timeouts.{name}",
                    "is not supported by this version of the server, which would not act on it",
                )
    if not message.HasField("retry"):
        return None
    retry = message.retry
    prefix = f"{path}.retry"
    backoff = None
    if retry.backoff != policy.BACKOFF_KIND_UNSPECIFIED:
        backoff = _BACKOFFS.get(retry.backoff)
        if backoff is None:
            check.wrong(f"{prefix}.backoff", f"is {retry.backoff}, which this server does not know")
    return PartialPolicy(
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
    return message


def write(complete: Policy) -> policy.TaskPolicy:
    """Gives a complete policy."""
    return write_partial(PartialPolicy.from_json(complete.to_json()))
