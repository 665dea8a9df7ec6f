"""How fast a backlog shrinks, seen from outside: the same look for everybody, the product too.

A look counts what is not finished, committed, in the database. The clock starts at the first look
that finds fewer than were enqueued, and what was finished by then does not count; it stops at the
first look that finds none, or after a minute: a slow drain is rated by its first minute.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import psycopg

_LOOK_SECONDS = 0.02
# A look reads all rows: between the two ends it comes seldom, so that it does not slow the drain.
_LOOK_SECONDS_MAX = 0.25
_SECONDS_MAX = 60.0


class _Look(NamedTuple):
    at: float
    left: int


def rate(dsn: str, left: bytes, count: int, check: Callable[[], None]) -> float:
    """Gives completions a second.

    Args:
        dsn: the database.
        left: the statement that counts what is not finished.
        count: how many were enqueued.
        check: raises when the worker has ended.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        last, start = _look(conn, left), None
        if last.left != count:
            raise RuntimeError(f"{last.left} are waiting, not {count}")
        while last.left:
            time.sleep(_pause(start, last))
            check()
            now = _look(conn, left)
            if now.left < last.left:
                last, start = now, start or now
            elif now.at - last.at > _SECONDS_MAX:
                raise TimeoutError(f"{now.left} left, and none done in {_SECONDS_MAX:.0f} s")
            if start and last.at - start.at > _SECONDS_MAX:
                break
    if start is None or start.left == 0:
        raise RuntimeError(f"{count} were done between two looks: too few to measure")
    return (start.left - last.left) / (last.at - start.at)


def _look(conn: psycopg.Connection, left: bytes) -> _Look:
    row = conn.execute(left).fetchone()
    if row is None:
        raise RuntimeError("a count always has a row")
    return _Look(time.monotonic(), int(row[0]))


def _pause(start: _Look | None, last: _Look) -> float:
    """Gives half of the time that the rest will take, within bounds."""
    if start is None or start.left == last.left:
        return _LOOK_SECONDS
    seconds_each = (last.at - start.at) / (start.left - last.left)
    return min(max(seconds_each * last.left / 2, _LOOK_SECONDS), _LOOK_SECONDS_MAX)
