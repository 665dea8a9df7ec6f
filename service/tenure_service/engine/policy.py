"""Task policies: what a source says of retries, and what holds when all sources are put together.

A `PartialPolicy` is what one source says (the call, the operator, the code); unset means "ask the
next". A `Policy` is complete, is stored once for all tasks that share it, and never changes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tenure_service.engine import limits


class Backoff(StrEnum):
    """How the delay before the next attempt grows."""

    FIXED = "FIXED"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"


class TimeoutKind(StrEnum):
    """What a timeout limits; the names of the fields of both policies."""

    SCHEDULE_TO_START = "schedule_to_start"
    START_TO_CLOSE = "start_to_close"
    HEARTBEAT = "heartbeat"
    TOTAL = "total"


class TimeoutAction(StrEnum):
    """What a timeout does."""

    RETRY = "RETRY"
    TIME_OUT = "TIME_OUT"
    ALERT_ONLY = "ALERT_ONLY"


@dataclass(frozen=True, slots=True)
class Timeout:
    """One limit; None for `after_ms` means that there is none, whatever other sources say."""

    after_ms: int | None
    action: TimeoutAction = TimeoutAction.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialPolicy:
    """What one source says; None means that it says nothing."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    initial_delay_ms: int | None = None
    multiplier: float | None = None
    max_delay_ms: int | None = None
    jitter: float | None = None
    non_retryable_types: tuple[str, ...] | None = None
    schedule_to_start: Timeout | None = None
    start_to_close: Timeout | None = None
    heartbeat: Timeout | None = None
    total: Timeout | None = None

    def to_json(self) -> dict[str, Any]:
        """Gives what is said, without what is not."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> Self:
        """Reads what `to_json` gave; None reads as nothing said."""
        return cls(**_typed(body or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A complete policy: delays in milliseconds, jitter as a share of the delay."""

    max_attempts: int = limits.MAX_ATTEMPTS_DEFAULT
    backoff: Backoff = Backoff.EXPONENTIAL
    initial_delay_ms: int = int(limits.INITIAL_DELAY_DEFAULT.total_seconds() * 1000)
    multiplier: float = limits.MULTIPLIER_DEFAULT
    max_delay_ms: int = int(limits.MAX_DELAY_DEFAULT.total_seconds() * 1000)
    jitter: float = limits.JITTER_DEFAULT
    non_retryable_types: tuple[str, ...] = ()
    schedule_to_start: Timeout | None = None
    start_to_close: Timeout | None = None
    heartbeat: Timeout | None = None
    total: Timeout | None = None

    def timeout(self, kind: TimeoutKind) -> Timeout | None:
        """Gives a limit that is in force; None if there is none."""
        found: Timeout | None = getattr(self, kind)
        return found if found is not None and found.after_ms is not None else None

    def limit_ms(self, kind: TimeoutKind) -> int | None:
        """Gives the milliseconds of a limit; None if there is none."""
        found = self.timeout(kind)
        return None if found is None else found.after_ms

    def to_json(self) -> dict[str, Any]:
        """Gives the body that is stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Reads what `to_json` gave."""
        return cls(**_typed(body))

    def digest(self) -> bytes:
        """Names the policy by what it says: 32 bytes, equal for equal policies."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()


def resolve(*sources: PartialPolicy | None) -> Policy:
    """Puts sources together: for each field the first that says something, else the default.

    A cap of the delay that was said before the first delay, or by nobody, gives way to it: whoever
    asks for ten minutes is not to get one. One that goes before it holds.
    """
    said: dict[str, Any] = {}
    cap_least = 0
    for source in reversed(sources):
        words = {} if source is None else source.to_json()
        said.update(words)
        if "max_delay_ms" in words:
            cap_least = 0
        elif "initial_delay_ms" in words:
            cap_least = words["initial_delay_ms"]
    complete = Policy(**_typed(said))
    return replace(complete, max_delay_ms=max(complete.max_delay_ms, cap_least))


def _typed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Turns JSON's lists and strings into the types of the fields."""
    typed = dict(body)
    if typed.get("backoff") is not None:
        typed["backoff"] = Backoff(typed["backoff"])
    if typed.get("non_retryable_types") is not None:
        typed["non_retryable_types"] = tuple(typed["non_retryable_types"])
    for kind in TimeoutKind:
        said = typed.get(kind)
        if said is not None:
            typed[kind] = Timeout(said["after_ms"], TimeoutAction(said["action"]))
    return typed
