"""Retry and timeout policies as a program writes them, and as they travel.

Durations are seconds (`float` or `int`) or `timedelta`. What is left out is left to the next
source: the call, the operator's override, the code's declaration, the server's default.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from google.protobuf import duration_pb2

from tenure import check, errors
from tenure.v1 import policy_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

Seconds: TypeAlias = float | datetime.timedelta
Backoff: TypeAlias = Literal["exponential", "linear", "fixed"]
Found = TypeVar("Found")
TimeoutAction: TypeAlias = Literal["retry", "time_out", "alert"]

_BACKOFFS: dict[str, policy_pb2.BackoffKind.ValueType] = {
    "exponential": policy_pb2.BACKOFF_KIND_EXPONENTIAL,
    "linear": policy_pb2.BACKOFF_KIND_LINEAR,
    "fixed": policy_pb2.BACKOFF_KIND_FIXED,
}
_BACKOFF_NAMES = {value: name for name, value in _BACKOFFS.items()}
_ACTIONS: dict[str, policy_pb2.TimeoutAction.ValueType] = {
    "retry": policy_pb2.TIMEOUT_ACTION_RETRY,
    "time_out": policy_pb2.TIMEOUT_ACTION_TIME_OUT_WF,
    "alert": policy_pb2.TIMEOUT_ACTION_ALERT_ONLY,
}
_ACTION_NAMES = {value: name for name, value in _ACTIONS.items()}
_LIMITS = ("schedule_to_start", "start_to_close", "heartbeat", "total")


@dataclasses.dataclass(frozen=True, slots=True)
class Retry:
    """Retry says whether and when a failed task is attempted again; None: nothing said.

    Attributes:
        max_attempts: Attempts in all, the first one included: 1 to 1,000. The server's default: 3.
        initial_delay: Delay after the first failed attempt, 0 s to 365 days. By default 1 s.
        max_delay: Cap of the delay, before and after jitter, 0 s to 365 days. By default 60 s, and
            no less than an `initial_delay` that stands without it.
        backoff: How the delay grows. By default `exponential`.
        multiplier: Factor of the exponential backoff: 1 to 100. By default 2.
        jitter: Share of the delay that is random, 0 to 1. By default 0.2.
        unless: Exceptions that end the task at once: classes (subclasses count too, on the worker
            that runs this code) or names of failure types (compared exactly, anywhere).

    Raises:
        WrongType, WrongValue: a field that no server would take, or two that contradict each other.
    """

    max_attempts: int | None = None
    _: dataclasses.KW_ONLY
    initial_delay: Seconds | None = None
    max_delay: Seconds | None = None
    backoff: Backoff | None = None
    multiplier: float | None = None
    jitter: float | None = None
    unless: Iterable[type[BaseException] | str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unless", _unless(self.unless))
        if self.max_attempts is not None:
            check.whole(self.max_attempts, "Retry: max_attempts", 1, 1_000)
        for name in ("initial_delay", "max_delay"):
            if getattr(self, name) is not None:
                check.seconds(getattr(self, name), f"Retry: {name}", check.RETRY_SECONDS_MAX)
        if self.initial_delay is not None and self.max_delay is not None:
            first, most = check.seconds(self.initial_delay, ""), check.seconds(self.max_delay, "")
            if first > most:
                raise errors.WrongValue(
                    f"Retry: initial_delay of {first:g} s is above max_delay of {most:g} s"
                )
        if self.multiplier is not None:
            check.number(self.multiplier, "Retry: multiplier", 1, 100)
        if self.jitter is not None:
            check.number(self.jitter, "Retry: jitter", 0, 1)
        if self.backoff is not None:
            check.choice(self.backoff, "Retry: backoff", _BACKOFFS)

    @property
    def unless_classes(self) -> tuple[type[BaseException], ...]:
        """The classes among `unless`, for isinstance."""
        return tuple(entry for entry in self.unless if isinstance(entry, type))

    def to_proto(self) -> policy_pb2.RetryPolicy:
        """Returns the message; what is None stays unset."""
        message = policy_pb2.RetryPolicy(
            non_retryable_types=[
                entry.__name__ if isinstance(entry, type) else entry for entry in self.unless
            ]
        )
        if self.max_attempts is not None:
            message.max_attempts = self.max_attempts
        if self.backoff is not None:
            message.backoff = _BACKOFFS[self.backoff]
        if self.initial_delay is not None:
            message.initial_delay.CopyFrom(duration(self.initial_delay, "initial_delay"))
        if self.max_delay is not None:
            message.max_delay.CopyFrom(duration(self.max_delay, "max_delay"))
        if self.multiplier is not None:
            message.multiplier = self.multiplier
        if self.jitter is not None:
            message.jitter = self.jitter
        return message


@dataclasses.dataclass(frozen=True, slots=True)
class Timeout:
    """Timeout is one limit and what happens at it.

    Attributes:
        after: Time allowed, above 0 and at most 10 years.
        then: `retry` spends the attempt and lets the retry policy decide, `time_out` ends the task
            as TIMED_OUT, `alert` only counts, logs and shows it.

    Raises:
        WrongType, WrongValue: another time, or another word.
    """

    after: Seconds
    then: TimeoutAction = "retry"

    def __post_init__(self) -> None:
        check.seconds(self.after, "Timeout: after", above_zero=True)
        check.choice(self.then, "Timeout: then", _ACTIONS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts is the set of a task's limits; None: no limit.

    A plain time spends the attempt when it is over, and for `total` ends the task; `Timeout` says
    something else.

    Attributes:
        schedule_to_start: From being ready to run until the handler starts.
        start_to_close: From the handler's start until its result, for each attempt.
        heartbeat: Between two `heartbeat()` calls of the handler, or since its start.
        total: From enqueueing until the task is over; ends it as TIMED_OUT unless said otherwise.

    Raises:
        WrongType, WrongValue: a time of 0 or less or above 10 years, or above `total`.
    """

    schedule_to_start: Seconds | Timeout | None = None
    start_to_close: Seconds | Timeout | None = None
    heartbeat: Seconds | Timeout | None = None
    total: Seconds | Timeout | None = None

    def __post_init__(self) -> None:
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is not None and not isinstance(limit, Timeout):
                check.seconds(limit, f"Timeouts: {name}", above_zero=True)
        if self.total is None or (isinstance(self.total, Timeout) and self.total.then == "alert"):
            return
        for name in ("schedule_to_start", "start_to_close", "heartbeat"):
            limit = getattr(self, name)
            if limit is not None and _after(limit) > _after(self.total):
                raise errors.WrongValue(
                    f"Timeouts: {name} of {_after(limit):g} s is above total of"
                    f" {_after(self.total):g} s, which ends the task first"
                )

    def to_proto(self) -> policy_pb2.TimeoutPolicy:
        """Returns the message; what is None stays unset."""
        message = policy_pb2.TimeoutPolicy()
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is None:
                continue
            if not isinstance(limit, Timeout):
                limit = Timeout(limit, "time_out" if name == "total" else "retry")
            getattr(message, name).after.CopyFrom(duration(limit.after, name))
            getattr(message, name).action = _ACTIONS[limit.then]
        return message


def check_policy(retry: object, timeout: object) -> None:
    """Checks what `retry=` and `timeout=` were given, before anything is made of it.

    Raises:
        WrongType: no Retry; no time or Timeouts.
        WrongValue: a time of 0 or less, or of more than 10 years.
    """
    if retry is not None:
        check.kind(retry, "retry", Retry, "Retry(3)")
    if timeout is not None and not isinstance(timeout, Timeouts):
        if isinstance(timeout, Timeout):
            raise check.wrong_type("timeout", "a time or Timeouts(start_to_close=...)", timeout)
        check.seconds(timeout, "timeout", above_zero=True)


def to_proto(
    retry: Retry | None, timeout: Seconds | Timeouts | None
) -> policy_pb2.TaskPolicy | None:
    """Returns the policy, or None if neither part says anything.

    A plain number for `timeout` limits each attempt from the handler's start.
    """
    if retry is None and timeout is None:
        return None
    message = policy_pb2.TaskPolicy()
    if retry is not None:
        message.retry.CopyFrom(retry.to_proto())
    if timeout is not None:
        limits = timeout if isinstance(timeout, Timeouts) else Timeouts(start_to_close=timeout)
        message.timeouts.CopyFrom(limits.to_proto())
    return message


def retry_from_proto(message: policy_pb2.RetryPolicy) -> Retry:
    """Reads a retry policy; unset fields are None, delays are seconds."""
    return _as_found(
        Retry,
        max_attempts=message.max_attempts if message.HasField("max_attempts") else None,
        initial_delay=_seconds(message.initial_delay)
        if message.HasField("initial_delay")
        else None,
        max_delay=_seconds(message.max_delay) if message.HasField("max_delay") else None,
        backoff=cast("Backoff | None", _BACKOFF_NAMES.get(message.backoff)),
        multiplier=message.multiplier if message.HasField("multiplier") else None,
        jitter=message.jitter if message.HasField("jitter") else None,
        unless=tuple(message.non_retryable_types),
    )


def timeouts_from_proto(message: policy_pb2.TimeoutPolicy) -> Timeouts:
    """Reads the limits; a limit of 0 is none."""

    def read(limit: policy_pb2.Timeout) -> Timeout | None:
        after = _seconds(limit.after)
        action = cast("TimeoutAction", _ACTION_NAMES.get(limit.action, "retry"))
        return Timeout(after, action) if after else None

    return _as_found(
        Timeouts,
        schedule_to_start=read(message.schedule_to_start),
        start_to_close=read(message.start_to_close),
        heartbeat=read(message.heartbeat),
        total=read(message.total),
    )


def duration(value: Seconds, name: str, high: float = check.SECONDS_MAX) -> duration_pb2.Duration:
    """Returns seconds or a timedelta as a message.

    Raises:
        WrongType: neither a number nor a timedelta.
        WrongValue: negative, not finite, or longer than `high` seconds.
    """
    seconds = check.seconds(value, name, high)
    whole = int(seconds)
    nanos = round((seconds - whole) * 1e9)
    if nanos == 1_000_000_000:
        whole, nanos = whole + 1, 0
    return duration_pb2.Duration(seconds=whole, nanos=nanos)


def _as_found(kind: type[Found], **fields: object) -> Found:
    """Makes what a server holds, unchecked: put together from several sources, it may be odd."""
    found = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found


def _after(limit: Seconds | Timeout) -> float:
    return check.seconds(limit.after if isinstance(limit, Timeout) else limit, "")


def _seconds(message: duration_pb2.Duration) -> float:
    return message.seconds + message.nanos / 1e9


def _unless(entries: object) -> tuple[type[BaseException] | str, ...]:
    expected = "a list of exception classes and names of failure types"
    if isinstance(entries, str | type) or not hasattr(entries, "__iter__"):
        raise check.wrong_type("Retry: unless", f"{expected}, such as [ValueError]", entries)
    found = tuple(cast("Iterable[type[BaseException] | str]", entries))
    for entry in found:
        named = isinstance(entry, str) and entry
        if not named and not (isinstance(entry, type) and issubclass(entry, BaseException)):
            raise check.wrong_type("Retry: unless", expected, entry)
    return found
