"""What a check is given, and what it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tenure_service.store.database import Conn

_LISTED_MAX: Final = 3


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        found: What is the case, with its figures.
        advice: What to do, the command where there is one; empty where all is well.
    """

    level: Level
    name: str
    found: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The database that is looked at; `now` is None for its own time."""

    conn: Conn
    dsn: str
    schema: str
    limit: timedelta
    now: datetime | None


def fine(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(level=Level.OK, name=name, found=found, advice="")


def warned(name: str, found: str, advice: str) -> Finding:
    """Somebody should look."""
    return Finding(level=Level.WARN, name=name, found=found, advice=advice)


def failed(name: str, found: str, advice: str) -> Finding:
    """Servers do not run, or lose or double work."""
    return Finding(level=Level.FAIL, name=name, found=found, advice=advice)


def listed(names: Sequence[str]) -> str:
    """Names the first few."""
    more = len(names) - _LISTED_MAX
    return f"{', '.join(names[:_LISTED_MAX])}{f' and {more} more' if more > 0 else ''}"


def span(duration: timedelta) -> str:
    """Gives a duration in the largest unit of which it has two or more."""
    seconds = int(duration.total_seconds())
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{int(seconds / size)} {unit}"
    return f"{seconds} s"


def counted(count: int, thing: str, things: str | None = None) -> str:
    """Gives a number of things, such as `1 task` or `2,000 tasks`."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
