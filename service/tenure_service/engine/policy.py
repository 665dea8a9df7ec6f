"""Task policies: what a source says of retries, and what holds when all sources are put together.

A `PartialPolicy` is what one source says (the call, the operator, the code); unset means "ask the
next". A `Policy` is complete, is stored once for all tasks that share it, and never changes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from tenure_service.engine import limits


class Backoff(StrEnum):
    """How the delay before the next attempt grows."""

    FIXED = "FIXED"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"


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
    """Puts sources together: for each field the first that says something, else the default."""
    said: dict[str, Any] = {}
    for source in reversed(sources):
        if source is not None:
            said.update(source.to_json())
    return Policy(**_typed(said))


def _typed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Turns JSON's lists and strings into the types of the fields."""
    typed = dict(body)
    if typed.get("backoff") is not None:
        typed["backoff"] = Backoff(typed["backoff"])
    if typed.get("non_retryable_types") is not None:
        typed["non_retryable_types"] = tuple(typed["non_retryable_types"])
    return typed
